"""Core blocks S = L^T dW R^T of each example against autograd's dense gradients, one example after another."""

import pytest
import torch
from torch import nn

import fedlsg.gradients.blocks as blocks
import fedlsg.gradients.plan as plan
from fedlsg.forms import FORMS
from fedlsg.frame import Coordinates, Frame, make_blocks
from fedlsg.gradients.formulas.layers import LinearGradients
from fedlsg.gradients.per_example import per_example_gradients
from fedlsg.lowrank import decompose
from tests.fedlsg.support.gradient_oracle import (
    TOLERANCE,
    error,
    make_core_frame,
    make_frame,
    naive,
    naive_error,
    squared_error,
)
from tests.fedlsg.support.problems import cnn, make, mlp, standardised, transformer, wide

problems = pytest.mark.parametrize("problem", [mlp, cnn, transformer, standardised, wide])


@problems
@pytest.mark.parametrize("ranks", [(2, 3), (3, 2), (1, 1), (100, 2)])
def test_core_blocks_equal_those_of_autograd(problem, ranks):
    """Linear, convolution (stride, padding), standardized convolution; ranks differ, carriers have any scale."""
    model, loss_fn, inputs, targets = make(problem)
    frame = make_core_frame(model, out_rank=ranks[0], rank=ranks[1])
    assert naive_error(model, loss_fn, inputs, targets, frame) < TOLERANCE


@problems
def test_with_square_orthonormal_carriers_the_lift_is_the_dense_gradient(problem):
    model, loss_fn, inputs, targets = make(problem)
    core, dense = make_core_frame(model, out_rank=1, rank=1, square=True), make_frame(
        model, rank=1, sparsity=0.0, carry=False
    )  # fmt: skip
    cores = per_example_gradients(model, loss_fn, inputs, targets, core)
    wanted = per_example_gradients(model, loss_fn, inputs, targets, dense)
    for i in range(len(targets)):
        lifted = core.gradients(torch.cat([block[i] for block in cores]))
        assert error([lifted[c.name].flatten() for c in dense.coordinates], [block[i] for block in wanted]) < TOLERANCE


@pytest.mark.parametrize("scale", [1e-9, 0.5, 1.0, 2.0, 1e9])
def test_the_shortcut_through_the_output_is_taken_for_carriers_of_w_alone(scale):
    torch.manual_seed(1)
    model, x, targets = nn.Linear(9, 5).double(), torch.randn(4, 9).double(), torch.randn(4).double()
    L, R = decompose(model.weight, 2, generator=torch.Generator().manual_seed(0))
    where = (
        Coordinates(name="weight", shape=(5, 9), L=L, R=scale * R, form=FORMS["core"]),
        Coordinates(name="bias", shape=(5,)),
    )
    frame = Frame(coordinates=where, blocks=make_blocks(where))
    (layer,) = plan.plan(model, frame)
    assert (layer.carried.A is not None) == (scale == 1)
    got = per_example_gradients(model, squared_error, x, targets, frame)[0]
    torch.testing.assert_close(got, naive(model, squared_error, x, targets, frame)[0], rtol=1e-9, atol=0)


@pytest.mark.parametrize("plant", ["mixed examples", "unfinished"])
def test_planted_mistakes_are_seen(plant, monkeypatch):
    problem = standardised if plant == "unfinished" else mlp
    if plant == "unfinished":
        monkeypatch.setattr(blocks, "finish_core", lambda value, *rest: value)
    else:
        honest = LinearGradients.left
        monkeypatch.setattr(LinearGradients, "left", lambda self, g, u: honest(self, g, u + 0.01 * u.roll(1, 0)))
    model, loss_fn, inputs, targets = make(problem)
    frame = make_core_frame(model, out_rank=2, rank=3)
    assert naive_error(model, loss_fn, inputs, targets, frame) > 1e-6
