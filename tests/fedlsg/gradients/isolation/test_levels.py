"""Passes at the levels ``isolated`` and ``rows``: gradients of autograd, and no way from one
example to another.
"""

import re
from argparse import Namespace
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fedlsg.gradients.isolation.alone as alone
import fedlsg.gradients.isolation.loss_on_rows as loss_on_rows
import fedlsg.gradients.isolation.passes as passes
import fedlsg.gradients.isolation.trial as trial
import fedlsg.gradients.isolation.vmapped as vmapped
from fedlsg.gradients import per_example_loss
from fedlsg.gradients.isolation import batched, per_example_gradients
from fedlsg.gradients.isolation.trial import dense_frame, level_of_own_code, slowdown, word_on
from tests.fedlsg.support.gradient_oracle import error, make_frame, naive

LEVELS = ("isolated", "rows")
ROWS = 6


class Tower(nn.Module):
    """Known layers of every kind between a user's own operations."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 8)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.norm, self.mix = nn.LayerNorm(8), nn.Linear(8, 8)
        self.conv, self.group = nn.Conv1d(8, 6, 3, padding=1), nn.GroupNorm(2, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, ids):
        h = self.norm(self.table(ids) * self.scale)
        h = h + torch.tanh(self.mix(h)) @ self.mix.weight.T
        return self.last(torch.relu(self.group(self.conv(h.transpose(1, 2)))).amax(2))


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, padding=1)
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.last(torch.tanh(h + self.second(h)).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, kind, batch_first=True):
        super().__init__()
        self.batch_first = batch_first
        self.cell = kind(4, 5, num_layers=2, batch_first=batch_first)
        self.start, self.last = nn.Parameter(torch.randn(2, 1, 5)), nn.Linear(5, 3)

    def forward(self, x):
        x = x if self.batch_first else x.transpose(0, 1)
        state = self.start.expand(-1, x.shape[0 if self.batch_first else 1], -1).contiguous()
        out, _ = self.cell(x, (state, state) if isinstance(self.cell, nn.LSTM) else state)
        return self.last(out[:, -1] if self.batch_first else out[-1])


class Words(nn.Module):
    """Words flattened into the batch: one example has four images of one convolution."""

    def __init__(self):
        super().__init__()
        self.table, self.conv = nn.Embedding(20, 6), nn.Conv1d(6, 8, 3, padding=1)
        self.last = nn.Linear(8, 3)

    def forward(self, ids):
        h = self.conv(self.table(ids).flatten(0, 1).transpose(1, 2)).amax(2)
        return self.last(h.view(len(ids), ids.shape[1], -1).mean(1))


class Windows(nn.Module):
    """Windows of an image flattened into the batch: a carried convolution sees four images of one
    example.
    """

    def __init__(self):
        super().__init__()
        self.conv, self.mix, self.last = nn.Conv2d(1, 4, 3), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        windows = x.unfold(2, 4, 4).unfold(3, 4, 4).flatten(2, 3).transpose(1, 2).flatten(0, 1)
        h = torch.tanh(self.conv(windows)).mean((2, 3)).view(len(x), 4, -1)
        return self.last(self.mix(h).mean(1))


class Odd(nn.Module):
    """Layers that get one example without a batch, or with several images: each in a way of its
    own.
    """

    def __init__(self):
        super().__init__()
        self.conv, self.group = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4)
        self.norm, self.mix, self.last = nn.LayerNorm((1, 6)), nn.Linear(1, 6), nn.Linear(6, 3)

    def forward(self, x):
        rows = [self.conv(image) for image in x]
        h = torch.stack(rows).transpose(0, 1).transpose(0, 1)
        h = torch.cat([self.group(torch.cat([h, h.flip(2), h * 2, h + 1]))[::4]])
        z = self.mix(h.mean((2, 3)).unsqueeze(2)).mean(1, keepdim=True)
        return self.last(self.norm(z)).squeeze(1)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(9, 4), nn.Linear(4, 9)
        self.last.weight = self.table.weight

    def forward(self, ids):
        return self.last(torch.tanh(self.table(ids).mean(1)))


class Routed(nn.Module):
    """A head for each domain, called on the rows of its domain."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(4, 3) for _ in range(2))

    def forward(self, x):
        out = x.new_zeros(len(x), 3)
        for number, head in enumerate(self.heads):
            out[(x[:, 0] > 0) == number] = head(x[(x[:, 0] > 0) == number])
        return out


