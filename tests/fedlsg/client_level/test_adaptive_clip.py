"""The adaptive clip: both releases of a round cost what the ledger says, and C follows the
quantile.
"""

import math

import pytest
import torch

from fedlsg.accounting import Event, compose
from fedlsg.randomness import reproducible_stream
from fedlsg.training.client_level import AdaptiveClip
from tests.noise import no_noise

CLIP = AdaptiveClip(quantile=0.5, rate=0.2, count_noise=5.0, expected_clients=100)


def test_count_and_sum_together_have_the_noise_multiplier_of_the_ledger():
    """Andrew et al. 2021, Theorem 1: z_sum = (z^-2 - (2 sigma_b)^-2)^(-1/2)."""
    z_sum = CLIP.sum_multiplier(1.0)
    assert z_sum == pytest.approx((1.0 - (2 * 5.0) ** -2) ** -0.5, rel=1e-9)
    assert (z_sum**-2 + CLIP.count_multiplier**-2) ** -0.5 >= 1.0
    both = [
        Event(sample_rate=1.0, noise_multiplier=z, steps=20) for z in (z_sum, CLIP.count_multiplier)
    ]
    one = [Event(sample_rate=1.0, noise_multiplier=1.0, steps=20)]
    assert compose(both, delta=1e-5).upper == pytest.approx(
        compose(one, delta=1e-5).upper, rel=2e-3
    )


def test_a_count_without_enough_noise_is_refused_with_the_fix():
    few = AdaptiveClip(quantile=0.5, rate=0.2, count_noise=0.4, expected_clients=8)
    with pytest.raises(
        ValueError, match=r"clip_count_noise=0\.4.*raise clip_count_noise above 0\.5"
    ):
        few.sum_multiplier(1.0)


def test_the_clip_norm_finds_the_quantile_of_the_norms():
    norms = torch.linspace(0.1, 3.9, 100)
    clip_norm = 0.01
    for round in range(200):
        within = int((norms <= clip_norm).sum())
        clip_norm = CLIP.next_norm(clip_norm, within, len(norms), reproducible_stream(round))
    assert clip_norm == pytest.approx(float(norms.median()), rel=0.25)


def test_one_client_moves_the_count_by_a_half():
    stream = reproducible_stream(0)
    with no_noise():
        norm = CLIP.next_norm(1.0, 40, 80, stream)
        assert norm == pytest.approx(math.exp(-0.2 * (0 / 100 + 0.5 - 0.5)))
        for within, clients in ((41, 81), (40, 81)):  # one client more, within the norm or not
            moved = -math.log(CLIP.next_norm(1.0, within, clients, stream)) / 0.2 * 100
            assert abs(moved) == pytest.approx(0.5)
