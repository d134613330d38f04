"""Heads: which fit which features, their sizes, and that private training supports them."""

import pytest
import torch

from fedlsg.gradients.per_example import per_example_gradients
from simulations.models.small import heads
from tests.fedlsg.support.gradient_oracle import TOLERANCE, cross_entropy, error, make_frame, naive

MAPS, VECTOR = (6, 4, 4), (10,)


@pytest.mark.parametrize(
    ("shape", "names"),
    [(VECTOR, ["linear", "mlp"]), (MAPS, ["linear", "mlp", "cnn"]), ((6, 3, 3), ["linear", "mlp", "cnn"])],
)
def test_heads_that_fit(shape, names):
    assert list(heads(shape, 3)) == names


@pytest.mark.parametrize(("shape", "name"), [((6, 3, 3), "cnn"), (VECTOR, "linear"), (MAPS, "mlp"), (MAPS, "cnn")])
def test_per_example_gradients_equal_autograd(shape, name):
    torch.manual_seed(0)
    model = heads(shape, 3, width=4)[name]().double()
    x, targets = torch.randn(3, *shape).double(), torch.tensor([0, 1, 2])
    frame = make_frame(model, rank=2, sparsity=0.3)
    got = per_example_gradients(model, cross_entropy, x, targets, frame)
    assert error(got, naive(model, cross_entropy, x, targets, frame)) < TOLERANCE
