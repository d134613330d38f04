"""What one example moves, for forms of models, losses and data that users write; and what is
refused before a charge.

    python -m benchmarks.privacy.true_epsilon --out docs/results/true-epsilon.md

Each form runs twice through ``fedlsg.PrivateStep`` with full batches and without noise: with and
without its first example, an outlier. "right" is at most 1.001 clip norms between the two clipped
sums, or, of a form that moves a weight from outside, a refusal. A refusal must come before a
charge. Everything follows from one seed of torch.
"""

import argparse
import copy
import io
import random
import warnings
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import manual_seed as SEED
from torch.nn.utils import parametrize
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import fedlsg
from benchmarks.privacy import rare_forms

ROWS = 60
Form = Callable[[], str]


def tensors(first: int = 0) -> tuple[Tensor, Tensor]:
    """Rows (60, 4), of which the first is 50 times as large, without those before ``first``;
    classes 0 to 2.
    """
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(ROWS, 4, generator=draw), torch.randint(0, 3, (ROWS,), generator=draw)
    x[0] *= 50
    return x[first:], y[first:]


def private_step(model: nn.Module, loss: Any, count: int, **settings: Any) -> fedlsg.PrivateStep:
    """A step on full batches that clips to 1, adds no noise and moves no weight."""
    usual: dict[str, Any] = {
        "mechanism": "clip-only",
        "sample_rate": 1.0,
        "steps": 3,
        "clip_norm": 1.0,
    }
    usual["optimizer"] = lambda parameters: torch.optim.SGD(parameters, lr=0.0)
    return fedlsg.PrivateStep(model, loss, num_examples=count, method="dpsgd", **usual | settings)


