"""A ledger of discrete noise: each entry's Lambda is on file, in epsilon and in the budget; old
lines are unchanged.
"""

import json
import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlsg.accounting import Event, compose, max_steps
from fedlsg.privacy import BudgetError, Entry, Ledger, RunLedger
from fedlsg.privacy import ledger as ledger_module
from fedlsg.privacy import totals as totals_module
from fedlsg.privacy.ledger_copy import extend, head_of, lines_since
from fedlsg.privacy.ledger_entry import decode_entry, encode_entry, encode_line

DELTA = 1e-5
OLD = (
    '{"client": 3, "round": 1, "attempt": 0, "steps": 2, "sample_rate": 1.0, "noise_multiplier": 6.0, "clip_norm": 0.5,'
    ' "num_examples": 300, "mechanism": "dp", "reproducible": false}'
)
"""An entry as it was written before entries had a Lambda."""


def entry(round: int = 1, log_ratio: float = 0.0, **changes) -> Entry:
    return Entry(**{**json.loads(OLD), "round": round, "log_ratio": log_ratio, **changes})


def filled(path, *entries: Entry) -> Ledger:
    ledger = Ledger(path, client=3)
    for one in entries:
        ledger.charge(one)
    return ledger


@settings(max_examples=25, deadline=None)
@given(ratios=st.lists(st.floats(0, 1e300), max_size=6))
def test_a_reopened_ledger_holds_every_lambda_and_events_have_at_least_their_sum(
    ratios, tmp_path_factory
):
    path = tmp_path_factory.mktemp("ledger") / "l.jsonl"
    entries = tuple(entry(round, log_ratio) for round, log_ratio in enumerate(ratios))
    ledger = filled(path, *entries)
    assert Ledger(path, client=3).entries == ledger.entries == entries
    assert Ledger(path, client=3).events() == ledger.events()
    if entries:
        (event,) = ledger.events()
        assert event.steps == 2 * len(ratios)
        assert math.fsum(ratios) <= event.log_ratio <= math.fsum(ratios) * (1 + 1e-14) + 1e-320


def test_an_old_line_is_read_as_lambda_zero_and_written_the_same(tmp_path):
    old = decode_entry(json.loads(OLD))
    assert old == entry()
    assert old.log_ratio == 0.0
    assert json.dumps(encode_entry(entry(log_ratio=-0.0))) == OLD
    assert json.dumps(encode_entry(entry(run="a"))) == OLD[:-1] + ', "run": "a"}'
    path = tmp_path / "l.jsonl"
    header = filled(path, entry()).path.read_bytes().splitlines()[0]
    new = json.loads(path.read_bytes().splitlines()[1])
    assert encode_line(json.loads(OLD), new["prev"]) == path.read_bytes().splitlines()[1]
    assert b"log_ratio" not in header + path.read_bytes()


@pytest.mark.parametrize(
    "wrong",
    [
        {"log_ratio": -1e-9},
        {"log_ratio": math.inf},
        {"log_ratio": math.nan},
        {"log_ratio": 1e-9, "mechanism": "clip-only", "noise_multiplier": 0.0},
        {"log_ratio": 1e-9, "mechanism": "none", "noise_multiplier": 0.0, "clip_norm": math.inf},
    ],
    ids=str,
)
def test_a_lambda_out_of_range_is_refused(wrong):
    with pytest.raises(ValueError, match="log_ratio"):
        entry(**wrong)


def test_the_ledger_of_a_run_and_a_copy_keep_lambda(tmp_path):
    run = RunLedger(tmp_path)
    run.charge([entry(log_ratio=0.1), entry(2, 0.2)])
    assert list(RunLedger(tmp_path).of(3).entries) == [entry(log_ratio=0.1), entry(2, 0.2)]
    ledger = filled(tmp_path / "own.jsonl", *run.of(3).entries)
    assert ledger.events() == run.of(3).events()
    copy = tmp_path / "copy.jsonl"
    extend(copy, 3, lines_since(ledger.path, 3), head_of(ledger.path, 3))
    assert Ledger(copy, client=3).events() == ledger.events()
    assert ledger.events()[0].log_ratio == pytest.approx(0.3)


def test_epsilon_is_that_of_the_events_with_their_lambda(tmp_path):
    ledger = filled(
        tmp_path / "l.jsonl", entry(1, 0.1), entry(2), entry(3, 0.2, noise_multiplier=9.0)
    )
    events = [
        Event(sample_rate=1.0, noise_multiplier=6.0, steps=4, log_ratio=0.1),
        Event(sample_rate=1.0, noise_multiplier=9.0, steps=2, log_ratio=0.2),
    ]
    assert ledger.epsilon(DELTA).upper == pytest.approx(
        compose(events, delta=DELTA).upper, rel=1e-12
    )
    assert ledger.epsilon(DELTA).upper > compose(events[:1], delta=DELTA).upper + 0.4


