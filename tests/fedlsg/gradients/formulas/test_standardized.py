"""Weight-standardised convolutions: their per-example gradients against autograd, goldens, planted mistakes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedlsg.gradients.formulas.standardized import (
    StandardizedConv2d,
)
from tests.fedlsg.support.gradient_oracle import TOLERANCE, make_frame, naive_error, squared_error

masks = {"sparsity": st.sampled_from([0.0, 0.3, 0.5]), "rank": st.integers(1, 4), "flat": st.booleans()}


@st.composite
def problems(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """A standardised convolution under tanh, and a batch; some filters are nearly constant, or all zeros."""
    pair = st.tuples
    kernel, dilation = draw(pair(*[st.integers(1, 3)] * 2)), draw(pair(*[st.integers(1, 2)] * 2))
    stride, padding = draw(pair(*[st.integers(1, 3)] * 2)), draw(pair(*[st.integers(0, 2)] * 2))
    channels, filters = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    conv = StandardizedConv2d(
        channels, filters, kernel, stride=stride, padding=padding, dilation=dilation, bias=draw(st.booleans())
    )
    torch.manual_seed(draw(st.integers(0, 9)))
    for p in conv.parameters():
        nn.init.normal_(p)
    with torch.no_grad():
        conv.weight[0].mul_(draw(st.sampled_from([0.0, 1e-3, 1.0, 100.0]))).add_(draw(st.sampled_from([0.0, 0.3])))
    size = [d * (k - 1) + 1 + draw(st.integers(0, 3)) for k, d in zip(kernel, dilation, strict=True)]
    return nn.Sequential(conv, nn.Tanh()).double(), torch.randn(draw(st.integers(1, 3)), channels, *size).double()


def gradient_error(model: nn.Module, x: Tensor, *, rank: int, sparsity: float, flat: bool, carry: bool = True) -> float:
    targets = torch.linspace(-1, 1, len(x)).double()
    frame = make_frame(model, rank=rank, sparsity=sparsity, carry=carry, flat=flat)
    return naive_error(model, squared_error, x, targets, frame)


@given(problem=problems(), carry=st.booleans(), **masks)
@settings(max_examples=150, deadline=None)
def test_blocks_equal_autograd(problem, carry, sparsity, rank, flat):
    assert gradient_error(*problem, rank=rank, sparsity=sparsity, flat=flat, carry=carry) < TOLERANCE


def stack(bias: bool = True) -> tuple[nn.Module, Tensor]:
    """Two standardised convolutions with norms between, as in a network."""
    torch.manual_seed(4)
    layers = [
        StandardizedConv2d(4, 6, 3, stride=2, padding=1, bias=bias),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        StandardizedConv2d(6, 8, 3, padding=1, bias=bias),
        nn.Flatten(),
        nn.Linear(8 * 3 * 3, 3),
    ]
    model = nn.Sequential(*layers).double()
    for p in model.parameters():
        nn.init.normal_(p)
    return model, torch.randn(3, 4, 6, 6).double()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("carry", [True, False])
def test_a_network_of_them_equals_autograd(bias, carry):
    assert gradient_error(*stack(bias), rank=3, sparsity=0.3, flat=False, carry=carry) < TOLERANCE


# Planted mistakes: each must make the blocks differ from autograd's.
