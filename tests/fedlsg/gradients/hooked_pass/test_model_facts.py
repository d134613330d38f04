"""A model that changes between two passes in one frame: what was found out about it before does not
count.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from fedlsg.gradients import check
from fedlsg.gradients.hooked_pass import model_facts
from fedlsg.gradients.hooked_pass.supported import UnsupportedLayerError
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.user_code.fingerprint import Fingerprint
from tests.fedlsg.support.gradient_oracle import TOLERANCE, make_frame, naive_error, squared_error


class Net(nn.Module):
    """Layers of every way: formulas, a call, a use."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scale = nn.Embedding(11, 6), nn.Parameter(torch.randn(6))
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4)
        self.drop, self.batch = nn.Dropout(0.0), nn.BatchNorm1d(8).requires_grad_(False).eval()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.drop(
            self.norm(self.batch(torch.tanh(self.first((self.words(ids) * self.scale).mean(1)))))
        )
        return self.last(x)


def problem() -> tuple[Net, Tensor, Tensor]:
    torch.manual_seed(0)
    return Net().double(), torch.randint(11, (5, 3)), torch.randn(5, dtype=torch.float64)


def replace_layer(model: Net) -> None:
    model.last = nn.Linear(8, 4).double()


def replace_parameter(model: Net) -> None:
    model.first.weight = nn.Parameter(torch.randn_like(model.first.weight))


def new_values(model: Net) -> None:
    model.first.weight.data.mul_(3)  # which no version counts


def new_memory(model: Net) -> None:
    model.first.weight.data = torch.randn_like(model.first.weight)


def doubled_by_a_hook(model: Net) -> None:
    model.first.register_forward_hook(lambda module, args, output: 2 * output)


def added_by_a_hook_before(model: Net) -> None:
    model.last.register_forward_pre_hook(lambda module, args: (args[0] + 1,))


def other_epsilon(model: Net) -> None:
    model.norm.eps = 0.5


def own_forward(model: Net) -> None:
    model.norm.forward = lambda x: x * model.norm.weight + model.norm.bias


def other_class(model: Net) -> None:
    class Twice(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model.first.__class__ = Twice


SOUND: dict[str, Callable[[Net], None]] = {
    f.__name__: f
    for f in (
        replace_layer,
        replace_parameter,
        new_values,
        new_memory,
        doubled_by_a_hook,
        added_by_a_hook_before,
        other_epsilon,
        own_forward,
        other_class,
    )
}


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("change", SOUND)
def test_a_change_that_is_sound_is_followed(change, carry):
    model, x, y = problem()
    model.words.requires_grad_(not carry)  # tables cannot be carried
    frame = make_frame(model, rank=2, sparsity=0.0, carry=carry)
    if carry and change in ("own_forward", "other_class"):
        pytest.skip("such a layer cannot be carried")
    assert naive_error(model, squared_error, x, y, frame) < TOLERANCE
    SOUND[change](model)
    assert naive_error(model, squared_error, x, y, frame) < TOLERANCE


def batch_norm_trains(model: Net) -> None:
    model.batch.train()


def tie(model: Net) -> None:
    model.norm.weight = model.norm.bias


def freeze(model: Net) -> None:
    model.first.bias.requires_grad_(False)


def reshape(model: Net) -> None:
    model.last.weight.data = torch.randn(5, 8, dtype=torch.float64)


def hook_gradient(model: Net) -> None:
    model.last.weight.register_hook(lambda g: 2 * g)


def count_rows(model: Net) -> None:
    model.words.scale_grad_by_freq = True


def clip_rows(model: Net) -> None:
    model.words.max_norm = 1.0


def prune_weight(model: Net) -> None:
    prune.l1_unstructured(model.last, "weight", 0.5)


def add_layer(model: Net) -> None:
    model.drop.more = nn.Linear(2, 2).double()


REFUSED: dict[str, Callable[[Net], None]] = {
    f.__name__: f
    for f in (
        batch_norm_trains,
        tie,
        freeze,
        reshape,
        hook_gradient,
        count_rows,
        clip_rows,
        prune_weight,
        add_layer,
    )
}


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("change", REFUSED)
def test_a_change_that_is_unsound_is_refused(change, checked):
    """Also where the owner says that the model was checked."""
    model, x, y = problem()
    frame = make_frame(model, rank=2, sparsity=0.0, carry=False)
    before = check(model, frame)
    per_example_gradients(model, squared_error, x, y, frame, checked=before)
    REFUSED[change](model)
    with pytest.raises(UnsupportedLayerError):
        per_example_gradients(
            model, squared_error, x, y, frame, checked=before if checked else None
        )


def test_a_model_that_has_not_changed_is_checked_once(monkeypatch):
    model, x, y = problem()
    frames = [make_frame(model, rank=2, sparsity=0.0, carry=False) for _ in range(2)]
    seen: list[nn.Module] = []
    monkeypatch.setattr(
        "fedlsg.gradients.hooked_pass.model_facts.check_supported", lambda model: seen.append(model)
    )
    for frame in (*frames, *frames):
        per_example_gradients(model, squared_error, x, y, frame)
    assert len(seen) == 1
    model_facts.forget(model)  # negative control
    per_example_gradients(model, squared_error, x, y, frames[0])
    assert len(seen) == 2


class Turned(nn.Module):
    """Calls its layer on positions first, as soon as it is told so; ``Identity`` is there for
    hooks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Identity()
        self.inner = nn.Linear(4, 6)
        self.after = nn.Identity()
        self.last = nn.Linear(6, 3)
        self.positions_first = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x.transpose(0, 1) if self.positions_first else x)
        x = self.after(torch.tanh(self.inner(x)))
        return self.last(x.transpose(0, 1) if self.positions_first else x).mean(1)


def by_attribute(model: Turned) -> None:
    model.positions_first = True


def by_hooks(model: Turned) -> None:
    for module in (model.before, model.after):
        module.register_forward_hook(lambda module, args, output: output.transpose(0, 1))


def by_another_forward(model: Turned) -> None:
    for module in (model.before, model.after):
        module.forward = lambda x: x.transpose(0, 1)


TURNS = (by_attribute, by_hooks, by_another_forward)


def turned_problem() -> tuple[Turned, Tensor, Tensor]:
    """As many positions as examples: no shape tells them apart. Its modules have a ``forward`` of
    their own.
    """
    torch.manual_seed(0)
    model = Turned().double()
    for module in (model.before, model.after):
        module.forward = lambda x: x
    return model, torch.randn(5, 5, 4, dtype=torch.float64), torch.randn(5, dtype=torch.float64)


@pytest.mark.parametrize("turn", TURNS)
def test_examples_that_change_places_are_followed(turn):
    """Else parts of several examples would be clipped as one."""
    model, x, y = turned_problem()
    frame = make_frame(model, rank=2, sparsity=0.0, carry=False)
    assert naive_error(model, squared_error, x, y, frame) < TOLERANCE
    turn(model)
    assert naive_error(model, squared_error, x, y, frame) < TOLERANCE


@pytest.mark.parametrize("turn", TURNS)
def test_negative_control_marks_that_never_change_mix_examples(turn, monkeypatch):
    model, x, y = turned_problem()
    frame = make_frame(model, rank=2, sparsity=0.0, carry=False)
    monkeypatch.setattr(
        model_facts, "fingerprint_of_modules", lambda model: Fingerprint((), (), (), (), ())
    )
    assert naive_error(model, squared_error, x, y, frame) < TOLERANCE
    turn(model)
    assert naive_error(model, squared_error, x, y, frame) > 0.1
