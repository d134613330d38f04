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


def test_nothing_shown_is_no_bound():
    scores = np.random.default_rng(0).standard_normal(1000)
    assert independent_epsilon(scores, np.arange(1000) % 2 == 0, delta=DELTA, significance=1e-3) == 0.0
    with pytest.raises(ValueError, match="both kinds"):
        independent_epsilon(scores, np.ones(1000, dtype=bool), delta=DELTA, significance=1e-3)


def test_equal_canaries_that_an_auditor_tells_apart_break_the_confidence():
    """Why independence is a condition: with one noise for a run, more than one audit in twenty is too high."""
    generator, mu, above = np.random.default_rng(1), 1.2, 0
    for _ in range(100):
        included = generator.random((60, 100)) < 0.5
        scores = (included - 0.5 + generator.standard_normal((60, 1)) / mu).ravel()
        found = independent_epsilon(scores, included.ravel(), delta=DELTA, significance=1e-3)
        above += found > gaussian_epsilon(mu, DELTA)
    assert above > 5
