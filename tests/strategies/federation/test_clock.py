"""The simulated clock on reports that are made by hand, and when a run without updates ends."""

import pytest

from fedlsg.participation import Participation
from strategies.federation.report import RoundReport, Sent, SimulatedClock, traffic_of
from strategies.federation.wire import OVER_BUDGET
from strategies.strategy import BudgetSpentError, Patience

REFUSED = f"[{OVER_BUDGET}] round 3 would pass the privacy budget"


def report(**more: object) -> RoundReport:
    return RoundReport(**({"round": 3, "asked": [0, 1, 2]} | more))  # type: ignore[arg-type]


def test_the_clock_reads_the_payload_bytes_of_every_message_and_goes_on_from_round_to_round():
    sent = [Sent(0, "down", 0, 1000, 9999), Sent(1, "down", 0, 1000, 9999), Sent(0, "up", 0, 500, 9999)]
    sent += [Sent(0, "up", 0, 500, 9999), Sent(1, "up", 0, 3000, 9999)]
    one = Participation(clients=2, per_round=2, seed=0, compute_seconds=[2.0, 1.0], uplink=8000.0, downlink=8000.0)
    clock = SimulatedClock(one)
    for round in (1, 2):
        done = report(round=round, asked=clock.select(round), sent=sent)
        assert traffic_of(done) == {0: (1000, 1000), 1: (1000, 3000)}
        assert clock.late(done, [0, 1]) == []
        done.answered = [0, 1]
        clock.close(done)
        assert done.simulated_clock == clock.now == 5.0 * round, "client 1: a second down, one of work, three up"


def test_dropouts_are_no_refusals_and_a_federation_without_budget_ends_regularly_after_three_rounds():
    everybody = report(rejected=dict.fromkeys(range(3), REFUSED))
    with pytest.raises(BudgetSpentError, match="the privacy budget of every client was spent before round 3"):
        Patience().count(everybody, updated=False)
    some, patience = report(rejected={0: REFUSED}, dropped=[1, 2]), Patience()
    for _ in range(2):
        patience.count(some, updated=False)
    with pytest.raises(
        BudgetSpentError, match="no client was left with privacy budget in round 3: 3 selected, 1 rejec"
    ):
        patience.count(some, updated=False)
    nobody, patience = report(asked=[]), Patience()
    assert not nobody.budget_spent
    for _ in range(2):
        patience.count(nobody, updated=False)
    with pytest.raises(RuntimeError, match="no valid update in 3 rounds in a row: 0 selected"):
        patience.count(nobody, updated=False)


def test_one_client_alone_ends_no_run_of_many():
    """Selected alone, it says that its budget is spent, or fails, as often as it likes."""
    patience = Patience(3)
    alone = report(asked=[1], rejected={1: REFUSED})
    for _ in range(5):
        patience.count(alone, updated=False)
    with pytest.raises(BudgetSpentError, match="of every client"):
        patience.count(report(asked=[2], rejected={2: REFUSED}), updated=False)
    patience = Patience(3)
    for _ in range(5):
        patience.count(report(asked=[1], rejected={1: "payload length"}), updated=False)
    with pytest.raises(RuntimeError, match="no valid update in 3 rounds"):
        patience.count(report(asked=[2], rejected={2: "payload length"}), updated=False)
    with pytest.raises(BudgetSpentError):
        Patience(1).count(alone, updated=False)
