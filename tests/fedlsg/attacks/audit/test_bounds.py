"""One-run bounds: by hand, against exact probabilities, and on mechanisms whose epsilon is known."""

import math

import numpy as np
import pytest

from fedlsg.attacks.audit.bounds import (
    Guesses,
    f_dp_refuted,
    gaussian,
    gaussian_epsilon,
    guess,
    one_run_epsilon,
    one_run_p_value,
)


def test_one_run_by_hand():
    """q = 1/2, two of two right: 1/4, and max(P[Bin = 1] / 1, P[Bin in 0..1] / 2) = 1/2 times 2 m delta."""
    seen = Guesses(canaries=2, guesses=2, correct=2)
    assert one_run_p_value(seen, 0.0, 0.0) == pytest.approx(0.25)
    assert one_run_p_value(seen, 0.0, 0.01) == pytest.approx(0.25 + 2 * 2 * 0.01 * 0.5)


def test_bounds_hold_on_randomized_response_in_1000_runs():
    """At level 0.05 the bound passes the true epsilon in at most 5 % of runs (81 of 1000 has probability 1e-5)."""
    rng, epsilon, m = np.random.default_rng(0), 1.0, 200
    q = 1 / (1 + math.exp(-epsilon))
    above = 0
    for correct in rng.binomial(m, q, size=1000):
        above += one_run_p_value(Guesses(canaries=m, guesses=m, correct=int(correct)), epsilon, 0.0) < 0.05
    assert 10 < above <= 81


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_bounds_hold_on_a_gaussian_mechanism_in_1000_runs(share):
    """Scores of a 1-GDP mechanism: the true curve is refuted in at most 5 % of runs, epsilon is not passed."""
    rng, m, delta = np.random.default_rng(1), 200, 1e-5
    refuted = passed = 0
    truth = gaussian_epsilon(1.0, delta)
    for _ in range(1000):
        included = rng.random(m) < 0.5
        seen = guess(rng.normal(size=m) + included, included, share)
        refuted += f_dp_refuted(seen, gaussian(1.0), 0.05)
        passed += one_run_p_value(seen, truth, delta) < 0.05
    assert refuted <= 81
    assert passed == 0


def test_bounds_find_a_false_claim():
    """Negative control: scores of a mechanism with a third of the claimed noise refute the claim."""
    rng, m = np.random.default_rng(2), 5000
    included = rng.random(m) < 0.5
    seen = guess(rng.normal(size=m) + 3 * included, included, 0.2)
    assert f_dp_refuted(seen, gaussian(1.0), 1e-3)
    assert not f_dp_refuted(seen, gaussian(3.0), 1e-3)
    everything = guess(np.where(included, 1.0, 0.0), included, 1.0)
    assert one_run_epsilon(everything, 1e-5, 1e-3) > 3