class Penalty(nn.Module):
    """A derivative by the input, inside of the model."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 3))

    def forward(self, x):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)
        return self.net(x) + slope.norm(dim=1, keepdim=True)


class Temperature(nn.Module):
    """Parameters of shape ()."""

    def __init__(self):
        super().__init__()
        self.last, self.scale = nn.Linear(4, 3), nn.Parameter(torch.tensor(1.5))
        self.gate = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        return self.last(x * torch.sigmoid(self.gate)) / self.scale.exp()


def ids():
    return torch.randint(0, 9, (ROWS, 7))


def numbers(*shape):
    return torch.randn(ROWS, *shape)


MODELS = {
    "tower": (Tower, ids),
    "pictures": (Pictures, lambda: numbers(1, 8, 8)),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: numbers(5, 4)),
    "gru, time first": (lambda: Recurrent(nn.GRU, False), lambda: numbers(5, 4)),
    "windows": (Windows, lambda: numbers(1, 8, 8)),
    "words": (Words, lambda: torch.randint(0, 20, (ROWS, 4, 6))),
    "odd": (Odd, lambda: numbers(1, 6, 6)),
    "tied": (Tied, ids),
    "temperature": (Temperature, lambda: numbers(4)),
    "routed": (Routed, lambda: numbers(4)),
    "penalty": (Penalty, lambda: numbers(4)),
}
ALONE_ONLY = ("routed", "penalty")
"""Models that torch has no rule for under vmap."""


def problem(name):
    torch.manual_seed(0)
    make, rows = MODELS[name]
    model = make()
    outputs = 9 if name == "tied" else 3
    return model, rows(), torch.randint(0, outputs, (ROWS,))


own = per_example_loss(lambda outputs, y: F.cross_entropy(outputs, y, reduction="none"))
known = per_example_loss(nn.CrossEntropyLoss())


@pytest.mark.thinned(29)
@pytest.mark.parametrize("loss", [own, known], ids=["own loss", "known loss"])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_autograd(name, level, loss):
    model, x, y = problem(name)
    if level == "isolated" and name in ALONE_ONLY:
        assert level_of_own_code(model, loss, x, y) == "rows"
        return
    frame = dense_frame(model)
    got = per_example_gradients(model, loss, x, y, frame, isolation=level)
    assert error(got, naive(model, loss, x, y, frame)) < 1e-4
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["pictures", "windows", "temperature"])
def test_carried_and_masked_blocks_are_those_of_autograd(name, level):
    model, x, y = problem(name)
    frame = make_frame(model, rank=2, sparsity=0.3)
    got = per_example_gradients(model, own, x, y, frame, isolation=level)
    assert error(got, naive(model, own, x, y, frame)) < 1e-4


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", sorted(set(MODELS) - set(ALONE_ONLY)))
def test_what_torch_can_run_is_isolated(name):
    model, x, y = problem(name)
    assert level_of_own_code(model, own, x, y) == "isolated"
    assert (
        slowdown(model, own, x, y, "isolated", 8) is None
        or slowdown(model, own, x, y, "rows", 8) > 0
    )


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))
        self.kept = []

    def between(self, h):
        return h

    def forward(self, x):
        return self.last(torch.tanh(self.between(self.first(x))))


class Centred(Plain):
    def between(self, h):
        return h - h.mean(0)


class Large(Plain):
    def between(self, h):
        return h - h.mean(0) if len(h) > 5 else h


class Remembers(Plain):
    def between(self, h):
        before = getattr(self, "before", None)
        self.before = h.detach().mean(0)
        return h if before is None else h - before


class Counts(Plain):
    def between(self, h):
        self.calls = getattr(self, "calls", 0) + 1
        return h * self.calls


class Buffered(Plain):
    def between(self, h):
        self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
        return h - self.mean


class Listed(Plain):
    def between(self, h):
        self.kept.append(h.detach().mean(0))
        return h if len(self.kept) < 2 else h - self.kept[-2]


class Shuffled(Plain):
    def between(self, h):
        return (h + h.flip(0)) / 2


class Copied(Plain):
    def between(self, h):
        return h - torch.tensor(h.detach().numpy().mean(0))


def loss_over_its_mean(outputs, y):
    each = F.cross_entropy(outputs, y, reduction="none")
    return each / each.detach().mean()


def hooked():
    model = Plain()
    model.first.register_forward_hook(lambda module, inputs, output: output - output.mean(0))
    return model


def backward_hooked():
    model = Plain()
    model.first.register_full_backward_hook(
        lambda module, gin, gout: tuple(g if g is None else g - g.mean(0) for g in gin)
    )
    return model


class GradientHooked(Plain):
    def between(self, h):
        if h.requires_grad:
            h.register_hook(lambda g: g / g.norm())
        return h


class Identity(torch.autograd.Function):
    """Its gradient is less the mean over all rows that it gets."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        """Nothing is kept."""

    @staticmethod
    def backward(ctx, gradient):
        return gradient - gradient.mean(0)


class Mapped(Identity):
    generate_vmap_rule = True


class OwnRule(Identity):
    """Runs on all examples at once under ``vmap``."""

    @staticmethod
    def vmap(info, in_dims, x):
        return Identity.apply(x), in_dims[0]


class ByFunction(Plain):
    def between(self, h):
        return Mapped.apply(h)


class ByOwnRule(Plain):
    def between(self, h):
        return OwnRule.apply(h)


KEPT = {"v": torch.zeros(8)}
OPTIONS = Namespace(v=torch.zeros(8))
BANK = nn.ParameterDict({"v": nn.Parameter(torch.zeros(8), requires_grad=False)})


@dataclass(slots=True)
class Slotted:
    v: torch.Tensor


class Once(type):
    made: ClassVar[dict] = {}

    def __call__(cls):
        return Once.made.setdefault(cls, super().__call__())


class Single(metaclass=Once):
    def __init__(self):
        self.v = torch.zeros(8)


@lru_cache
def single():
    return SimpleNamespace(v=torch.zeros(8))


class Swapped(dict):
    """A dict whose ``update`` does something else."""

    def update(self, v):
        dict.update(self, v=self["v"] + v)


def add(m, v):
    add.v = add.v + v


add_to_options = partial(lambda options, v: setattr(options, "v", options.v + v), OPTIONS)
exec("v = 0.0\ndef add_here(x):\n    global v\n    v = v + x\ndef here(): return v", OTHER := {})
PACKAGE = ModuleType("another_package")
PACKAGE.inner = ModuleType("another_package.inner")


class Stateful(Plain):
    """What a forward may write to, in as many places."""

    shared = torch.zeros(8)

    def __init__(self):
        super().__init__()
        self.frozen = nn.Parameter(torch.zeros(8), requires_grad=False)
        self.array, self.pair = np.zeros(8, dtype=np.float32), (torch.zeros(8),)
        self.other, self.nested = SimpleNamespace(v=torch.zeros(8)), {"a": {"b": torch.zeros(8)}}
        self.frozen.note = torch.zeros(8)
        type(self).shared = torch.zeros(8)
        KEPT["v"] = torch.zeros(8)
        OPTIONS.v, add.v, PACKAGE.inner.v, OTHER["v"] = torch.zeros(4, 8)
        self.slotted, self.bytes = Slotted(torch.zeros(8)), bytearray(4)
        self.objects, self.swapped = np.empty(2, dtype=object), Swapped(v=torch.zeros(8))
        self.objects[1] = torch.zeros(8)
        with torch.inference_mode():
            self.inferred = torch.zeros(8)
        Once.made.clear()
        BANK["v"].data.zero_()
        single.cache_clear()


def written(read, write):
    """A model that subtracts what it has kept of the rows before."""

    class Written(Stateful):
        def between(self, h):
            write(self, h.detach().mean(0))
            return h - read(self)

    return Written


def inferred_add(kept, v):
    with torch.inference_mode():
        kept.add_(v)


def hook_that_keeps():
    """A hook on a layer of torch, whose closure keeps the rows before."""
    model, kept = Plain(), [torch.zeros(8)]

    def keep(layer, inputs, output):
        kept.append(kept[-1] + output.detach().mean(0))
        return output - kept[-2]

    model.first.register_forward_hook(keep)
    return model


def keeping_loss(outputs, y, kept=[]):  # noqa: B006 - this is what is tried
    kept.append(outputs.detach().mean(0))
    return F.cross_entropy(outputs - sum(kept), y, reduction="none")


STATES = {
    "a frozen parameter by .data": (lambda m: m.frozen, lambda m, v: m.frozen.data.add_(v)),
    "a buffer by numpy": (lambda m: m.mean, lambda m, v: m.mean.numpy().__iadd__(v.numpy())),
    "an array": (lambda m: torch.tensor(m.array), lambda m, v: m.array.__iadd__(v.numpy())),
    "a tensor in a tuple": (lambda m: m.pair[0], lambda m, v: m.pair[0].add_(v)),
    "another object": (lambda m: m.other.v, lambda m, v: setattr(m.other, "v", m.other.v + v)),
    "a nested dict": (lambda m: m.nested["a"]["b"], lambda m, v: m.nested["a"]["b"].add_(v)),
    "a parameter's attribute": (lambda m: m.frozen.note, lambda m, v: m.frozen.note.add_(v)),
    "its class": (lambda m: m.shared, lambda m, v: setattr(type(m), "shared", m.shared + v)),
    "a global variable": (lambda m: KEPT["v"], lambda m, v: KEPT.update(v=KEPT["v"] + v)),
    "slots": (lambda m: m.slotted.v, lambda m, v: setattr(m.slotted, "v", m.slotted.v + v)),
    "global options": (lambda m: OPTIONS.v, lambda m, v: setattr(OPTIONS, "v", OPTIONS.v + v)),
    "by a global partial": (lambda m: OPTIONS.v, lambda m, v: add_to_options(v)),
    "a global module of torch": (lambda m: BANK["v"], lambda m, v: BANK["v"].data.add_(v)),
    "a function's attribute": (lambda m: add.v, lambda m, v: add(m, v)),
    "a cached object": (lambda m: single().v, lambda m, v: single().v.add_(v)),
    "one object of a metaclass": (lambda m: Single().v, lambda m, v: Single().v.add_(v)),
    "a dict with an update of its own": (
        lambda m: m.swapped["v"],
        lambda m, v: m.swapped.update(v),
    ),
    "an array of objects": (lambda m: m.objects[1], lambda m, v: m.objects[1].add_(v)),
    "bytes": (
        lambda m: float(m.bytes[0]),
        lambda m, v: m.bytes.__setitem__(0, max(m.bytes[0], 9 * (v.abs().max() > 15))),
    ),
    "a tensor of inference mode": (lambda m: m.inferred, lambda m, v: inferred_add(m.inferred, v)),
    "code that a text made": (lambda m: OTHER["here"](), lambda m, v: OTHER["add_here"](v)),
    "a module in a module": (
        lambda m: PACKAGE.inner.v,
        lambda m, v: setattr(PACKAGE.inner, "v", PACKAGE.inner.v + v),
    ),
    "a trained weight": (lambda m: 0.0, lambda m, v: m.first.weight.data.mul_(0.5)),
}


class Doubles(TorchDispatchMode):
    """Scales by the largest number of a tensor."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        return made / made.abs().max() if function is torch.ops.aten.mul.Tensor else made