def test_a_sum_beyond_all_floats_is_refused_as_over_every_budget(tmp_path):
    ledger = filled(tmp_path / "l.jsonl", entry(1, 1.7e308), entry(2, 1.7e308))
    for number, small in ((3, entry(3)), (4, entry(4, noise_multiplier=7.0)), (5, entry(5, 1.0))):
        assert ledger.would_exceed(small, 1e300, DELTA)
        with pytest.raises(BudgetError):
            ledger.charge(entry(number), within=(1e300, DELTA))


def test_extreme_lambdas_are_decided(tmp_path):
    """Near the budget, where the closed bound does not decide."""
    ledger = Ledger(tmp_path / "l.jsonl", client=3)
    budget = (
        compose([Event(sample_rate=1.0, noise_multiplier=6.0, steps=1)], delta=DELTA).upper * 1.001
    )
    for log_ratio in (5e-324, 1e-308, 1e-9):
        assert not ledger.would_exceed(entry(steps=1, log_ratio=log_ratio), budget, DELTA)
    for log_ratio in (0.01, 700.0, 1e300, sys.float_info.max):
        assert ledger.would_exceed(entry(steps=1, log_ratio=log_ratio), budget, DELTA)


LAMBDA = 0.05  # of a round of two steps
PRUNING = (0, 0.15, {"noise_multiplier": 12.0, "steps": 1})


def rounds(path, budget: float, before: tuple[Entry, ...]) -> int:
    """Rounds that a client trains until its ledger refuses."""
    ledger = filled(path, *before)
    for round in range(1, 100):
        try:
            ledger.charge(entry(round, LAMBDA), within=(budget, DELTA))
        except BudgetError:
            return round - 1
    raise AssertionError("the budget does not end")


def stops_at_the_budget(folder) -> bool:
    """Whether a client trains exactly the rounds whose composition is within its budget, whichever
    path decides.
    """
    max_steps.cache_clear()
    found = []
    for name, before in {
        "alone": (),
        "pruned": (entry(PRUNING[0], PRUNING[1], **PRUNING[2]),),
    }.items():
        events = [
            Event(
                sample_rate=1.0,
                noise_multiplier=e.noise_multiplier,
                steps=e.steps,
                log_ratio=e.log_ratio,
            )
            for e in (*before, entry(1, LAMBDA * 7, steps=14))
        ]
        budget = compose(events, delta=DELTA).upper + 1e-6
        for many in (ledger_module.MANY_SEARCHES, 0):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ledger_module, "MANY_SEARCHES", many)
                found.append(rounds(folder / f"{name}-{many}.jsonl", budget, before))
    max_steps.cache_clear()
    return found == [7] * 4


def together_without(before, entry):
    steps, _ = before or (0, 0.0)
    return steps + entry.steps, 0.0


def together_with_the_last(before, entry):
    return together_without(before, entry)[0], entry.log_ratio


def events_without(spent):
    return tuple(
        Event(sample_rate=q, noise_multiplier=sigma, steps=n)
        for (q, sigma), (n, _) in sorted(spent.items())
    )


def always_sure(events, *, epsilon, delta):
    plain = events_without({(e.sample_rate, e.noise_multiplier): (e.steps, 0.0) for e in events})
    return compose(plain, delta=delta).upper <= epsilon


def steps_without(*, log_ratio, **setting):
    return max_steps(**setting)


steps_without.cache_info = max_steps.cache_info
PLANTS = {
    "a sum that forgets": ("_together", together_without),
    "a sum that has the last": ("_together", together_with_the_last),
    "events that forget": ("_events", events_without),
    "sure without Lambda": ("surely_within", always_sure),
    "steps without Lambda": ("max_steps", steps_without),
}


def test_a_client_stops_exactly_at_its_budget(tmp_path):
    assert stops_at_the_budget(tmp_path)


@pytest.mark.parametrize("name", PLANTS)
def test_a_budget_that_ignores_lambda_is_caught(name, tmp_path, monkeypatch):
    function, mistake = PLANTS[name]
    where = totals_module if hasattr(totals_module, function) else ledger_module
    monkeypatch.setattr(where, function, mistake)
    assert not stops_at_the_budget(tmp_path)


def test_a_would_exceed_that_ignores_lambda_is_caught(tmp_path, monkeypatch):
    shipped = Ledger.would_exceed

    def ignoring(self, entry, *budget, **options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(totals_module, "_events", events_without)
            return shipped(self, entry, *budget, **options)

    monkeypatch.setattr(Ledger, "would_exceed", ignoring)
    assert not stops_at_the_budget(tmp_path)
