"""Blocks of whole models against the naive reference; one row, one example; no dense gradient of a
carried weight.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import fedlsg.gradients.hooked_pass.blocks as blocks
from fedlsg.frame import Block, Coordinates, Frame, Keep, make_blocks
from fedlsg.frame.forms import FORMS
from fedlsg.gradients.formulas.layers import LinearGradients
from fedlsg.gradients.hooked_pass.model_facts import prepare
from fedlsg.gradients.hooked_pass.precision import FLOAT32
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.gradients.per_example import summed_gradient
from fedlsg.lowrank import decompose
from tests.fedlsg.support.gradient_oracle import (
    TOLERANCE,
    cross_entropy,
    error,
    make_core_frame,
    make_frame,
    naive,
    naive_error,
    squared_error,
)
from tests.fedlsg.support.problems import cnn, make, mlp, standardised, transformer, wide

problems = pytest.mark.parametrize("problem", [mlp, cnn, transformer])


@problems
@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.5])
@pytest.mark.parametrize(
    "kind", [{}, {"flat": True}, {"carry": False}, {"carry": False, "flat": True}]
)
def test_blocks_equal_projected_autograd_gradients(problem, sparsity, kind):
    model, loss_fn, inputs, targets = make(problem)
    frame = make_frame(model, rank=2, sparsity=sparsity, **kind)
    got = per_example_gradients(model, loss_fn, inputs, targets, frame)
    assert error(got, naive(model, loss_fn, inputs, targets, frame)) < TOLERANCE
    assert sum(t.shape[1] for t in got) == frame.kept


@problems
def test_a_row_depends_on_its_own_example_alone(problem):
    model, loss_fn, inputs, targets = make(problem, torch.float32)
    frame = make_frame(model, rank=2, sparsity=0.3)
    before = per_example_gradients(model, loss_fn, inputs, targets, frame)
    other = inputs if isinstance(inputs, Tensor) else inputs["mask"]
    with torch.no_grad():
        other[1] = 1 - other[1] if other.is_floating_point() else ~other[1]
    after = per_example_gradients(model, loss_fn, inputs, targets, frame)
    rest = [i for i in range(len(targets)) if i != 1]
    assert all(torch.equal(a[rest], b[rest]) for a, b in zip(after, before, strict=True))
    assert not all(torch.equal(a[1], b[1]) for a, b in zip(after, before, strict=True))


def test_a_gradient_mixed_with_another_examples_is_caught(monkeypatch):
    """Negative control of the oracle."""
    honest = LinearGradients.left
    monkeypatch.setattr(
        LinearGradients, "left", lambda self, g, u: honest(self, g, u + 0.01 * u.roll(1, 0))
    )
    model, loss_fn, inputs, targets = make(mlp)
    frame = make_frame(model, rank=2, sparsity=0.0)
    assert naive_error(model, loss_fn, inputs, targets, frame) > 1e-6


def test_a_mean_loss_is_refused_and_its_plant_is_caught():
    model, loss_fn, inputs, targets = make(mlp)
    frame = make_frame(model, rank=2, sparsity=0.0)
    with pytest.raises(
        ValueError, match=r"one loss an example, shape \(5,\), got shape \(\): use reduction='none'"
    ):
        per_example_gradients(model, F.cross_entropy, inputs, targets, frame)

    def planted(outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels, reduction="none") / len(labels)

    got = per_example_gradients(model, planted, inputs, targets, frame)
    assert error(got, naive(model, loss_fn, inputs, targets, frame)) > 1e-2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stays_in_its_row(value):
    model, loss_fn, inputs, targets = make(cnn)
    frame = make_frame(model, rank=2, sparsity=0.3)
    before = per_example_gradients(model, loss_fn, inputs, targets, frame)
    inputs[2] = value
    after = per_example_gradients(model, loss_fn, inputs, targets, frame)
    assert error([t[[0, 1, 3]] for t in after], [t[[0, 1, 3]] for t in before]) < TOLERANCE
    assert not all(t[2].isfinite().all() for t in after)


class ForbidShapes(TorchDispatchMode):
    """Fails on any tensor that an operation makes in the shape of a carried weight, batched or not,
    flat or turned.

    Views of the weights themselves are no gradients.
    """

    def __init__(self, model: nn.Module, frame: Frame, batch: int) -> None:
        super().__init__()
        self.weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.made = 0
        self.forbidden: set[tuple[int, ...]] = set()
        for c in frame.coordinates:
            if c.carried:
                m, n, taps = c.shape[0], math.prod(c.shape[1:]), c.shape[2:]
                forms = {
                    c.shape,
                    (m, n),
                    (n, m),
                    (m * n,),
                    (c.shape[1], m, *taps),
                    (c.shape[1], *taps, m),
                }
                self.forbidden |= forms | {(batch, *form) for form in forms}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        for t in results if isinstance(results, tuple | list) else [results]:
            if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in self.weights:
                self.made += 1
                assert tuple(t.shape) not in self.forbidden, (
                    f"{func} made a tensor of shape {tuple(t.shape)}"
                )
        return results


def carried_problem() -> tuple[nn.Module, Tensor, Tensor, Frame]:
    """Sizes that no activation shares with a weight, its transpose or its flattened form."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(5, 7, 3, padding=1, bias=False),
        nn.Tanh(),
        nn.Conv2d(7, 11, 3, stride=2),
        nn.Flatten(2),
        nn.Linear(25, 17),
        nn.Tanh(),
        nn.Linear(17, 19),
    )
    frame = make_frame(model, rank=2, sparsity=0.0)
    assert sum(c.carried for c in frame.coordinates) == 4
    return model, torch.randn(13, 5, 11, 12), torch.randn(13), frame


