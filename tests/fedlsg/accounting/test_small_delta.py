"""Small deltas are resolved like large ones; where no grid fits, the Renyi bound is reported by its name."""

import pytest

from benchmarks.exact_epsilon import full_batch as exact_full_batch
from benchmarks.exact_epsilon import inverted, one_step
from fedlsg.accounting import pld, tilt
from fedlsg.accounting.bounds import epsilon
from fedlsg.accounting.calibrate import calibrate_noise_multiplier, max_steps
from fedlsg.accounting.events import AccountingError, Event

DELTAS = (1e-12, 1e-15, 1e-30)


def covers_full_batches() -> bool:
    """Whether what is reported of full batches is the exact value, from above."""
    cases = [(sigma, steps, delta) for sigma in (1.0, 5.0, 30.0) for steps in (1, 40) for delta in DELTAS]
    exact = [exact_full_batch(*case) for case in cases]
    found = [epsilon(sample_rate=1.0, noise_multiplier=s, steps=n, delta=d).upper for s, n, d in cases]
    return all(a * (1 - 1e-9) <= b <= a * (1 + 1e-6) for a, b in zip(exact, found, strict=True))


def test_it_covers_the_analytic_gaussian():
    assert covers_full_batches()


@pytest.mark.parametrize("delta", DELTAS[:2])
@pytest.mark.parametrize(("q", "sigma"), [(0.01, 0.7), (0.2, 1.0), (0.5, 3.0)])
def test_it_covers_one_subsampled_step(q, sigma, delta):
    exact = one_step(q, sigma, delta)
    assert exact <= epsilon(sample_rate=q, noise_multiplier=sigma, steps=1, delta=delta).upper <= 1.001 * exact


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.02, 1.0, 1000), (0.3, 2.0, 50), (0.001, 0.6, 5000)])
def test_it_covers_compositions(q, sigma, steps, delta):
    bound = epsilon(sample_rate=q, noise_multiplier=sigma, steps=steps, delta=delta)
    exact = inverted([(q, sigma, steps)], delta, near=bound.upper)
    assert exact <= bound.upper <= 1.001 * exact
    assert (bound.accountant, bound.witness) == ("pld", "unwitnessed")
    assert "1e-11" in bound.failures["prv"]


def test_without_a_grid_the_renyi_bound_is_reported_by_its_name(monkeypatch):
    setting = {"sample_rate": 0.02, "noise_multiplier": 1.0, "steps": 1000, "delta": 1e-12}
    theirs = epsilon(**setting)
    pld.interval.cache_clear()
    monkeypatch.setattr(tilt, "MAX_CELLS", 50)
    ours = epsilon(**setting)
    pld.interval.cache_clear()
    assert (ours.accountant, ours.lower, ours.witness) == ("renyi", 0.0, "unwitnessed")
    assert "grid" in ours.failures["pld"]
    assert theirs.estimate <= ours.upper <= theirs.upper * 1.3


def test_a_delta_below_all_floats_is_refused_by_the_grid():
    with pytest.raises(AccountingError, match="float64"):
        pld.interval((Event(sample_rate=0.1, noise_multiplier=1.0, steps=3),), 1e-300)
    assert epsilon(sample_rate=0.1, noise_multiplier=1.0, steps=3, delta=1e-300).accountant == "renyi"


def test_calibration_and_its_inverse():
    settings = {"delta": 1e-12, "sample_rate": 0.02}
    sigma = calibrate_noise_multiplier(epsilon=3.0, steps=1000, **settings)
    assert epsilon(noise_multiplier=sigma, steps=1000, **settings).upper <= 3.0
    assert epsilon(noise_multiplier=sigma * (1 - 2e-4), steps=1000, **settings).upper > 3.0
    assert max_steps(epsilon=3.0, noise_multiplier=sigma, **settings) in range(1000, 1003)