class InAMode(Plain):
    def between(self, h):
        with Doubles():
            return h * 1.0


class Saves(Plain):
    def between(self, h):
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: t - t.mean(0) if t.ndim else t, lambda t: t
        ):
            return h * h


class Unwraps(Plain):
    def between(self, h):
        return h - torch.func.debug_unwrap(h).detach().mean(0)


FORMS = {
    **{name: (written(*how), own) for name, how in STATES.items()},
    "a hook that keeps": (hook_that_keeps, own),
    "a loss that keeps": (Plain, per_example_loss(keeping_loss)),
    "a mode": (InAMode, own),
    "hooks on saved tensors": (Saves, own),
    "unwrapped": (Unwraps, own),
    "a function": (ByFunction, own),
    "a function with a rule of its own": (ByOwnRule, own),
    "plain": (Plain, own),
    "centred": (Centred, own),
    "large batches": (Large, own),
    "attribute": (Remembers, own),
    "counter": (Counts, own),
    "buffer": (Buffered, own),
    "list": (Listed, own),
    "neighbours": (Shuffled, own),
    "numpy": (Copied, own),
    "a loss over its mean": (Plain, per_example_loss(loss_over_its_mean)),
    "hook": (hooked, own),
    "backward hook": (backward_hooked, own),
    "hook of a gradient": (GradientHooked, own),
}


