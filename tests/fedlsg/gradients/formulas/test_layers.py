"""Blocks of every supported layer against autograd, a golden by hand, and planted mistakes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedlsg.gradients.formulas.conv as conv_gradients
from fedlsg.gradients.formulas.layers import ConvGradients, units
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


@given(
    groups=st.integers(1, 3), width=st.integers(1, 3), batch=st.integers(1, 4),
    positions=st.lists(st.integers(2, 4), min_size=1, max_size=3), sparsity=masks["sparsity"], flat=st.booleans(),
)  # fmt: skip
@quick
def test_group_norm(groups, width, batch, positions, sparsity, flat):
    layer, x = nn.GroupNorm(groups, groups * width, eps=1e-3), torch.randn(batch, groups * width, *positions)
    assert layer_error(layer, 3 + 2 * x, rank=1, sparsity=sparsity, flat=flat) < TOLERANCE


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=2), batch=st.integers(1, 4), bias=st.booleans(),
    positions=st.lists(st.integers(1, 4), max_size=2), sparsity=masks["sparsity"], flat=st.booleans(),
)  # fmt: skip
@quick
def test_layer_norm(shape, batch, bias, positions, sparsity, flat):
    layer, x = nn.LayerNorm(shape, eps=1e-3, bias=bias), torch.randn(batch, *positions, *shape)
    assert layer_error(layer, 3 + 2 * x, rank=1, sparsity=sparsity, flat=flat, carry=False) < TOLERANCE


def forget_flip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_gradients, "last_tap_first", lambda k, taps, device: torch.arange(k * taps))


def forget_dilation(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = conv_gradients.windows

    def planted(t: Tensor, conv: nn.Conv2d, *rest: object) -> Tensor:
        narrow = nn.Conv2d(1, 1, conv.kernel_size)
        return honest(t, narrow, *rest)

    monkeypatch.setattr(conv_gradients, "windows", planted)


def forget_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_gradients, "padding_before", lambda conv: (0, 0))


def forget_stride(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_gradients, "spread", lambda g, stride: g)


def mix_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ConvGradients.outer
    monkeypatch.setattr(ConvGradients, "outer", lambda self, g, L: honest(self, g, L).roll(1, 0))


def swap_carriers(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ConvGradients.outer
    monkeypatch.setattr(ConvGradients, "outer", lambda self, g, L: honest(self, g, L.flip(1)))


def drop_a_position(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ConvGradients.left
    monkeypatch.setattr(ConvGradients, "left", lambda self, g, u: honest(self, g[:, :, 1:], u[:, :, 1:]))


PLANTS = [forget_flip, forget_dilation, forget_padding, forget_stride, mix_examples, swap_carriers, drop_a_position]


@pytest.mark.parametrize("plant", [None, *PLANTS])
def test_a_planted_mistake_is_caught(plant, monkeypatch):
    torch.manual_seed(1)
    conv = nn.Conv2d(20, 5, 3, stride=2, padding=1, dilation=2)
    x = torch.randn(3, 20, 8, 9)
    if plant:
        plant(monkeypatch)
    wrong = layer_error(conv, x, rank=2, sparsity=0.0, flat=False)
    assert (wrong > 1e-3) if plant else (wrong < TOLERANCE)


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
