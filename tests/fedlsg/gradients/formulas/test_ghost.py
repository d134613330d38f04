"""Ghost gradients against autograd's own, their clip, and planted mistakes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedlsg.gradients.formulas.ghost as ghost
from fedlsg.gradients.formulas.ghost import GhostGradients, ghost_is_cheaper
from fedlsg.gradients.isolation import block_gradients, per_example_gradients
from fedlsg.privacy.clip import clipped_sum
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.training.client_round import allows_ghost_clipping
from tests.fedlsg.support.gradient_oracle import cross_entropy, make_frame
from tests.fedlsg.support.problems import make, wide

quick = settings(max_examples=40, deadline=None)
CLIP = Mechanism(kind="clip-only", clip_norm=0.01)


def dense_gradients(layer: nn.Module, x: Tensor, g: Tensor) -> Tensor:
    """(B, size) by autograd, one example after another."""
    weight = layer.get_parameter("weight")
    rows = [
        torch.autograd.grad(layer(x[b : b + 1]), weight, g[b : b + 1])[0] for b in range(len(x))
    ]
    return torch.stack(rows).flatten(1)


@st.composite
def layers(draw: st.DrawFn) -> tuple[nn.Linear | nn.Conv2d, Tensor]:
    batch, c, m = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(1, 5))
    if draw(st.booleans()):
        return nn.Linear(c, m), torch.randn(
            batch, *draw(st.lists(st.integers(1, 4), max_size=2)), c
        )
    kernel, padding = (draw(st.tuples(st.integers(1, 3), st.integers(1, 3))) for _ in range(2))
    return nn.Conv2d(c, m, kernel, padding=padding), torch.randn(batch, c, 4, 5)


@given(
    made=layers(), dtype=st.sampled_from([torch.float64, torch.float32]), seed=st.integers(0, 99)
)
@quick
def test_norms_and_sums_are_those_of_the_gradients(made, dtype, seed):
    torch.manual_seed(seed)
    layer, x = made[0].to(dtype), made[1].to(dtype)
    g = torch.randn_like(layer(x)).detach()
    own, block = dense_gradients(layer, x, g), GhostGradients(layer, g, x, g._version)
    norms, factors = own.double().norm(dim=1), torch.rand(len(x), dtype=dtype)
    exact = dense_gradients(layer.double(), x.double(), g.double()).norm(dim=1)
    assert (block.norms() >= exact).all()
    assert torch.allclose(
        block.norms(), norms, rtol=1e-5 if dtype == torch.float32 else 1e-8, atol=1e-6
    )
    layer.to(dtype)
    everyone = torch.ones(len(x), dtype=torch.bool)
    total = block.weighted_sum(factors, everyone)
    assert total.dtype == torch.float64
    assert torch.allclose(
        total, (factors @ own).double(), atol=1e-4 if dtype.itemsize == 4 else 1e-12
    )


def both(dtype: torch.dtype = torch.float64, mechanism: Mechanism = CLIP) -> tuple[Tensor, Tensor]:
    model, _, x, y = make(wide, dtype)
    frame = make_frame(model, rank=2, sparsity=0.0, carry=False)
    assert allows_ghost_clipping(frame)
    blocks = block_gradients(model, cross_entropy, x, y, frame)
    assert sum(isinstance(block, GhostGradients) for block in blocks) == 2
    return clipped_sum(blocks, mechanism), clipped_sum(
        per_example_gradients(model, cross_entropy, x, y, frame), mechanism
    )


@pytest.mark.parametrize("clip_norm", [0.01, 1.0, 1e6])
def test_the_clipped_sum_is_the_same(clip_norm):
    ours, plain = both(mechanism=Mechanism(kind="clip-only", clip_norm=clip_norm))
    assert torch.allclose(ours, plain, rtol=1e-7, atol=1e-12 * clip_norm)


def test_one_example_stays_within_the_clip_in_float32():
    model, _, x, y = make(wide, torch.float32)
    frame = make_frame(model, rank=2, sparsity=0.0, carry=False)
    for i in range(len(x)):
        sent = clipped_sum(
            block_gradients(model, cross_entropy, x[i : i + 1], y[i : i + 1], frame), CLIP
        )
        assert 0.99 * CLIP.clip_norm < sent.double().norm() <= CLIP.clip_norm


def test_a_broken_example_adds_nothing():
    model, _, x, y = make(wide)
    frame = make_frame(model, rank=2, sparsity=0.0, carry=False)
    x[2] = torch.inf
    rest = [0, 1, 3, 4]
    whole = clipped_sum(block_gradients(model, cross_entropy, x, y, frame), CLIP)
    assert torch.allclose(
        whole, clipped_sum(block_gradients(model, cross_entropy, x[rest], y[rest], frame), CLIP)
    )


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_a_lower_precision_of_products_does_not_reach_the_clip(precision):
    """Norms and sums are in float64; the negative control is the next test."""
    layer, number = nn.Linear(384, 384, bias=False), 1 + 2**-8 + 2**-12
    g = x = torch.full((1, 1, 384), number)
    torch.set_float32_matmul_precision(precision)
    try:
        assert ghost_is_cheaper(layer, torch.randn(2, 64, 384))
        sent = clipped_sum([GhostGradients(layer, g, x, g._version)], CLIP)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert 0.99 * CLIP.clip_norm < sent.double().norm() <= CLIP.clip_norm


def test_negative_control_rounded_further_an_example_passes_the_clip(monkeypatch):
    """What a processor with units for bfloat16 makes of the product at precision "medium": 0.8 %
    beyond C.
    """
    layer, number = nn.Linear(128, 128, bias=False), 1 + 2**-8 + 2**-12  # is rounded up to 1 + 2^-7
    g = x = torch.full((1, 1, 128), number)
    block = GhostGradients(layer, g, x, g._version)
    assert clipped_sum([block], CLIP).double().norm() <= CLIP.clip_norm
    honest = GhostGradients.weighted_sum

    def rounded(self: GhostGradients, factors: Tensor, finite: Tensor) -> Tensor:
        g, x = self.g.bfloat16().float(), self.x.bfloat16().float()
        return honest(GhostGradients(self.layer, g, x, g._version), factors, finite)

    monkeypatch.setattr(GhostGradients, "weighted_sum", rounded)
    assert clipped_sum([block], CLIP).double().norm() > 1.005 * CLIP.clip_norm


def forget_a_tap(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ghost.sum_over_taps
    monkeypatch.setattr(
        ghost, "sum_over_taps", lambda products, out, kernel: honest(products, out, (1, kernel[1]))
    )


def forget_other_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    def diagonal(A: Tensor, B: Tensor) -> Tensor:
        return (A * B.reshape(A.shape)).diagonal(dim1=1, dim2=2).sum(1)

    monkeypatch.setattr(ghost, "row_products", diagonal)


def forget_the_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ghost.padded
    monkeypatch.setattr(ghost, "padded", lambda x, padding: honest(0 * x, padding))


@pytest.mark.parametrize("plant", [forget_a_tap, forget_other_positions, forget_the_padding])
def test_a_planted_mistake_is_caught(plant, monkeypatch):
    plant(monkeypatch)
    ours, plain = both()
    assert not torch.allclose(ours, plain, rtol=1e-7, atol=1e-14)


def moved_by_cancelling_positions() -> float:
    """What an example with |G| = 1e-7 |g| |x| moves a clipped sum by, over C.

    Scaled up to C, its positions would swallow what the others have added.
    """
    torch.manual_seed(0)
    layer, half = nn.Linear(128, 128, bias=False), 256
    x, g = torch.randn(4, 2 * half, 128), torch.randn(4, 2 * half, 128)
    x[3], g[3] = x[3, :1], g[3, :1]
    g[3, half:] *= -(1 + 1e-7)

    def total(rows: slice) -> Tensor:
        return clipped_sum(
            [GhostGradients(layer, g[rows], x[rows], g[rows]._version)], CLIP
        ).double()

    return float((total(slice(4)) - total(slice(3))).norm()) / CLIP.clip_norm


def summed_in_float32(self: GhostGradients, factors: Tensor, finite: Tensor) -> Tensor:
    """A linear layer's sum over positions as it was before."""
    scaled = self.g * factors.view(-1, 1, 1)
    return (scaled.flatten(0, -2).mT @ self.x.flatten(0, -2)).flatten()


def test_an_example_whose_positions_cancel_rounds_nobody_away():
    assert moved_by_cancelling_positions() < 1e-4


def test_negative_control_without_the_floor_or_float64_it_does(monkeypatch):
    """Ten times as much without the floor; more than C without any allowance for rounding."""
    monkeypatch.setattr(GhostGradients, "weighted_sum", summed_in_float32)
    assert moved_by_cancelling_positions() > 1e-4
    monkeypatch.setattr(ghost, "CANCELLED", 0.0)
    assert moved_by_cancelling_positions() > 1e-2
    monkeypatch.setattr(
        GhostGradients,
        "norms",
        lambda self: ghost.squared_norms(self.layer, self.g, self.x).clamp(min=0).sqrt(),
    )
    assert moved_by_cancelling_positions() > 1
