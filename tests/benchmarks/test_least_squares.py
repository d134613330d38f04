"""Least squares and Theorem 5.1 of Zhu and Blaschko 2023: by hand, by simulation, with planted mistakes."""

import pytest
import torch

from benchmarks.privacy import least_squares as ls
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.randomness import public_generator, reproducible_stream

K = torch.randn(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
NOISE_ONLY = Mechanism(kind="noise-only", clip_norm=1.0, noise_multiplier=0.1)
X = 0.7


def measured(mechanism: Mechanism, order: ls.Order, rate: float, draws: int = 1000) -> ls.Mean:
    noise = reproducible_stream(1, "noise")
    return ls.measured(K, X, mechanism, order, rate, draws=draws, generator=public_generator(1), noise=noise)


def predicted(mechanism: Mechanism, order: ls.Order, rate: float) -> ls.Mean:
    return ls.predicted(K, X, mechanism, order, rate, draws=4000, generator=public_generator(2))


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9])
def test_theorem_5_1(rate: float):
    found, theory = measured(NOISE_ONLY, "mask, clip", rate), predicted(NOISE_ONLY, "mask, clip", rate)
    assert found.mean == pytest.approx(theory.mean, rel=0.05)
    assert found.mean > ls.bound(K, NOISE_ONLY.noise_std, rate) - 3 * found.error
    assert theory.mean >= ls.bound(K, NOISE_ONLY.noise_std, rate) * (1 - 1e-12)


def test_negative_control_noise_on_frozen_coordinates_breaks_the_theorem():
    """Least squares over all of k, as if frozen zeros were measurements: what it gives is not what the theorem says."""
    generator, errors = public_generator(3), []
    for _ in range(400):
        kept = torch.zeros(64, dtype=torch.bool)
        kept[torch.randperm(64, generator=generator)[:32]] = True
        noise = 0.1 * torch.randn(64, generator=generator, dtype=torch.float64)
        errors.append((ls.least_squares(K.unsqueeze(1), (K * X + noise) * kept)[0] - X).square())
    assert float(torch.stack(errors).mean()) > 5 * predicted(NOISE_ONLY, "mask, clip", 0.5).mean
