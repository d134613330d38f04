"""Least squares and Theorem 5.1 of Zhu and Blaschko 2023: by hand, by simulation, with planted mistakes."""

import pytest
import torch

from benchmarks import least_squares as ls
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.randomness import public_generator, reproducible_stream

K = torch.randn(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
NOISE_ONLY = Mechanism(kind="noise-only", clip_norm=1.0, noise_multiplier=0.1)
CLIPPED = Mechanism(kind="dp", clip_norm=0.5, noise_multiplier=0.1)
X = 0.7


def measured(mechanism: Mechanism, order: ls.Order, rate: float, draws: int = 1000) -> ls.Mean:
    noise = reproducible_stream(1, "noise")
    return ls.measured(K, X, mechanism, order, rate, draws=draws, generator=public_generator(1), noise=noise)


def predicted(mechanism: Mechanism, order: ls.Order, rate: float) -> ls.Mean:
    return ls.predicted(K, X, mechanism, order, rate, draws=4000, generator=public_generator(2))


def test_by_hand():
    k, g = torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 7.0])
    assert ls.least_squares(k, g).item() == pytest.approx((3 + 14) / 5)
    assert ls.least_squares(k, g, torch.tensor([False, True])).item() == pytest.approx(3.5)
    # m = 2, p = .5: one of the two is kept; E = s^2 (1 + 1/4) / 2 and the bound is s^2 / (.5 * 5).
    both = ls.theorem(k[:, 0], 1.0, 0.5, draws=2000, generator=public_generator(0))
    assert both.mean == pytest.approx(0.625, abs=0.04)
    assert ls.bound(k[:, 0], 1.0, 0.5) == pytest.approx(0.4)


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9])
def test_theorem_5_1(rate: float):
    found, theory = measured(NOISE_ONLY, "mask, clip", rate), predicted(NOISE_ONLY, "mask, clip", rate)
    assert found.mean == pytest.approx(theory.mean, rel=0.05)
    assert found.mean > ls.bound(K, NOISE_ONLY.noise_std, rate) - 3 * found.error
    assert theory.mean >= ls.bound(K, NOISE_ONLY.noise_std, rate) * (1 - 1e-12)


@pytest.mark.parametrize("order", ["mask, clip", "clip, mask"])
@pytest.mark.parametrize("rate", [0.5, 0.9])
def test_both_orders_under_an_active_clip(order: ls.Order, rate: float):
    found, theory = measured(CLIPPED, order, rate, 600), predicted(CLIPPED, order, rate)
    assert abs(found.mean - theory.mean) < 4 * (found.error + theory.error)


def test_mask_then_clip_does_not_depend_on_the_rate_and_clip_then_mask_does():
    rates = (0.0, 0.5, 0.9)
    ours, theirs = ([predicted(CLIPPED, order, rate).mean for rate in rates] for order in ("mask, clip", "clip, mask"))
    assert ours == pytest.approx([(CLIPPED.noise_std * X / CLIPPED.clip_norm) ** 2] * 3)
    assert theirs[1] > 1.9 * theirs[0]
    assert theirs[2] > 9 * theirs[0]


def test_negative_control_noise_on_frozen_coordinates_breaks_the_theorem():
    """Least squares over all of k, as if frozen zeros were measurements: what it gives is not what the theorem says."""
    generator, errors = public_generator(3), []
    for _ in range(400):
        kept = torch.zeros(64, dtype=torch.bool)
        kept[torch.randperm(64, generator=generator)[:32]] = True
        noise = 0.1 * torch.randn(64, generator=generator, dtype=torch.float64)
        errors.append((ls.least_squares(K.unsqueeze(1), (K * X + noise) * kept)[0] - X).square())
    assert float(torch.stack(errors).mean()) > 5 * predicted(NOISE_ONLY, "mask, clip", 0.5).mean


def test_refusals():
    with pytest.raises(ValueError, match="rank 0"):
        ls.least_squares(torch.ones(3, 1), torch.ones(3), torch.zeros(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="expected order in"):
        ls.check_order("noise, mask")
