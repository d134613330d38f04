"""The bound from independent canaries: below the truth, near it, and above a claim that is wrong."""

import numpy as np
import pytest

from benchmarks.independent import independent_epsilon
from fedlsg.attacks.audit.bounds import gaussian_epsilon

DELTA = 1e-5


def game(mu: float, *, claimed: float, canaries: int, seed: int) -> float:
    """The bound where outputs of canaries are N(mu in, 1) and scores are those of the claim."""
    generator = np.random.default_rng(seed)
    included = generator.random(canaries) < 0.5
    output = mu * included + generator.standard_normal(canaries)
    # in units of what a canary adds: the auditor knows the lengths, and takes the noise from the claim
    scores = claimed**2 * (output / mu - 0.5)
    return independent_epsilon(scores, included, delta=DELTA, significance=1e-3)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
def test_the_bound_is_below_the_truth_and_near_it(mu):
    true = gaussian_epsilon(mu, DELTA)
    found = [game(mu, claimed=mu, canaries=20_000, seed=seed) for seed in range(20)]
    assert max(found) <= true
    assert np.median(found) > (0.6 if mu < 1 else 0.8) * true


def test_halved_noise_is_above_the_claim():
    """Negative control of the last test: the truth is twice the claimed mu."""
    assert game(2.0, claimed=1.0, canaries=4_000, seed=0) > gaussian_epsilon(1.0, DELTA)
