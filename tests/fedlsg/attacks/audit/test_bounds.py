"""One-run bounds: by hand, against exact probabilities, and on mechanisms whose epsilon is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from fedlsg.attacks.audit.bounds import (
    Guesses,
    f_dp_p_value,
    f_dp_refuted,
    from_curve,
    gaussian,
    gaussian_epsilon,
    guess,
    one_run_epsilon,
    one_run_p_value,
)


def pure(epsilon):
    return from_curve(np.array([epsilon]), np.array([0.0]))


def test_one_run_by_hand():
    """q = 1/2, two of two right: 1/4, and max(P[Bin = 1] / 1, P[Bin in 0..1] / 2) = 1/2 times 2 m delta."""
    seen = Guesses(canaries=2, guesses=2, correct=2)
    assert one_run_p_value(seen, 0.0, 0.0) == pytest.approx(0.25)
    assert one_run_p_value(seen, 0.0, 0.01) == pytest.approx(0.25 + 2 * 2 * 0.01 * 0.5)


def test_one_run_matches_the_papers_sum():
    """The loop of the paper's appendix, term by term."""
    seen, epsilon, delta = Guesses(canaries=100, guesses=60, correct=45), 0.5, 1e-3
    q = 1 / (1 + math.exp(-epsilon))
    tail = binom.sf(44, 60, q)
    alpha, total = 0.0, 0.0
    for i in range(1, 46):
        total += binom.pmf(45 - i, 60, q)
        alpha = max(alpha, total / i)
    assert one_run_p_value(seen, epsilon, delta) == pytest.approx(tail + alpha * delta * 2 * 100)


def test_one_guess_of_one_canary_is_exact_for_f_dp():
    """P[right] is at most e^eps / (1 + e^eps), and a claim is refuted at exactly that significance."""
    seen = Guesses(canaries=1, guesses=1, correct=1)
    assert f_dp_p_value(seen, pure(math.log(3))) == pytest.approx(0.75, rel=0.011)


@given(m=st.integers(2, 60), data=st.data())
def test_f_dp_is_never_below_the_exact_tail_of_randomized_response(m, data):
    """Randomized response attains any such counts: a bound below its probability would be wrong."""
    c = data.draw(st.integers(1, m))
    epsilon = data.draw(st.floats(0.0, 4.0))
    exact = binom.sf(c - 1, m, 1 / (1 + math.exp(-epsilon)))
    assert f_dp_p_value(Guesses(canaries=m, guesses=m, correct=c), pure(epsilon)) >= exact * 0.999 or exact < 1e-30


@pytest.mark.parametrize("delta", [0.001, 0.05])
def test_a_mechanism_that_reveals_all_with_probability_delta(delta):
    """It is (0, delta)-DP, and all guesses are right with probability delta: neither bound may be below it."""
    seen = Guesses(canaries=50, guesses=50, correct=50)
    assert f_dp_p_value(seen, from_curve(np.zeros(1), np.array([delta]))) >= delta
    assert one_run_p_value(seen, 0.0, delta) >= delta


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


@given(correct=st.integers(0, 100), epsilon=st.floats(0.0, 5.0), delta=st.floats(0.0, 0.01))
def test_p_values_grow_with_the_claim(correct, epsilon, delta):
    seen = Guesses(canaries=150, guesses=100, correct=correct)
    assert one_run_p_value(seen, epsilon, delta) <= one_run_p_value(seen, epsilon + 0.1, delta + 1e-4) + 1e-12


def test_the_largest_refuted_epsilon_is_where_the_p_value_crosses():
    seen = Guesses(canaries=1000, guesses=1000, correct=800)
    epsilon = one_run_epsilon(seen, 0.0, 0.001)
    assert one_run_p_value(seen, epsilon, 0.0) < 0.001 <= one_run_p_value(seen, epsilon + 1e-3, 0.0)


def test_guesses_by_hand():
    scores, included = np.array([3.0, -1.0, 2.0, 0.0]), np.array([True, False, False, True])
    assert guess(scores, included, 1.0) == Guesses(canaries=4, guesses=4, correct=2)
    assert guess(scores, included, 0.5) == Guesses(canaries=4, guesses=2, correct=2)


def test_refuses():
    with pytest.raises(ValueError, match="correct"):
        Guesses(canaries=5, guesses=3, correct=4)
    with pytest.raises(ValueError, match="inclusion bits"):
        guess(np.zeros(3), np.zeros(2, dtype=bool), 1.0)
