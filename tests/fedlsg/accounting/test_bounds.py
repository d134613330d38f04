"""Epsilon is never below the truth, agrees with published values, and a planted mistake is
caught.
"""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import ndtr

from benchmarks.privacy.exact_epsilon import full_batch as exact_full_batch
from benchmarks.privacy.exact_epsilon import one_step as exact_one_step
from fedlsg.accounting import pld as accountant_pld
from fedlsg.accounting import prv as accountant_prv
from fedlsg.accounting.calibrate import calibrate_noise_multiplier, max_steps
from fedlsg.accounting.certified import epsilon, upper_or_inf
from fedlsg.accounting.checks import check_delta
from fedlsg.accounting.events import AccountingError, EpsilonBound, Event, Interval

few = settings(max_examples=6, deadline=None, derandomize=True)
deltas = st.floats(-8, -3).map(lambda exponent: 10**exponent)
sigmas = st.floats(-0.3, 1.3).map(lambda exponent: 10**exponent)


def assert_covers(bound: EpsilonBound, truth: float) -> None:
    """Certified, consistent, tight: the upper bound is not below the truth, nor above it by more
    than the errors.
    """
    assert bound.upper >= truth * (1 - 1e-9)
    assert bound.upper <= truth * 1.001 + 1e-12
    for name, interval in bound.intervals.items():
        assert interval.lower <= truth * (1 + 1e-6) + 1e-9, name
        assert interval.upper >= truth * (1 - 1e-6) - 1e-9, name
    assert bound.lower <= bound.estimate <= bound.upper
    assert bound.witness == ("prv" if "prv" in bound.intervals else "unwitnessed")


@few
@given(sigma=sigmas, steps=st.integers(1, 500), delta=deltas)
def test_full_batches_cover_the_analytic_gaussian(sigma, steps, delta):
    assert_covers(
        epsilon(sample_rate=1.0, noise_multiplier=sigma, steps=steps, delta=delta),
        exact_full_batch(sigma, steps, delta),
    )


@few
@given(q=st.floats(-3, -0.1).map(lambda e: 10**e), sigma=st.floats(0.5, 8), delta=deltas)
def test_one_subsampled_step_covers_the_closed_form(q, sigma, delta):
    bound = epsilon(sample_rate=q, noise_multiplier=sigma, steps=1, delta=delta)
    assert_covers(bound, exact_one_step(q, sigma, delta))


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "published"),
    [(0.01, 1.0, 1000, 1.828), (1.0, 10.0, 100, 4.377), (0.02, 2.6699, 10_000, 3.295)],
)
def test_published_values(q, sigma, steps, published):
    bound = epsilon(sample_rate=q, noise_multiplier=sigma, steps=steps, delta=1e-5)
    for interval in bound.intervals.values():
        assert interval.estimate == pytest.approx(published, abs=6e-4)
        assert interval.lower - 6e-4 <= published <= interval.upper + 6e-4
    assert set(bound.intervals) == {"prv", "gaussian" if q == 1 else "pld"}
    assert bound.upper <= published * 1.001


@pytest.mark.parametrize(
    ("target", "q", "steps"),
    [
        (8.0, 0.2, 100),
        (3.0, 1.0, 10),
        *(
            pytest.param(*s, marks=pytest.mark.slow)
            for s in [(0.5, 0.05, 40), (20.0, 0.5, 8), (1.0, 1e-2, 100)]
        ),
    ],
)
def test_calibration_and_max_steps_are_sharp_and_inverse(target, q, steps):
    sigma = calibrate_noise_multiplier(epsilon=target, delta=1e-5, sample_rate=q, steps=steps)
    assert epsilon(sample_rate=q, noise_multiplier=sigma, steps=steps, delta=1e-5).upper <= target
    smaller = sigma * (1 - 1.5e-4)
    assert epsilon(sample_rate=q, noise_multiplier=smaller, steps=steps, delta=1e-5).upper > target
    assert max_steps(epsilon=target, delta=1e-5, sample_rate=q, noise_multiplier=sigma) == steps


def test_targets_out_of_reach_are_named():
    with pytest.raises(AccountingError, match=r"epsilon=1e-09 .*raise epsilon or delta"):
        calibrate_noise_multiplier(epsilon=1e-9, delta=1e-10, sample_rate=0.5, steps=3)
    with pytest.raises(AccountingError, match="almost without noise"):
        calibrate_noise_multiplier(epsilon=1.0, delta=1e-3, sample_rate=1e-6, steps=10)


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("noise_multiplier", [0.0, -1.0, math.nan, math.inf]),
        ("sample_rate", [0.0, -0.1, 1.0000001, math.nan]),
        ("steps", [0, -3, 2.0, True, "3", None]),
    ],
)
def test_events_out_of_range_are_refused_by_name(setting, values):
    good = {"sample_rate": 0.1, "noise_multiplier": 1.0, "steps": 10}
    for value in values:
        with pytest.raises(ValueError, match=setting):
            Event(**{**good, setting: value})
        with pytest.raises(ValueError, match=setting):
            epsilon(**{**good, setting: value}, delta=1e-5)


def test_delta_must_be_below_one_over_the_number_of_examples():
    check_delta(0.99e-3, 1000)
    for delta, examples in ((1e-3, 1000), (0.5, 2), (1e-5, 0)):
        with pytest.raises(ValueError, match="num_examples"):
            check_delta(delta, examples)