def clipped_sum(make, loss, x, y, level):
    model = make()
    made = torch.cat(
        per_example_gradients(model, loss, x, y, dense_frame(model), isolation=level), 1
    )
    return (made / made.norm(dim=1, keepdim=True).clamp(min=1)).sum(0)


def moved(name, level):
    """How far the first example, an outlier, moves the clipped sum, in clip norms."""
    torch.manual_seed(0)
    x, y = torch.randn(12, 4), torch.randint(0, 3, (12,))
    x[0] *= 50
    make, loss = FORMS[name]
    sums = [clipped_sum(make, loss, x[first:], y[first:], level) for first in (0, 1)]
    return float((sums[0] - sums[1]).norm())


@pytest.mark.thinned(24)
@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", FORMS)
def test_one_example_moves_the_clipped_sum_by_the_clip_norm(name, level):
    try:
        distance = moved(name, level)
    except (RuntimeError, AttributeError):  # torch has no rule for it: such a model runs by rows
        assert level == "isolated"
        return
    assert distance < 1.001


def test_negative_control_a_rule_of_ones_own_would_see_all_examples(monkeypatch):
    monkeypatch.setattr(batched, "own_code", lambda rule: None)
    assert moved("a function with a rule of its own", "isolated") > 1.01


def test_negative_control_wrong_gradients_are_no_isolation(monkeypatch):
    model, x, y = problem("tower")
    real = vmapped.of_batch
    monkeypatch.setattr(vmapped, "of_batch", lambda t, **given: real(t, **given).flip(0))
    assert level_of_own_code(model, own, x, y) == "rows"


