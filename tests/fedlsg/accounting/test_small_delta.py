"""Below what the accountants' transforms resolve, the closed Renyi bound is reported: never below the truth."""

import math

import pytest

from fedlsg.accounting import pld, prv, renyi
from fedlsg.accounting.bounds import SMALLEST_DELTA, calibrate_noise_multiplier, compose, epsilon, max_steps
from fedlsg.accounting.events import Event
from tests.fedlsg.accounting.test_bounds import exact_full_batch, exact_one_step

DELTAS = (1e-12, 1e-15, 1e-30)


def covers_full_batches() -> bool:
    """Whether what is reported of full batches is at least the exact value, and at most a sixth more."""
    cases = [(sigma, steps, delta) for sigma in (1.0, 5.0, 30.0) for steps in (1, 40) for delta in DELTAS]
    exact = [exact_full_batch(*case) for case in cases]
    found = [epsilon(sample_rate=1.0, noise_multiplier=s, steps=n, delta=d).upper for s, n, d in cases]
    return all(a <= b <= a * 7 / 6 + 0.1 for a, b in zip(exact, found, strict=True))


def test_it_covers_the_analytic_gaussian():
    assert covers_full_batches()


def test_a_bound_a_fifth_too_low_is_caught(monkeypatch):
    """Negative control."""
    bound = renyi.upper_bound
    monkeypatch.setattr(renyi, "upper_bound", lambda events, delta: 0.8 * bound(events, delta))
    assert not covers_full_batches()


@pytest.mark.parametrize("delta", DELTAS[:2])
@pytest.mark.parametrize(("q", "sigma"), [(0.01, 0.7), (0.2, 1.0), (0.5, 3.0)])
def test_it_covers_one_subsampled_step(q, sigma, delta):
    exact = exact_one_step(q, sigma, delta)
    assert exact <= epsilon(sample_rate=q, noise_multiplier=sigma, steps=1, delta=delta).upper <= 1.5 * exact + 0.1


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.02, 1.0, 1000), (0.3, 2.0, 50), (0.001, 0.6, 5000)])
def test_it_goes_on_where_the_accountants_end(q, sigma, steps):
    """Epsilon rises as delta falls: just below their limit it is above theirs, by no more than a quarter or so."""
    setting = {"sample_rate": q, "noise_multiplier": sigma, "steps": steps}
    theirs = epsilon(**setting, delta=SMALLEST_DELTA, accountants=("pld",))
    ours = epsilon(**setting, delta=SMALLEST_DELTA * 0.999)
    assert (ours.accountant, ours.lower) == ("renyi", 0.0)
    assert ours.failures.keys() == {"prv", "pld"}
    assert theirs.estimate <= ours.upper <= theirs.upper * 1.3


def test_the_limits_are_one():
    assert SMALLEST_DELTA == pld.MIN_DELTA == prv.MIN_DELTA


def test_room_for_rounding_grows_with_the_steps():
    event = Event(sample_rate=0.01, noise_multiplier=2.0, steps=10**6)
    room = renyi.interval([event], 1e-12).upper - renyi.upper_bound([event], 1e-12)
    assert room == pytest.approx(4e-6, rel=1e-6)


def test_calibration_and_its_inverse():
    settings = {"delta": 1e-12, "sample_rate": 0.02}
    sigma = calibrate_noise_multiplier(epsilon=3.0, steps=1000, **settings)
    assert epsilon(noise_multiplier=sigma, steps=1000, **settings).upper <= 3.0
    assert epsilon(noise_multiplier=sigma * (1 - 2e-4), steps=1000, **settings).upper > 3.0
    assert max_steps(epsilon=3.0, noise_multiplier=sigma, **settings) in range(1000, 1003)


def test_a_composition_costs_less_than_its_parts():
    events = [
        Event(sample_rate=0.02, noise_multiplier=1.0, steps=500),
        Event(sample_rate=1.0, noise_multiplier=9.0, steps=1),
    ]
    parts = [compose([event], delta=1e-12).upper for event in events]
    assert max(parts) < compose(events, delta=1e-12).upper < math.fsum(parts)
    assert compose(events, delta=1e-12, accountants=("pld",)).accountant == "renyi"  # the running display