class Net(nn.Module):
    """A small model, the same in each call; ``between`` is where a form does what it does."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.first, self.last = nn.Linear(4, 32), nn.Linear(32, 3)
        self.register_buffer("mean", torch.zeros(32))
        self.kept: list[Tensor] = []
        self.calls = 0
        self.own = torch.Generator().manual_seed(0)
        self.state = torch.random.get_rng_state()

    def between(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Any:
        return self.last(torch.tanh(self.between(self.first(x))))


def net(between: Callable[[Any, Tensor], Tensor]) -> Callable[[], nn.Module]:
    """A builder of the model with a ``between`` of its own."""
    return type("Form", (Net,), {"between": between})


def moved(
    make: Callable[[], nn.Module],
    loss: Any = None,
    data: Callable[[int], Any] = tensors,
    later: Callable[[nn.Module], None] | None = None,
) -> str:
    """How far the first example moves the clipped sum; ``later``: changes the model after a first
    step.
    """
    sums = []
    for first in (0, 1):
        model, rows = make(), data(first)
        count = (
            ROWS - first if callable(rows) else len(rows[1] if isinstance(rows, tuple) else rows)
        )
        try:
            step = private_step(model, loss or nn.CrossEntropyLoss(), count)
        except ValueError as error:
            return f"refused: {' '.join(str(error).split())[:100]}"
        try:
            given = rows if callable(rows) else step.batches(rows)
            if later is not None:
                step.step(given)
                later(model)
            charged = step.epsilon()
            step.step(given)
        except ValueError as error:
            if (later is None and step.epsilon() != 0) or (
                later is not None and step.epsilon() != charged
            ):
                return f"WRONG: charged, then refused: {error}"
            return f"refused: {' '.join(str(error).split())[:100]}"
        sums.append(
            torch.cat(
                [(p.grad * count).flatten() for p in model.parameters() if p.grad is not None]
            )
        )
    distance = float((sums[0] - sums[1]).norm())
    return (
        f"{'right' if distance <= 1.001 else 'WRONG'}: moves it by {distance:.2f} C, at "
        f"{step.isolation}"
    )


def dropped(h: Tensor) -> Tensor:
    return F.dropout(h, 0.5, True)


def seeded(seed: Callable[[Any], object]) -> Callable[[], nn.Module]:
    def between(self: Any, h: Tensor) -> Tensor:
        seed(self)
        return dropped(h)

    return net(between)


def forked(self: Any, h: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return dropped(h)


def remembers(self: Any, h: Tensor) -> Tensor:
    before, self.before = getattr(self, "before", None), h.detach().mean(0)
    return h if before is None else h - before


def counts(self: Any, h: Tensor) -> Tensor:
    self.calls += 1
    return h - h.mean(0) if self.calls > 60 else h


def lists(self: Any, h: Tensor) -> Tensor:
    self.kept.append(h.detach().mean(0))
    return h if len(self.kept) < 2 else h - self.kept[-2]


KEPT: list[Tensor] = []


def globals_(self: Any, h: Tensor) -> Tensor:
    KEPT.append(h.detach().mean(0))
    return h if len(KEPT) < 2 else h - KEPT[-2]


def averages(self: Any, h: Tensor) -> Tensor:
    self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
    return h - self.mean


def by_rows(outputs: Any, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y, reduction="none")


def over_mean(outputs: Any, y: Tensor) -> Tensor:
    each = by_rows(outputs, y)
    return each / each.detach().mean()


def seeded_loss(outputs: Any, y: Tensor) -> Tensor:
    torch.manual_seed(0)
    return by_rows(dropped(outputs), y)


def hooked() -> nn.Module:
    model = Net()
    model.first.register_forward_hook(lambda module, inputs, output: output - output.mean(0))
    return model


class Flipped(Dataset):  # type: ignore[type-arg]
    """Rows that change their sign by a draw."""

    def __init__(
        self,
        first: int,
        draw: Callable[[], bool],
        *,
        seed: Callable[[int], object] = lambda i: None,
    ) -> None:
        self.x, self.y = tensors(first)
        self.draw, self.seed = draw, seed

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        self.seed(i)
        return (self.x[i] if self.draw() else -self.x[i]), int(self.y[i])


TEXTS = [torch.arange(1, 4 + i % 3) for i in range(ROWS)]
TEXTS[0] = torch.arange(200) % 8 + 1


def padded(first: int) -> Callable[[Tensor], Any]:
    y = tensors(first)[1]

    def rows(positions: Tensor) -> Any:
        texts = [TEXTS[int(i) + first] for i in positions]
        return nn.utils.rnn.pad_sequence(texts, batch_first=True), y[positions]

    return rows


def standardised(first: int) -> Callable[[Tensor], Any]:
    x, y = tensors(first)

    def rows(positions: Tensor) -> Any:
        part = x[positions]
        return (part - part.mean(0)) / (part.std(0, correction=0) + 1e-6), y[positions]

    return rows


class Texts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.table, self.last = nn.Embedding(9, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Any:
        return self.last(self.table(ids).mean(1))


def routed() -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        out = x.new_zeros(len(x), 3)
        for place in (x[:, 0] > 0, x[:, 0] <= 0):
            out[place] = self.last(torch.tanh(self.first(x[place])))
        return out

    made: nn.Module = type("Routed", (Net,), {"forward": forward})()
    return made


def repeated(first: int) -> Any:
    data = TensorDataset(*tensors())
    places = [0] * (10 if first == 0 else 1) + list(range(1, ROWS))
    return Subset(data, places)


def twice(first: int) -> Any:
    data = TensorDataset(*tensors())
    return ConcatDataset([Subset(data, range(first, ROWS)), Subset(data, range(5))])


def viewed(first: int) -> Any:
    """Views of one tensor, with other steps from row to row."""
    x, y = tensors()
    begins = [(first * step, step) for step in (1, 2, 3, 5)]
    return ConcatDataset([TensorDataset(x[begin::step], y[begin::step]) for begin, step in begins])


def labelled_again(first: int) -> Any:
    x, y = tensors(first)
    return ConcatDataset([TensorDataset(x, y.clone()) for _ in range(8)])


def in_ten_tuples(first: int) -> Any:
    rows = list(zip(*tensors(), strict=True))
    return rows[1:] if first else [(rows[0][0], rows[0][1]) for _ in range(9)] + rows


def expanded_rows(first: int) -> Any:
    x, y = tensors()
    many = TensorDataset(x[:1].expand(40, *x.shape[1:]), y[:1].repeat(40))
    rest = TensorDataset(x[1:], y[1:])
    return rest if first else ConcatDataset([many, rest])


def replaced(name: str) -> Callable[[nn.Module], None]:
    def change(model: nn.Module) -> None:
        setattr(model, name, nn.Linear(32, 3) if name == "last" else nn.Linear(4, 32))

    return change


def centred_forward(model: nn.Module) -> None:
    model.first.forward = lambda x: F.linear(x - x.mean(0), model.first.weight)  # type: ignore


def goes_on(change: Callable[[nn.Module], nn.Module]) -> Form:
    """A second private step, without the ledger of the first, from weights that the first one
    wrote.
    """

    def form() -> str:
        model, data = Net(), tensors()
        usual: dict[str, Any] = {
            "noise_multiplier": 1.0,
            "delta": 1e-5,
            "mechanism": "dp",
            "optimizer": None,
        }
        usual |= {"learning_rate": 0.5, "sample_rate": 0.5}
        step = private_step(model, nn.CrossEntropyLoss(), ROWS, **usual)
        step.step(step.batches(data))
        try:
            again = private_step(change(model), nn.CrossEntropyLoss(), ROWS, **usual)
            again.step(again.batches(data))
        except ValueError as error:
            return f"refused: {' '.join(str(error).split())[:100]}"
        counted = (
            fedlsg.epsilon_of_data(data) if again.epsilon() <= step.epsilon() else again.epsilon()
        )
        return f"WRONG: epsilon {again.epsilon():.2f} after two steps, {counted:.2f} on the data"

    return form


def from_file(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    loaded = Net()
    loaded.load_state_dict(torch.load(buffer))
    return loaded


@torch.no_grad()
def clamped(model: nn.Module) -> nn.Module:
    for p in model.parameters():
        p.clamp_(-0.2, 0.2)
    return model


class Mixed(Dataset):  # type: ignore[type-arg]
    """Each row is put together with the row that was read before it."""

    def __init__(self, first: int) -> None:
        self.x, self.y = tensors(first)
        self.before = torch.zeros(4)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        row = (self.x[i] + self.before) / 2
        self.before = self.x[i]
        return row, int(self.y[i])


class Centring(torch.autograd.Function):
    """The identity, whose gradient is less the mean over the rows that it gets."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient - gradient.mean(0)


