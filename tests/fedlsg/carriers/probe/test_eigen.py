"""Top eigenvectors: against the whole decomposition, orthonormal for every matrix, and the same bits again."""

import pytest
import torch
from torch import Tensor

from fedlsg.carriers.own import check_orthonormal
from fedlsg.carriers.probe.eigen import is_large, top_eigenvectors

LARGE = 400


def public() -> torch.Generator:
    """A generator in one state."""
    return torch.Generator().manual_seed(5)


def spectrum(side: int, power: float = 1.4) -> Tensor:
    """A positive matrix with eigenvalues i^-power."""
    Q = torch.linalg.qr(torch.randn(side, side, generator=public(), dtype=torch.float64))[0]
    return ((Q * torch.arange(1, side + 1) ** -power) @ Q.mT).float()


@pytest.mark.parametrize(("side", "count"), [(40, 40), (40, 8), (LARGE, 8), (LARGE, 128), (LARGE, LARGE)])
def test_they_hold_the_largest_energy(side: int, count: int) -> None:
    assert is_large(side, count) == (side == LARGE and count < LARGE)
    A = spectrum(side)
    values, vectors = top_eigenvectors(A, count, generator=public())
    best = torch.arange(1, side + 1)[:count] ** -1.4
    held = (vectors * (A @ vectors)).sum(0)
    assert float(held.sum()) > (1 - 1e-3) * float(best.sum())
    torch.testing.assert_close(values, held, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(values[:4], best[:4], rtol=1e-4, atol=0)
    assert bool((values[:-1] >= values[1:]).all())
    assert bool((vectors.gather(0, vectors.abs().argmax(0, keepdim=True)) > 0).all())


@pytest.mark.parametrize("side", [40, LARGE])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_they_are_orthonormal_where_the_rank_is_too_small(side: int, rank: int) -> None:
    factor = torch.randn(rank, side, generator=public())
    values, vectors = top_eigenvectors(factor.mT @ factor, 8, generator=public())
    assert vectors.shape == (side, 8)
    check_orthonormal(vectors, vectors.mT, "here")
    assert bool(values.isfinite().all())
    assert bool((values >= 0).all())
    torch.testing.assert_close((factor @ vectors).square().sum(), factor.square().sum())
    torch.testing.assert_close(values[rank:], torch.zeros(8 - rank), rtol=0, atol=1e-3)


def test_bits_repeat_and_the_start_is_the_generators() -> None:
    A = spectrum(LARGE)
    first, again = (top_eigenvectors(A, 100, generator=public()) for _ in range(2))
    assert torch.equal(first[1], again[1])
    other = top_eigenvectors(A, 100, generator=torch.Generator().manual_seed(6))
    assert not torch.equal(first[1], other[1])
    torch.testing.assert_close(first[0][:20], other[0][:20], rtol=1e-4, atol=0)