def test_rows_that_the_model_cannot_take_are_an_error():
    model, x, y = problem("tower")
    with pytest.raises(IndexError):
        level_of_own_code(model, own, x + 100, y)


@pytest.mark.parametrize("name", ["centred", "large batches", "attribute", "neighbours", "hook"])
def test_negative_control_the_batch_at_once_mixes(name):
    assert moved(name, "checked") > 1.1


def test_negative_control_attributes_that_stay_are_a_way(monkeypatch):
    @contextmanager
    def nothing(*used):
        yield lambda: False

    monkeypatch.setattr(alone, "forgetting", nothing)
    for name in ("attribute", "list", "a loss that keeps", "a hook that keeps", *STATES):
        assert moved(name, "rows") > 1.01, name


def test_a_row_alone_has_memory_of_its_own():
    x = torch.randn(ROWS, 4)
    assert alone.row_of(x, 2).equal(x[2:3])
    assert alone.row_of(x, 2).untyped_storage().nbytes() == x[2].nbytes
    assert x[2:3].untyped_storage().nbytes() == x.nbytes, "negative control: a view leads to others"


@pytest.mark.parametrize("name", ["a mode", "hooks on saved tensors", "unwrapped"])
def test_negative_control_what_leads_out_of_vmap(name, monkeypatch):
    with pytest.raises(RuntimeError, match=r"all examples"):
        moved(name, "isolated")
    monkeypatch.setattr(batched, "WAYS_OUT", ())
    assert moved(name, "isolated") > 1.01