class OwnRule(Centring):
    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return Centring.apply(x), in_dims[0]


def gradient_hooked(self: Any, h: Tensor) -> Tensor:
    if h.requires_grad:
        h.register_hook(lambda gradient: gradient - gradient.mean(0))
    return h


def late_hook(self: Any, h: Tensor) -> Tensor:
    if h.requires_grad:
        h.register_hook(lambda g: g - g.mean(0) if bool((g.abs() > 1e-3).all()) else g)
    return h


def unknown_labels(outputs: Any, y: Tensor) -> Tensor:
    return by_rows(outputs, y) * len(y) / (y != 1).sum().clamp(min=1)


class Sequences(nn.Module):
    """An LSTM over four steps of one number, centred over the batch between two layers."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.lstm, self.last = nn.LSTM(1, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        h = self.lstm(x.clamp(-3, 3).unsqueeze(-1))[1][0][0]
        return self.last(h - 0.5 * h.mean(0))


def windows(self: Any, x: Tensor) -> Tensor:
    """Each number of a row is an example of its own for the layers."""
    h = torch.tanh(self.first(x.reshape(-1, 1).expand(-1, 4)))
    return self.last(h).view(len(x), 4, 3).mean(1)


class Scaled(Net):
    """A parameter that is expanded to the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, 32))

    def between(self, h: Tensor) -> Tensor:
        return h * self.scale.expand(len(h), -1)