@pytest.mark.parametrize("sparsity", [0.0, 0.5])
def test_no_weight_shaped_gradient_is_ever_formed(sparsity):
    model, x, targets, _ = carried_problem()
    frame = make_frame(model, rank=2, sparsity=sparsity)
    with ForbidShapes(model, frame, len(x)) as watch:
        per_example_gradients(model, squared_error, x, targets, frame)
    assert watch.made > 30


def uncarried():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 16, 4)
    ).double()
    where = tuple(Coordinates(name=n, shape=tuple(p.shape)) for n, p in model.named_parameters())
    return model, Frame(coordinates=where, blocks=make_blocks(where))


@pytest.mark.parametrize("batch", [0, 1, 7])
def test_the_plain_sum_is_the_sum_over_rows(batch):
    model, frame = uncarried()
    kept = Block(
        parameter="3.weight",
        part="dense",
        shape=(4, 48),
        keep=Keep(axis=1, index=torch.tensor([1, 5])),
    )
    masked = Frame(coordinates=frame.coordinates, blocks=(*frame.blocks[:2], kept, frame.blocks[3]))
    inputs, targets = torch.randn(batch, 1, 6, 6, dtype=torch.float64), torch.randint(4, (batch,))
    for f in (frame, masked):
        rows = per_example_gradients(model, cross_entropy, inputs, targets, f)
        got = summed_gradient(model, cross_entropy, inputs, targets, f)
        torch.testing.assert_close(
            got, torch.cat([block.sum(0) for block in rows]), rtol=1e-12, atol=1e-14
        )
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


every_problem = pytest.mark.parametrize("problem", [mlp, cnn, transformer, standardised, wide])


@every_problem
@pytest.mark.parametrize("ranks", [(2, 3), (3, 2), (1, 1), (100, 2)])
def test_core_blocks_equal_those_of_autograd(problem, ranks):
    """Linear, convolution (stride, padding), standardized convolution; ranks differ, carriers have
    any scale.
    """
    model, loss_fn, inputs, targets = make(problem)
    frame = make_core_frame(model, out_rank=ranks[0], rank=ranks[1])
    assert naive_error(model, loss_fn, inputs, targets, frame) < TOLERANCE


@every_problem
def test_with_square_orthonormal_carriers_the_lift_is_the_dense_gradient(problem):
    model, loss_fn, inputs, targets = make(problem)
    core = make_core_frame(model, out_rank=1, rank=1, square=True)
    dense = make_frame(model, rank=1, sparsity=0.0, carry=False)
    cores = per_example_gradients(model, loss_fn, inputs, targets, core)
    wanted = per_example_gradients(model, loss_fn, inputs, targets, dense)
    for i in range(len(targets)):
        lifted = core.gradients(torch.cat([block[i] for block in cores]))
        assert (
            error(
                [lifted[c.name].flatten() for c in dense.coordinates],
                [block[i] for block in wanted],
            )
            < TOLERANCE
        )


@pytest.mark.parametrize("scale", [1e-9, 0.5, 1.0, 2.0, 1e9])
def test_the_shortcut_through_the_output_is_taken_for_carriers_of_w_alone(scale):
    torch.manual_seed(1)
    model = nn.Linear(9, 5).double()
    x = torch.randn(4, 9).double()
    targets = torch.randn(4).double()
    L, R = decompose(model.weight, 2, generator=torch.Generator().manual_seed(0))
    where = (
        Coordinates(name="weight", shape=(5, 9), L=L, R=scale * R, form=FORMS["core"]),
        Coordinates(name="bias", shape=(5,)),
    )
    frame = Frame(coordinates=where, blocks=make_blocks(where))
    (layer,) = prepare(model, frame, FLOAT32, ()).layers
    assert (layer.carried.A is not None) == (scale == 1)
    got = per_example_gradients(model, squared_error, x, targets, frame)[0]
    torch.testing.assert_close(
        got, naive(model, squared_error, x, targets, frame)[0], rtol=1e-9, atol=0
    )


@pytest.mark.parametrize("plant", ["mixed examples", "unfinished"])
def test_planted_mistakes_are_seen(plant, monkeypatch):
    problem = standardised if plant == "unfinished" else mlp
    if plant == "unfinished":
        monkeypatch.setattr(blocks, "finish_core", lambda value, *rest: value)
    else:
        honest = LinearGradients.left
        monkeypatch.setattr(
            LinearGradients, "left", lambda self, g, u: honest(self, g, u + 0.01 * u.roll(1, 0))
        )
    model, loss_fn, inputs, targets = make(problem)
    frame = make_core_frame(model, out_rank=2, rank=3)
    assert naive_error(model, loss_fn, inputs, targets, frame) > 1e-6