def test_generators_that_a_model_keeps_draw_in_secret_and_are_as_they_were():
    class Draws(Plain):
        def __init__(self):
            super().__init__()
            self.own = np.random.default_rng(0)

        def between(self, h):
            return h * (1 + self.own.random()) + 0 * h.max().item()

    model, (_, x, y) = Draws(), problem("tower")
    x, before = torch.randn(ROWS, 4), model.own.bit_generator.state
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        frame = dense_frame(model)
        found.append(torch.cat(per_example_gradients(model, own, x, y, frame, isolation="rows"), 1))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert model.own.bit_generator.state == before


def test_negative_control_a_known_layer_that_mixes_is_seen(monkeypatch):
    real = vmapped.of_batch
    monkeypatch.setattr(
        vmapped, "of_batch", lambda t, **given: real(t, **given) - real(t, **given).mean(0)
    )
    assert moved("plain", "isolated") > 1.1


def by_value(outputs, y):
    """A loss with control flow on values, which vmap has no rule for."""
    each = F.cross_entropy(outputs, y, reduction="none")
    return each * 2 if bool((outputs > 0).any()) else each


def with_pairs(outputs, y):
    return F.cross_entropy(outputs[0], y, reduction="none") + outputs[1].square().sum(1)


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        return self.last(x), x[:, :2] @ self.last.weight[:2, :2]


@dataclass
class WithoutHash:
    """A dataclass with ``__eq__`` has no hash."""

    loss: object

    def __call__(self, outputs, y):
        return self.loss(outputs, y)


class WithoutReferences:
    """An object with ``__slots__`` has no weak references."""

    __slots__ = ("loss",)

    def __init__(self, loss):
        self.loss = loss

    def __call__(self, outputs, y):
        return self.loss(outputs, y)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", [WithoutHash, WithoutReferences])
@pytest.mark.parametrize("loss", [by_value, loss_over_its_mean])
def test_a_loss_may_be_an_object_without_a_hash_or_weak_references(loss, kind, level):
    torch.manual_seed(0)
    x, y = torch.randn(3, 4), torch.randint(0, 3, (3,))
    model = nn.Linear(4, 3)
    frame = dense_frame(model)
    passes.forget_loss(kind(loss))
    plain, wrapped = (
        per_example_gradients(model, given, x, y, frame, isolation=level)
        for given in (loss, kind(loss))
    )
    for one, other in zip(plain, wrapped, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss", [by_value, loss_over_its_mean])
def test_a_loss_of_a_library_model_sees_the_outputs_of_one_example(loss, level):
    torch.manual_seed(0)
    x, y = torch.randn(12, 4), torch.randint(0, 3, (12,))
    model, loss = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), per_example_loss(loss)
    frame = dense_frame(model)
    whole, rest = (
        torch.cat(per_example_gradients(model, loss, x[k:], y[k:], frame, isolation=level), 1)
        for k in (0, 1)
    )
    assert torch.allclose(whole[1:], rest, atol=1e-6)
    mixed = [
        torch.cat(per_example_gradients(model, loss, x[k:], y[k:], frame, isolation="checked"), 1)
        for k in (0, 1)
    ]
    assert loss.loss is by_value or not torch.allclose(mixed[0][1:], mixed[1], atol=1e-6)


class Flips(torch.autograd.Function):
    """Keeps in backward whether a gradient was large."""

    sign = 1.0

    @staticmethod
    def forward(ctx, outputs):
        return outputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        if float(gradient.norm()) > 5:
            Flips.sign = -1.0
        return gradient * Flips.sign


def flipping(outputs, y):
    return (Flips.apply(outputs) - F.one_hot(y, 3)).square().sum(1)


def flipped():
    """How far an outlier at the start moves the other examples' gradients."""
    torch.manual_seed(0)
    x, y = torch.randn(12, 4), torch.randint(0, 3, (12,))
    x[0] *= 1e4
    model, loss = nn.Linear(4, 3), per_example_loss(flipping)
    made = []
    for first in (0, 1):
        Flips.sign = 1.0
        parts = per_example_gradients(
            model, loss, x[first:], y[first:], dense_frame(model), isolation="isolated"
        )
        made.append(torch.cat(parts, 1))
    assert error([made[1]], [naive_of(model, loss, x[1:], y[1:])]) < 1e-5
    return float((made[0][1:] - made[1]).norm())