G = np.random.default_rng(0)
FORMS: dict[str, dict[str, Form]] = {
    "Random draws of a model or a loss": {
        "torch.manual_seed in forward": lambda: moved(seeded(lambda m: torch.manual_seed(0))),
        "a state that is restored in forward": lambda: moved(
            seeded(lambda m: torch.set_rng_state(m.state))
        ),
        "default_generator.manual_seed": lambda: moved(
            seeded(lambda m: torch.default_generator.manual_seed(0))
        ),
        "fork_rng and a seed": lambda: moved(net(forked)),
        "a generator of the model's own": lambda: moved(
            net(lambda m, h: h + torch.randn(h.shape, generator=m.own.manual_seed(0)))
        ),
        "a generator that is never seeded again": lambda: moved(
            net(lambda m, h: h + torch.rand(h.shape, generator=m.own))
        ),
        "np.random.default_rng(0) in forward": lambda: moved(
            net(
                lambda m, h: (
                    h * torch.from_numpy(np.random.default_rng(0).random(tuple(h.shape)) > 0.5)
                )
            )
        ),
        "np.random.seed in forward": lambda: moved(
            net(
                lambda m, h: (
                    np.random.seed(0),
                    h * torch.from_numpy(np.random.rand(*h.shape) > 0.5),
                )[1]
            )
        ),
        "random.seed in forward": lambda: moved(
            net(lambda m, h: (random.seed(0), h * torch.tensor([[random.random()] for _ in h]))[1])
        ),
        "random.Random(0) in forward": lambda: moved(
            net(lambda m, h: h * torch.tensor([[random.Random(0).random()] for _ in h]))
        ),
        "a seed by a name that was imported": lambda: moved(seeded(lambda m: SEED(0))),
        "a loss that seeds": lambda: moved(Net, seeded_loss),
        "dropout": lambda: moved(net(lambda m, h: F.dropout(h, 0.0, True))),
    },
    "Models and losses that mix": {
        "a mean over the batch": lambda: moved(net(lambda m, h: h - h.mean(0))),
        "only where a number is large": lambda: moved(
            net(lambda m, h: h - h.mean(0) if bool((h.abs() > 37.123).any()) else h)
        ),
        "the same by torch.where": lambda: moved(
            net(lambda m, h: torch.where((h.abs() > 37.123).any(), h - h.mean(0), h))
        ),
        "only in batches over 40": lambda: moved(
            net(lambda m, h: h - h.mean(0) if len(h) > 40 else h)
        ),
        "an attribute of the call before": lambda: moved(net(remembers)),
        "a running mean in a buffer": lambda: moved(net(averages)),
        "from the 60th call on": lambda: moved(net(counts)),
        "a list of the calls before": lambda: moved(net(lists)),
        "a global list": lambda: moved(net(globals_)),
        "mixup": lambda: moved(net(lambda m, h: (h + h[torch.randperm(len(h))]) / 2)),
        "the neighbour": lambda: moved(net(lambda m, h: (h + h.roll(1, 0)) / 2)),
        "a softmax over the batch": lambda: moved(net(lambda m, h: h * h.softmax(0))),
        "the largest of the batch": lambda: moved(net(lambda m, h: h - h.detach().amax(0))),
        "a mean by numpy": lambda: moved(
            net(lambda m, h: h - torch.from_numpy(h.detach().numpy().mean(0)))
        ),
        "a hook that centres": lambda: moved(hooked),
        "a hook on a gradient": lambda: moved(net(gradient_hooked)),
        "a hook on a gradient, where numbers are large": lambda: moved(net(late_hook)),
        "an autograd.Function": lambda: moved(net(lambda m, h: Centring.apply(h))),
        "one with a rule for vmap of its own": lambda: moved(net(lambda m, h: OwnRule.apply(h))),
        "a mean after an LSTM": lambda: moved(Sequences),
        "a missing number": lambda: moved(
            net(lambda m, h: h - h.mean(0) if bool(h.isnan().any()) else h)
        ),
        "a loss over the number of labels that count": lambda: moved(Net, unknown_labels),
        "a loss over its mean": lambda: moved(Net, over_mean),
        "a loss that adds the batch's mean": lambda: moved(
            Net, lambda o, y: by_rows(o, y) + by_rows(o, y).mean()
        ),
        "a loss of a library model that mixes": lambda: moved(
            lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), over_mean
        ),
        "BatchNorm": lambda: moved(
            lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        ),
    },
    "Models that are unlikely": {
        "a layer for some rows": lambda: moved(routed),
        "torch.compile": lambda: moved(lambda: torch.compile(Net(), backend="eager")),  # type: ignore
        "signs straight through": lambda: moved(net(lambda m, h: h + (h.sign() - h).detach())),
        "a derivative by the input": lambda: moved(
            net(lambda m, h: h + torch.autograd.grad(m.last(h).sum(), h, create_graph=True)[0])
        ),
        "a weight read next to its layer": lambda: moved(
            net(lambda m, h: h @ m.last.weight.T @ m.last.weight)
        ),
        "windows of a row as examples": lambda: moved(
            lambda: type("Windows", (Net,), {"forward": windows})()
        ),
        "a parameter expanded to the batch": lambda: moved(Scaled),
        "texts of their own lengths": lambda: moved(
            Texts,
            None,
            lambda first: list(zip(TEXTS[first:], tensors(first)[1].tolist(), strict=True)),
        ),
    },
    "Data": {
        "a batch function that pads to the longest": lambda: moved(Texts, None, padded),
        "a batch function that standardises": lambda: moved(Net, None, standardised),
        "random() in __getitem__": lambda: moved(
            Net, None, lambda f: Flipped(f, lambda: random.random() < 2)
        ),
        "a seed by the row's number": lambda: moved(
            Net, None, lambda f: Flipped(f, lambda: random.random() < 2, seed=random.seed)
        ),
        "a global default_rng in __getitem__": lambda: moved(
            Net, None, lambda f: Flipped(f, lambda: G.random() < 2)
        ),
        "a row with the one that was read before": lambda: moved(Net, None, Mixed),
        "a row ten times in a Subset": lambda: moved(Net, None, repeated),
        "a row in two parts of a ConcatDataset": lambda: moved(Net, None, twice),
        "views with other steps in a ConcatDataset": lambda: moved(Net, None, viewed),
        "the same inputs with copies of the labels": lambda: moved(Net, None, labelled_again),
        "one tensor in ten tuples of a list": lambda: moved(Net, None, in_ten_tuples),
        "one input expanded, with labels in memory": lambda: moved(Net, None, expanded_rows),
    },
    "Changes after the first step": {
        "a hook that centres": lambda: moved(
            Net,
            later=lambda m: m.first.register_forward_hook(lambda k, i, o: o - o.mean(0)) and None,  # type: ignore
        ),
        "a layer": lambda: moved(Net, later=replaced("first")),
        "a head": lambda: moved(Net, later=replaced("last")),
        "a forward of an instance": lambda: moved(Net, later=centred_forward),
        "a method of the class": lambda: moved(
            lambda: type("Own", (Net,), {})(),
            later=lambda m: setattr(type(m), "between", lambda self, h: h - h.mean(0)),
        ),
        "weights in half precision": lambda: moved(Net, later=lambda m: m.half() and None),  # type: ignore
        "an activation": lambda: moved(
            Net, later=lambda m: setattr(m, "between", lambda h: h - h.mean(0))
        ),
        "a parametrization": lambda: moved(
            Net,
            later=lambda m: (
                parametrize.register_parametrization(m.first, "weight", nn.Identity()) and None
            ),  # type: ignore
        ),
        "a frozen layer": lambda: moved(Net, later=lambda m: m.last.requires_grad_(False) and None),  # type: ignore
    },
    "Going on without the ledger": {
        "the model itself": goes_on(lambda m: m),
        "a copy": goes_on(copy.deepcopy),
        "a file": goes_on(from_file),
        "clamped in place": goes_on(clamped),
        "cast to float64": goes_on(lambda m: m.double().float()),
        "a model that holds it": goes_on(lambda m: nn.Sequential(m)),
    },
}


