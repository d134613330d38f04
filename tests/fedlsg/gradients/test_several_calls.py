"""Layers that are called several times, and weights (n, m): gradients, what one example moves, and planted mistakes."""

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from fedlsg.gradients import block_gradients
from fedlsg.gradients.formulas.layers import TransposedLinear
from fedlsg.gradients.hooks import Pass
from fedlsg.privacy import Mechanism, clipped_sum
from tests.fedlsg.support.gradient_oracle import TOLERANCE, make_frame, naive_error, squared_error

BATCH = 5


class Depth(nn.Module):
    """One layer, its norm and its convolution for every step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm, self.turned = nn.Linear(4, 4), nn.LayerNorm(4), TransposedLinear(4, 4)
        nn.init.normal_(self.turned.weight)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.norm(self.turned(self.layer(x)).tanh()) + x
        return x


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(1)
    return Depth().double(), torch.randn(BATCH, 3, 4, dtype=torch.float64), torch.randn(BATCH, dtype=torch.float64)


@pytest.mark.parametrize(("sparsity", "flat", "carry"), product((0.0, 0.4), (False, True), (False, True)))
def test_gradients_of_the_calls_are_added(sparsity, flat, carry):
    model, x, y = problem()
    frame = make_frame(model, rank=2, sparsity=sparsity, carry=carry, flat=flat)
    assert naive_error(model, squared_error, x, y, frame) < TOLERANCE


def moved(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """How far the first example moves the clipped sum, in clip norms."""
    mechanism = Mechanism(kind="clip-only", clip_norm=0.1)
    frame = make_frame(model, rank=2, sparsity=0.0)
    whole, rest = (
        clipped_sum(block_gradients(model, squared_error, x[i:], y[i:], frame), mechanism, wide=True) for i in (0, 1)
    )
    return float((whole - rest).norm()) / 0.1


def test_one_example_moves_the_sum_by_the_clip_norm(monkeypatch):
    """Planted: calls become blocks of other examples, and each is clipped alone."""
    model, x, y = problem()
    assert moved(model, x, y) <= 1 + 1e-9

    def apart(self: Pass, position: int, value: Tensor) -> None:
        before = self.values[position]
        self.values[position] = value if before is None else torch.cat([before, value])

    monkeypatch.setattr(Pass, "add", apart)
    model.norm.requires_grad_(False)
    assert moved(model, x, y) > 1.5