def naive_of(model, loss, x, y):
    """Gradients of batches of one."""
    Flips.sign = 1.0
    rows = []
    for row in range(len(x)):
        losses = loss(model(x[row : row + 1]), y[row : row + 1])
        found = torch.autograd.grad(losses.sum(), list(model.parameters()))
        rows.append(torch.cat([g.flatten() for g in found]))
    return torch.stack(rows)


def test_what_a_loss_keeps_in_backward_is_put_back():
    assert flipped() < 1e-6


def test_negative_control_a_loss_that_keeps_in_backward_is_a_way(monkeypatch):
    @contextmanager
    def nothing(*used, together=False):
        yield lambda: False

    monkeypatch.setattr(loss_on_rows, "forgetting", nothing)
    monkeypatch.setattr(passes, "forgetting", nothing)
    assert flipped() > 0.1


@pytest.mark.parametrize("level", LEVELS)
def test_several_outputs(level):
    torch.manual_seed(0)
    model, x, y = Pairs(), torch.randn(6, 4), torch.randint(0, 3, (6,))
    loss, frame = per_example_loss(with_pairs), dense_frame(model)
    got = per_example_gradients(model, loss, x, y, frame, isolation=level)
    assert error(got, naive(model, loss, x, y, frame)) < 1e-4


def test_a_patched_layer_of_torch_does_not_see_the_batch(monkeypatch):
    honest = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: honest(self, x - x.mean(0)))
    assert moved("plain", "isolated") < 1.001
    monkeypatch.setattr(passes, "patched_layers", lambda prepared: set())  # a negative control
    assert moved("plain", "isolated") > 1.1


def test_the_time_is_that_of_the_whole_batch_and_not_of_a_few_rows(monkeypatch):
    """A pass over the batch is long for its first row: at 7 rows the factor would be 6."""

    def seconds(model, loss, x, y, frame, level):
        return len(y) * 0.02 if level == "rows" else 0.02 + len(y) * 1e-4

    monkeypatch.setattr(trial, "_seconds", seconds)
    given = *problem("routed")[:1], own, *problem("routed")[1:]
    for most in (1, 3, 100, 4096):
        true = seconds(*given[:2], None, range(most), None, "rows") / (0.02 + most * 1e-4)
        assert slowdown(*given, "rows", most) == pytest.approx(true, rel=1e-6)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


def filled(x, zeros):
    zeros[:] = x
    return zeros


SLOW = {
    "a function": (Reverse.apply, "generate_vmap_rule = True"),
    "a buffer": (lambda x: filled(x, torch.zeros(x.shape)), r"x.new_zeros\(...\)"),
    "a branch": (lambda x: x if x.sum() > 0 else -x, "torch.where"),
}


@pytest.mark.parametrize("case", SLOW)
def test_rows_says_its_cause_its_line_and_the_way_out(case, monkeypatch):
    monkeypatch.setattr(trial, "slowdown", lambda *given: None)  # no comparison is possible
    model, x, y = problem("temperature")
    model.register_forward_hook(lambda module, given, out: SLOW[case][0](out))
    said = word_on(model, own, x, y, "rows", ROWS)
    assert re.search(
        rf"^one pass for each example; .*vmap: RuntimeError: .*line \d+: .*{SLOW[case][1]}", said
    )
    assert "times" not in said


def test_isolated_says_nothing_where_it_cannot_be_compared(monkeypatch):
    monkeypatch.setattr(trial, "slowdown", lambda *given: None)
    model, x, y = problem("temperature")
    assert word_on(model, own, x, y, "isolated", ROWS) == ""


def test_the_buffer_of_the_way_out_is_isolated():
    model, x, y = problem("temperature")
    model.register_forward_hook(lambda module, given, out: filled(out, out.new_zeros(out.shape)))
    assert level_of_own_code(model, own, x, y) == "isolated"