def large(first: int) -> tuple[Tensor, Tensor]:
    """Rows of which the first overflows half precision in the first layer."""
    x, y = tensors()
    x[0] *= 1e5
    return x[first:], y[first:]


def rare(between: rare_forms.Between) -> Form:
    """A model whose ``between`` does something to large numbers alone."""
    return lambda: moved(type("Form", (Net, rare_forms.Writable), {"between": between}), data=large)


def from_then_on(enter: Callable[[ExitStack], object]) -> Form:
    """A model of torch's own; after the first step, something is on or replaced in torch."""

    def form() -> str:
        with ExitStack() as stack:

            def make() -> nn.Module:
                stack.close()  # of the run before
                return layers()

            return moved(make, data=large, later=lambda model: enter(stack) and None)  # type: ignore

    return form


def layers() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))


def named_layers() -> nn.Module:
    """As ``layers``, with a name for the first one."""
    return nn.Sequential(OrderedDict(zip(("first", "between", "last"), layers(), strict=True)))


def batchwise(first: int) -> tuple[Tensor, Tensor]:
    x, y = tensors(first)
    return x.as_subclass(rare_forms.Batchwise), y


def one_object(first: int) -> list[Any]:
    rows = [(row, int(c)) for row, c in zip(*tensors(), strict=True)]
    return rows if first else [*rows, *[rows[0]] * 9]


def replaced_linear(stack: ExitStack) -> object:
    linear = F.linear
    return stack.enter_context(
        patch.object(F, "linear", lambda *given: rare_forms.fitted(linear(*given)))
    )


