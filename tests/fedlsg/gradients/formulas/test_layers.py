"""Blocks of every supported layer against autograd, a golden by hand, and planted mistakes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedlsg.gradients.formulas.layers import units
from tests.fedlsg.support.gradient_oracle import TOLERANCE, make_frame, naive_error, squared_error

sizes = st.integers(1, 7)
quick = settings(max_examples=60, deadline=None)
even_same = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
masks = {"sparsity": st.sampled_from([0.0, 0.3, 0.5]), "rank": st.integers(1, 4), "flat": st.booleans()}


def layer_error(layer: nn.Module, x: Tensor, *, rank: int, sparsity: float, flat: bool, carry: bool = True) -> float:
    """Error of one layer's blocks. A frozen layer behind it makes the gradient differ between positions."""
    torch.manual_seed(5)
    for p in layer.parameters():
        nn.init.normal_(p)
    model = nn.Sequential(layer, nn.Tanh()).double()
    x, targets = x.double(), torch.randn(len(x), dtype=torch.float64)
    frame = make_frame(model, rank=rank, sparsity=sparsity, carry=carry, flat=flat)
    return naive_error(model, squared_error, x, targets, frame)


@given(
    m=sizes, n=sizes, batch=st.integers(1, 4), positions=st.lists(st.integers(1, 5), max_size=2),
    bias=st.booleans(), carry=st.booleans(), **masks,
)  # fmt: skip
@quick
def test_linear(m, n, batch, positions, bias, carry, sparsity, rank, flat):
    layer, x = nn.Linear(n, m, bias=bias), torch.randn(batch, *positions, n)
    assert layer_error(layer, x, rank=rank, sparsity=sparsity, flat=flat, carry=carry) < TOLERANCE


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Linear(4, 5), (3, 4)), (nn.Conv2d(1, 9, 2), (3, 1, 5, 5))], ids=["linear", "conv"]
)
@pytest.mark.parametrize("carry", [True, False])
def test_a_bias_that_comes_before_its_weight(layer, shape, carry):
    """As after ``del layer.weight`` and a new one: the blocks of the layer have another order."""
    weight = layer.weight
    del layer.weight
    layer.weight = weight
    assert next(iter(layer._parameters)) == "bias"
    assert layer_error(layer, torch.randn(shape), rank=2, sparsity=0.3, flat=False, carry=carry) < TOLERANCE


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Conv2d, Tensor]:
    """A convolution and an input that fits under its kernel."""
    pair = st.tuples
    kernel, dilation = draw(pair(*[st.integers(1, 4)] * 2)), draw(pair(*[st.integers(1, 3)] * 2))
    stride, padding = draw(pair(*[st.integers(1, 3)] * 2)), draw(pair(*[st.integers(0, 4)] * 2))
    named = draw(st.sampled_from([None, None, "same", "valid"]))
    channels, filters = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    conv = nn.Conv2d(
        channels,
        filters,
        kernel,
        stride=1 if named == "same" else stride,
        padding=named or padding,
        dilation=dilation,
        bias=draw(st.booleans()),
    )
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    unpadded = [r if named == "valid" else max(1, r - 2 * p) for r, p in zip(reach, padding, strict=True)]
    size = [u + draw(st.integers(0, 4)) for u in unpadded]
    x = torch.randn(draw(st.integers(1, 3)), channels, *size)
    return conv, x.contiguous(memory_format=torch.channels_last) if draw(st.booleans()) else x


@even_same
@given(layer=convolutions(), carry=st.booleans(), **masks)
@settings(max_examples=150, deadline=None)
def test_convolution(layer, carry, sparsity, rank, flat):
    assert layer_error(*layer, rank=rank, sparsity=sparsity, flat=flat, carry=carry) < TOLERANCE


@pytest.mark.parametrize("order", ["as made", "channels last", "turned"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((4, 7), 1), ((4, 7), 0), ((4, 3, 7), -1), ((0, 3, 7), 2), ((4, 7, 3, 2), 1)]
)
def test_kept_units_are_the_same_whatever_lies_side_by_side(shape, axis, order):
    t = torch.randn(shape)
    if order == "turned":
        t = t.mT.contiguous().mT
    elif order == "channels last" and t.ndim == 4:
        t = t.to(memory_format=torch.channels_last)
    index = torch.tensor([0, 2, 3]) if t.shape[axis] >= 4 else torch.tensor([0])
    assert torch.equal(units(t, axis, index), t.index_select(axis, index))
