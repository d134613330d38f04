"""Weight-standardised convolutions: their per-example gradients against autograd, goldens, planted mistakes."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedlsg.gradients.blocks as blocks
import fedlsg.gradients.formulas.layers as layer_gradients
from fedlsg.gradients.formulas import standardized
from fedlsg.gradients.formulas.standardized import (
    StandardizedConv2d,
    note_output,
)
from fedlsg.gradients.plan import Layer
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


def note(layer: Layer, x: Tensor, y: Tensor) -> standardized.OutputNote | None:
    memory = blocks.LayerMemory()
    blocks.remember_output(layer, memory, x, y, None)
    return memory.note


# Planted mistakes: each must make the blocks differ from autograd's.


def forget_a_sum(monkeypatch: pytest.MonkeyPatch, which: int) -> None:
    honest = standardized.OutputNote.sums

    def planted(note: standardized.OutputNote, g: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.zeros_like(t) if i == which else t for i, t in enumerate(honest(note, g)))

    monkeypatch.setattr(standardized.OutputNote, "sums", planted)


def forget_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_a_sum(monkeypatch, 0)


def forget_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_a_sum(monkeypatch, 1)


def change_notes(monkeypatch: pytest.MonkeyPatch, field: str, value: Callable[[Tensor], Tensor | None]) -> None:
    """What is noted of an output has another ``field``: a function of the input."""

    def planted(conv: StandardizedConv2d, x: Tensor, y: Tensor) -> standardized.OutputNote:
        made = note_output(conv, x, y)
        setattr(made, field, value(x))
        return made

    monkeypatch.setattr(blocks, "note_output", planted)


def keep_the_bias_in_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    change_notes(monkeypatch, "bias", lambda x: None)


def forget_the_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        layer_gradients.StandardizedConvGradients,
        "outer",
        lambda self, g, L: layer_gradients.ConvGradients.outer(self, g, L),
    )


def forget_the_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = torch.ones(1, 1, 3, 3).double()
    change_notes(
        monkeypatch, "patch_sums", lambda x: F.conv2d(F.pad(x, (1, 1, 1, 1), value=1).sum(1, True), ones, stride=2)
    )


def gradient_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_gradients, "pull_back", lambda G, K: G)


PLANTS = [
    (forget_the_mean, True),
    (forget_the_norm, True),
    (keep_the_bias_in_the_output, True),
    (forget_the_scale, True),
    (forget_the_padding, True),
    (gradient_of_the_kernel, False),
]


@pytest.mark.parametrize(("plant", "carry"), [(None, True), (None, False), *PLANTS])
def test_a_planted_mistake_is_caught(plant, carry, monkeypatch):
    model, x = stack()
    model = nn.Sequential(*list(model)[:1], nn.Tanh())
    if plant is not None:
        plant(monkeypatch)
    wrong = gradient_error(model, x, rank=2, sparsity=0.0, flat=False, carry=carry)
    assert (wrong > 1e-3) if plant else (wrong < TOLERANCE)