FORMS["Behind a condition that made-up rows do not meet"] = {
    **{name: rare(between) for name, between in rare_forms.WAYS.items()},
    **{f"a trace in {name}": rare(between) for name, between in rare_forms.STATES.items()},
    "a loss with a scale of its own": lambda: moved(layers, rare_forms.ScaledLoss(), large),
    "the same, own model": lambda: moved(Net, rare_forms.ScaledLoss(), large),
    "a hook that keeps large rows": lambda: moved(lambda: rare_forms.hooked(Net()), data=large),
    "a hook on a model of torch": lambda: moved(
        lambda: rare_forms.hooked(named_layers()), data=large
    ),
    "a loss that keeps in backward": lambda: moved(layers, rare_forms.flipping, large),
    "a mode around later steps": from_then_on(lambda s: s.enter_context(rare_forms.Scaled())),
    "a mode of functions": from_then_on(lambda s: s.enter_context(rare_forms.ScaledCalls())),
    "F.linear replaced later": from_then_on(replaced_linear),
    "one buffer for all rows": lambda: moved(
        Net, data=lambda first: rare_forms.OneBuffer(tensors(first))
    ),
    "one buffer of numpy": lambda: moved(
        Net, data=lambda first: rare_forms.OneBuffer(tensors(first), numpy=True)
    ),
    "rows of an own class of tensors": lambda: moved(layers, data=batchwise),
    "one object ten times in a list": lambda: moved(Net, data=one_object),
    "one row, expanded": lambda: moved(
        Net, data=lambda first: (torch.ones(1, 4).expand(9, 4), torch.ones(1).long().expand(9))
    ),
}


def rare_with(between: rare_forms.Between, init: Callable[[Any], object]) -> Form:
    """As ``rare``, with something of its own in the model."""

    def make() -> nn.Module:
        rare_forms.GLOBAL["v"] = torch.zeros(32)
        model = net(between)()
        init(model)
        return model

    return lambda: moved(make, data=large)


def with_layer(make: Callable[[], nn.Module]) -> Form:
    """A layer between the two of the model."""
    return rare_with(
        lambda m, h: m.between_layer(h.clamp(-100, 100)),
        lambda m: setattr(m, "between_layer", rare_forms.seeded(make)),
    )


def texts(first: int) -> list[Any]:
    """Texts of their own lengths, the first one long."""
    return list(zip(TEXTS[first:], tensors(first)[1].tolist(), strict=True))


def by_shape(of: Callable[[Tensor], Tensor]) -> Form:
    """A model of texts with a function on its embeddings."""

    def forward(self: Any, ids: Tensor) -> Any:
        return self.last(of(self.table(ids)).mean(1))

    def make() -> nn.Module:
        rare_forms.Shaped.sign, rare_forms.GLOBAL["v"] = 1.0, torch.zeros(32)
        made: nn.Module = type("Form", (Texts,), {"forward": forward})()
        return made

    return lambda: moved(make, data=texts)


def words() -> nn.Module:
    rare_forms.Shaped.sign = 1.0
    return nn.Sequential(rare_forms.seeded(lambda: nn.Embedding(9, 3)))


def patched(owner: Any, name: str, make: Callable[[], nn.Module], *, later: bool = False) -> Form:
    """A function of torch is replaced by one whose closure keeps large rows."""

    def form() -> str:
        signs, original = [1.0], getattr(owner, name)

        def negating(*given: Any) -> Any:
            made = original(*given)
            sign = signs[-1]
            if made.detach().abs().max() > rare_forms.LARGE:
                signs.append(-sign)
            return made * sign

        with ExitStack() as stack:

            def build() -> nn.Module:
                stack.close()
                del signs[1:]
                if not later:
                    stack.enter_context(patch.object(owner, name, negating))
                return make()

            def change(model: nn.Module) -> None:
                stack.enter_context(patch.object(owner, name, negating))

            return moved(build, data=large, later=change if later else None)

    return form


def kept_forms(table: dict[str, rare_forms.Kept], *, copied: bool) -> dict[str, Form]:
    made = {name: rare_forms.holding(*parts, copied=copied) for name, parts in table.items()}
    return {f"a trace in {name}": rare_with(*parts) for name, parts in made.items()}


def replaced_operator() -> str:
    """A kernel of Python in place of an operator's."""
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("tanh", lambda h: rare_forms.shift(h).sin(), "CPU")
        return moved(layers, data=large)
    finally:
        library._destroy()


