"""Statistics of gradients: by hand, against the SVD and against brute force, and planted mistakes."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from fedlsg.carriers.statistics import (
    block_squares,
    clipping,
    kept_energy,
    random_energy,
    residual,
)
from fedlsg.forms import FORMS
from fedlsg.privacy.mechanism import Mechanism, clipped_sum

sizes, seeds = st.integers(1, 9), st.integers(0, 10_000)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(m=st.integers(2, 9), n=st.integers(2, 9), r=st.integers(1, 9), s=st.integers(1, 9), seed=seeds)
def test_the_residual_of_a_core_is_that_of_both_spans_at_any_scale(m, n, r, s, seed):
    """Oracle: dW - U U^T dW V V^T, with orthonormal U and V of the same spans."""
    dW, L, R = normal(m, n, seed=seed), normal(m, min(r, m), seed=seed + 1), normal(min(s, n), n, seed=seed + 2)
    U, V = torch.linalg.qr(L).Q, torch.linalg.qr(R.mT).Q
    left = float((dW - U @ U.mT @ dW @ V @ V.mT).norm() / dW.norm())
    assert residual(dW, L * torch.logspace(-1, 1, L.shape[1]), 3 * R, FORMS["core"]) == pytest.approx(left, abs=1e-7)


def test_the_mean_over_random_units_against_every_choice():
    dW, rows, columns = normal(4, 3, 2, 1, seed=5), 3, 1
    every = [
        kept_energy(dW, torch.tensor(out), torch.tensor(into))
        for out in itertools.combinations(range(4), rows)
        for into in itertools.combinations(range(3), columns)
    ]
    expected = random_energy((4, 3, 2, 1), rows, columns)
    for name in ("rows", "columns", "either"):
        assert sum(getattr(e, name) for e in every) / len(every) == pytest.approx(getattr(expected, name))


def measured(gradients: list[Tensor], mechanism: Mechanism):
    coordinates = sum(block.shape[1] for block in gradients)
    return clipping(block_squares(gradients), mechanism, dtype=gradients[0].dtype, coordinates=coordinates)


@given(batch=st.integers(1, 6), clip_norm=st.floats(0.1, 10), seed=seeds)
def test_the_factors_are_those_of_the_clipped_sum(batch, clip_norm, seed):
    """Oracle: what a client adds up. Negative control: factors of half the clip norm give another sum."""
    gradients = [normal(batch, 3, seed=seed), 2 * normal(batch, 4, seed=seed + 1)]
    mechanism = Mechanism(clip_norm=clip_norm)
    factors = torch.tensor(measured(gradients, mechanism).factors, dtype=torch.float64)
    total = clipped_sum(gradients, mechanism)
    assert_close(torch.cat([factors @ block for block in gradients]), total)
    halved = Mechanism(clip_norm=clip_norm / 2)
    if measured(gradients, halved).clipped > 0:
        assert not torch.allclose(clipped_sum(gradients, halved), total)