def test_what_no_accountant_can_certify_is_refused_quickly():
    with pytest.raises(AccountingError, match="no accountant certifies"):
        epsilon(sample_rate=0.5, noise_multiplier=1e-3, steps=1000, delta=1e-5)


def test_a_grid_that_would_not_fit_is_refused_before_it_is_made():
    bound = epsilon(sample_rate=0.02, noise_multiplier=0.3, steps=10_000, delta=1e-5)
    assert bound.accountant == "pld"
    assert bound.witness == "unwitnessed"
    assert "cells" in bound.failures["prv"]
    assert 605.4019 <= bound.upper <= 605.4019 * 1.001  # by inversion, see exact_epsilon.py


SETTING = {"sample_rate": 0.1, "noise_multiplier": 1.1, "steps": 77, "delta": 1e-5}


def test_a_witness_whose_lower_end_exceeds_the_bound_stops_the_report(monkeypatch):
    wrong = Interval(lower=90.0, estimate=91.0, upper=92.0)
    monkeypatch.setattr(accountant_prv, "interval", lambda events, delta: wrong)
    with pytest.raises(
        AccountingError,
        match=r"contradict each other .*pld says .*at most .*prv that .* at least 90",
    ):
        epsilon(**SETTING)
    assert (
        upper_or_inf(
            [Event(**{k: v for k, v in SETTING.items() if k != "delta"})], SETTING["delta"]
        )
        == math.inf
    )
    with pytest.raises(AccountingError, match="contradict each other"):
        calibrate_noise_multiplier(epsilon=1.77, delta=1e-5, sample_rate=0.1, steps=77)


def test_a_bound_below_the_truth_is_refused_by_the_witness(monkeypatch):
    """Negative control: losses that are rounded down are caught by an accountant that shares no
    code.
    """
    truth = accountant_pld.interval
    monkeypatch.setattr(
        accountant_pld,
        "interval",
        lambda events, delta: Interval(
            lower=0.0, estimate=0.0, upper=0.98 * truth(events, delta).upper
        ),
    )
    with pytest.raises(AccountingError, match="contradict each other"):
        epsilon(**SETTING)


def test_a_witness_that_is_below_the_bound_changes_nothing(monkeypatch):
    truth = epsilon(**SETTING)
    wrong = Interval(lower=0.2, estimate=0.3, upper=0.4)
    monkeypatch.setattr(accountant_prv, "interval", lambda events, delta: wrong)
    bound = epsilon(**SETTING)
    assert (bound.upper, bound.accountant) == (truth.upper, "pld")
    assert bound.intervals["prv"] == wrong


def test_a_failing_witness_is_named_and_what_does_not_fit_a_grid_falls_to_renyi(monkeypatch):
    def fail(events, delta):
        raise RuntimeError("Discrete mean differs from continuous mean significantly.")

    truth = epsilon(**SETTING)
    monkeypatch.setattr(accountant_prv, "interval", fail)
    bound = epsilon(**SETTING)
    assert (bound.accountant, bound.witness) == ("pld", "unwitnessed")
    assert "Discrete mean" in bound.failures["prv"]
    monkeypatch.setattr(accountant_pld, "interval", fail)
    bound = epsilon(**SETTING)
    assert (bound.accountant, bound.witness) == ("renyi", "unwitnessed")
    assert "Discrete mean" in bound.failures["pld"]
    assert truth.upper < bound.upper < 1.3 * truth.upper


def violations(accountant: Callable[[float, int], float]) -> int:
    """In how many of eight full-batch settings a claimed epsilon is below the exact one."""
    settings = [(sigma, steps) for sigma in (2.0, 9.0) for steps in (2, 7, 40, 300)]
    return sum(accountant(s, t) < exact_full_batch(s, t, 1e-5) * (1 - 1e-9) for s, t in settings)


def test_planted_understatements_are_caught():
    def honest(sigma: float, steps: int) -> float:
        return epsilon(sample_rate=1.0, noise_multiplier=sigma, steps=steps, delta=1e-5).upper

    assert violations(honest) == 0
    assert violations(lambda sigma, steps: honest(sigma, max(steps - 1, 1))) == 8
    assert violations(lambda sigma, steps: honest(2 * sigma, steps)) == 8


def test_a_forgotten_subsampling_direction_is_caught():
    """One direction of add/remove dominates; an accountant with the other one alone is below the
    truth.
    """
    q, sigma, delta = 0.3, 1.0, 1e-5

    def addition(eps: float) -> float:
        if math.exp(-eps) <= 1 - q:
            return 0.0
        y = sigma**2 * math.log((math.exp(-eps) - 1 + q) / q) + 0.5
        return (1 - math.exp(eps) * (1 - q)) * ndtr(y / sigma) - math.exp(eps) * q * ndtr(
            (y - 1) / sigma
        )

    one_sided = brentq(lambda eps: addition(eps) - delta, 1e-9, -math.log1p(-q) * (1 - 1e-9))
    truth = exact_one_step(q, sigma, delta)
    assert one_sided < 0.5 * truth
    assert epsilon(sample_rate=q, noise_multiplier=sigma, steps=1, delta=delta).upper >= truth