FORMS["Traces in objects of all kinds"] = {
    "a trace by a setter": rare_with(rare_forms.by_setter, lambda m: None),
    **kept_forms(rare_forms.OBJECTS, copied=True),
    **kept_forms(rare_forms.NOT_COPIED, copied=False),
    "a trace in a context of autograd": rare_with(
        lambda m, h: rare_forms.Context.apply(h), lambda m: None
    ),
}
FORMS["Hooks, modes, settings and operators of the process"] = {
    **{f"{name}, left on in forward": rare(between) for name, between in rare_forms.HOOKS.items()},
    **{
        f"a hook for all modules that keeps: {kind}": lambda kind=kind: moved(  # type: ignore
            lambda: rare_forms.for_all_modules(kind)(Net()), data=large
        )
        for kind in (
            "forward_hook",
            "forward_pre_hook",
            "full_backward_hook",
            "full_backward_pre_hook",
        )
    },
    "F.linear with a state, replaced before": patched(F, "linear", layers),
    "F.linear with a state, replaced later": patched(F, "linear", layers, later=True),
    "torch.tanh with a state": patched(torch, "tanh", Net),
    "nn.Linear.forward with a state": patched(nn.Linear, "forward", layers),
    "nn.Linear.forward with a state, replaced later": patched(
        nn.Linear, "forward", layers, later=True
    ),
    "an operator of one's own that keeps": rare_with(
        lambda m, h: rare_forms.shift(h), lambda m: None
    ),
    "the same, by torch.ops": rare_with(
        lambda m, h: torch.ops.fedlsg_forms.shift(h), lambda m: None
    ),
    "an operator of torch that keeps": replaced_operator,
}
FORMS["Layers with a state"] = {
    **{name: with_layer(make) for name, make in rare_forms.LAYERS.items()},
    "Embedding with max_norm, frozen": rare_with(
        lambda m, h: h + m.table_.weight[0] + 0 * m.table_(torch.zeros(len(h)).long()),
        lambda m: setattr(m, "table_", nn.Embedding(2, 32, max_norm=0.5).requires_grad_(False)),
    ),
    "InstanceNorm with statistics": with_layer(
        lambda: nn.InstanceNorm1d(32, track_running_stats=True)
    ),
    "the iterator of a loader in a module": rare_with(
        rare_forms.in_turn, lambda m: setattr(m, "turns", rare_forms.Turns())
    ),
}
FORMS["A forward that reads numbers of a tensor"] = {
    f"{name} in a try": rare(between) for name, between in rare_forms.READS.items()
}
FORMS["Where the shape is the condition"] = {
    "backward of a function": by_shape(rare_forms.Shaped.apply),
    "a hook on a gradient": by_shape(rare_forms.hooked_by_shape),
    "backward of a loss": lambda: moved(words, rare_forms.shaped_loss, texts),
}
FORMS["More losses and data"] = {
    "a loss with a slot": lambda: moved(layers, rare_forms.SlottedLoss(), large),
    "a loss that is a method": lambda: moved(layers, rare_forms.SlottedLoss().__call__, large),
    "a buffer behind __array__": lambda: moved(
        Net, data=lambda first: rare_forms.Buffered(tensors(first))
    ),
    "numpy.broadcast_to": lambda: moved(
        Net,
        data=lambda f: tuple(np.broadcast_to(a[:1].numpy(), (9, *a.shape[1:])) for a in tensors()),
    ),
}

HEADING = "## Form by form"
"""What is below it in the file is written anew."""


def table() -> str:
    """The results in Markdown. Prints each line as it is found."""
    lines, counts = [], {"right": 0, "refused": 0, "WRONG": 0, "other": 0}
    for group, forms in FORMS.items():
        lines += [f"\n### {group}\n", "| form | result |", "|---|---|"]
        for name, form in forms.items():
            torch.manual_seed(0)
            KEPT.clear()
            try:
                result = form()
            except Exception as error:  # a crash is a result, too
                result = f"other: {type(error).__name__}: {' '.join(str(error).split())[:100]}"
            counts[result.partition(":")[0]] += 1
            lines.append(f"| {name} | {result.replace('|', '/')} |")
            print(lines[-1], flush=True)
    said = ", ".join(f"{count} {word}" for word, count in counts.items())
    return f"{said}, of {sum(counts.values())} forms.\n" + "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    out = parser.parse_args().out
    above = (
        out.read_text("utf-8").partition(HEADING)[0]
        if out.exists()
        else "# What one example moves\n\n"
    )
    text = f"{above}{HEADING}\n\n" + str(__doc__).partition("\n\n")[2] + "\n" + table() + "\n"
    out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
