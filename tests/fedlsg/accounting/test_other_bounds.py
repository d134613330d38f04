"""Calibration and step counts with another event: composition, never addition, and never less than what is there."""

import pytest

from fedlsg.accounting.bounds import compose, epsilon
from fedlsg.accounting.calibrate import calibrate_noise_multiplier, max_steps
from fedlsg.accounting.events import AccountingError, Event
from fedlsg.privacy.ledger import Entry, Ledger

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


def test_steps_with_a_pruning_round_are_as_many_as_the_composition_allows():
    sigma = 1.5
    given = {"epsilon": 3.0, "noise_multiplier": sigma}
    steps = max_steps(besides=(PRUNING,), **given, **TRAINING)
    assert 1 < steps < max_steps(**given, **TRAINING)
    for count, within in ((steps, True), (steps + 1, False)):
        events = [Event(sample_rate=0.1, noise_multiplier=sigma, steps=count), PRUNING]
        assert (compose(events, delta=DELTA).upper <= 3.0) == within


def entry(round: int, **changes) -> Entry:
    known = {
        "client": 0, "round": round, "attempt": 0, "steps": 1, "sample_rate": 0.1, "noise_multiplier": 1.5,
        "clip_norm": 1.0, "num_examples": 100, "mechanism": "dp",
    }  # fmt: skip
    return Entry(**(known | changes))


def rounds_within(tmp_path, budget: float, *, pruned: bool) -> int:
    """Rounds that a client trains until its ledger says no."""
    ledger = Ledger(tmp_path / f"{pruned}.jsonl", client=0)
    if pruned:
        first = entry(0, sample_rate=1.0, noise_multiplier=8.0)
        assert not ledger.would_exceed(first, budget, DELTA)
        ledger.charge(first)
    for round in range(1, 200):
        if ledger.would_exceed(entry(round), budget, DELTA):
            return round - 1
        ledger.charge(entry(round))
    raise AssertionError("the budget does not end")


def test_a_ledger_with_a_pruning_round_stops_earlier_and_exactly_at_the_budget(tmp_path):
    budget = epsilon(noise_multiplier=1.5, steps=12, **TRAINING).upper
    assert rounds_within(tmp_path, budget, pruned=False) == 12
    allowed = rounds_within(tmp_path, budget, pruned=True)
    assert allowed == max_steps(epsilon=budget, noise_multiplier=1.5, besides=(PRUNING,), **TRAINING) < 12
