"""Other events, many settings, tiny deltas: composed and never added, never less than what is
spent.
"""

import math
import random
import time

import pytest

from benchmarks.privacy.exact_epsilon import full_batch as exact_full_batch
from benchmarks.privacy.exact_epsilon import inverted
from fedlsg.accounting import Event, certified, compose, max_steps, pld, surely_within, tilt
from fedlsg.accounting import events as grid
from fedlsg.accounting.calibrate import calibrate_noise_multiplier
from fedlsg.accounting.certified import MAX_SETTINGS, MAX_WITNESSED_SETTINGS, epsilon, upper_or_inf
from fedlsg.accounting.events import AccountingError, canonical, describe
from fedlsg.accounting.population import displayed, spread
from fedlsg.privacy.ledger import Ledger
from tests.fedlsg.support.ledgers import entry

DELTA = 1e-5
TRAINING = {"sample_rate": 0.1, "delta": DELTA}
PRUNING = Event(sample_rate=1.0, noise_multiplier=8.0, steps=1)


def test_calibration_with_a_pruning_round_meets_the_target_of_the_composition():
    alone = calibrate_noise_multiplier(epsilon=3.0, steps=50, **TRAINING)
    together = calibrate_noise_multiplier(epsilon=3.0, steps=50, besides=(PRUNING,), **TRAINING)
    assert together > alone
    both = [Event(sample_rate=0.1, noise_multiplier=together, steps=50), PRUNING]
    assert 2.99 < compose(both, delta=DELTA).upper <= 3.0
    less = [Event(sample_rate=0.1, noise_multiplier=together * 0.999, steps=50), PRUNING]
    assert compose(less, delta=DELTA).upper > 3.0


def test_an_event_that_alone_exceeds_the_target_leaves_no_noise_multiplier():
    loud = Event(sample_rate=1.0, noise_multiplier=0.5, steps=1)
    with pytest.raises(AccountingError, match="no noise multiplier"):
        calibrate_noise_multiplier(epsilon=1.0, steps=5, besides=(loud,), **TRAINING)


def test_a_target_just_above_what_was_spent_is_met():
    """The cheap bound that a search begins with is above it already."""
    spent = Event(sample_rate=0.3, noise_multiplier=0.7, steps=8)
    target = 1.1 * compose([spent], delta=DELTA).upper
    sigma = calibrate_noise_multiplier(
        epsilon=target, delta=DELTA, sample_rate=0.3, steps=8, besides=(spent,)
    )
    later = Event(sample_rate=0.3, noise_multiplier=sigma, steps=8)
    assert 0.98 * target < compose([later, spent], delta=DELTA).upper <= target


def test_steps_with_a_pruning_round_are_as_many_as_the_composition_allows():
    sigma = 1.5
    given = {"epsilon": 3.0, "noise_multiplier": sigma}
    steps = max_steps(besides=(PRUNING,), **given, **TRAINING)
    assert 1 < steps < max_steps(**given, **TRAINING)
    for count, within in ((steps, True), (steps + 1, False)):
        events = [Event(sample_rate=0.1, noise_multiplier=sigma, steps=count), PRUNING]
        assert (compose(events, delta=DELTA).upper <= 3.0) == within


def rounds_within(tmp_path, budget: float, *, pruned: bool) -> int:
    """Rounds that a client trains until its ledger says no."""
    ledger = Ledger(tmp_path / f"{pruned}.jsonl", client=3)
    if pruned:
        first = entry(0, steps=1, sample_rate=1.0, noise_multiplier=8.0)
        assert not ledger.would_exceed(first, budget, DELTA)
        ledger.charge(first)
    for round in range(1, 200):
        one = entry(round, steps=1, sample_rate=0.1)
        if ledger.would_exceed(one, budget, DELTA):
            return round - 1
        ledger.charge(one)
    raise AssertionError("the budget does not end")


def test_a_ledger_with_a_pruning_round_stops_earlier_and_exactly_at_the_budget(tmp_path):
    budget = epsilon(noise_multiplier=1.5, steps=12, **TRAINING).upper
    assert rounds_within(tmp_path, budget, pruned=False) == 12
    allowed = rounds_within(tmp_path, budget, pruned=True)
    assert (
        allowed
        == max_steps(epsilon=budget, noise_multiplier=1.5, besides=(PRUNING,), **TRAINING)
        < 12
    )


DELTAS = (1e-12, 1e-15, 1e-30)


def covers_full_batches() -> bool:
    """Whether what is reported of full batches is the exact value, from above."""
    cases = [
        (sigma, steps, delta) for sigma in (1.0, 5.0, 30.0) for steps in (1, 40) for delta in DELTAS
    ]
    exact = [exact_full_batch(*case) for case in cases]
    found = [
        epsilon(sample_rate=1.0, noise_multiplier=s, steps=n, delta=d).upper for s, n, d in cases
    ]
    return all(a * (1 - 1e-9) <= b <= a * (1 + 1e-6) for a, b in zip(exact, found, strict=True))


def test_it_covers_the_analytic_gaussian():
    assert covers_full_batches()


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize(
    ("q", "sigma", "steps"), [(0.02, 1.0, 1000), (0.3, 2.0, 50), (0.001, 0.6, 5000)]
)
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
    assert (
        epsilon(sample_rate=0.1, noise_multiplier=1.0, steps=3, delta=1e-300).accountant == "renyi"
    )


def event(q: float, sigma: float, steps: int = 1) -> Event:
    return Event(sample_rate=q, noise_multiplier=sigma, steps=steps)


def different(count: int, seed: int = 0) -> list[Event]:
    rng = random.Random(seed)
    return [
        event(rng.uniform(0.01, 0.1), rng.uniform(0.8, 4), rng.randint(1, 9)) for _ in range(count)
    ]


def test_fewer_settings_never_lose_less():
    many = canonical(different(40))
    exact = compose(many, delta=DELTA, accountants=("pld",))
    for most in (30, 10, 3, 1):
        found = grid.coarsen(many, most)
        assert 1 <= len(found) <= most
        assert sum(e.steps for e in found) >= sum(e.steps for e in many if e.sample_rate < 1)
        assert compose(found, delta=DELTA, accountants=("pld",)).upper >= exact.upper
    assert grid.coarsen(many, 40) is many


def test_more_settings_than_are_composed_one_by_one_give_an_upper_bound(monkeypatch):
    many = different(40, 1)
    exact = compose(many, delta=DELTA)
    assert exact.witness == "unwitnessed"
    assert f"more than {MAX_WITNESSED_SETTINGS}" in exact.failures["prv"]
    monkeypatch.setattr(certified, "MAX_SETTINGS", 10)
    merged = compose(many, delta=DELTA)
    assert exact.upper <= merged.upper < 1.5 * exact.upper
    assert merged.lower == 0


def test_a_ledger_of_hundreds_of_settings_is_composed_in_seconds():
    many = different(MAX_SETTINGS + 50, 2)
    start = time.process_time()
    bound = compose(many, delta=DELTA)
    assert math.isfinite(bound.upper)
    assert time.process_time() - start < 30, "80 of them took half a minute, 400 did not end"
    assert len(describe(many)) < 400


@pytest.mark.parametrize("q", [5e-324, 1e-3, 1.0])
@pytest.mark.parametrize("sigma", [5e-324, 1e-300, 1e-155, 1e-7, 1e-3, 1e154, 1e308])
@pytest.mark.parametrize("steps", [1, 2**53])
def test_a_number_at_the_edge_gives_a_bound_or_infinity(q, sigma, steps):
    """It was a ZeroDivisionError after everybody had trained."""
    own = [event(q, sigma, steps)]
    honest = [event(0.1, 1.0, 10)]
    for events in (own, own + honest):
        upper = upper_or_inf(events, DELTA)
        assert upper >= 0
        if sigma < 1e-3:
            assert upper == math.inf or upper > 1e5
            assert not surely_within(events, epsilon=8.0, delta=DELTA)
    assert (
        max_steps(
            epsilon=8.0, delta=DELTA, sample_rate=0.1, noise_multiplier=1.0, besides=tuple(own)
        )
        >= 0
    )
    for of in (displayed, spread):
        found = of([honest, own, honest], delta=DELTA)
        assert found.largest >= upper_or_inf(own, DELTA)
        assert found.median == pytest.approx(upper_or_inf(honest, DELTA))


def test_one_client_without_a_bound_leaves_the_median_to_the_others():
    honest = [[event(0.1, 1.0, 10 + client)] for client in range(30)]
    found = spread([*honest, [event(1.0, 1e-300)]], delta=DELTA)
    assert (found.largest, found.worst) == (math.inf, 30)
    assert found.median < 5
