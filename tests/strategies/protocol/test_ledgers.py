"""What the server knows and believes: charges by its copy of a ledger, the simulated clock, the
noise in a sum.
"""

from dataclasses import replace
from math import hypot

import pytest
from flwr.common.constant import ErrorCode

from fedlsg.method import LocalTraining
from fedlsg.participation import Participation
from fedlsg.payload import find_codec
from fedlsg.privacy import Entry, Ledger, LedgerError, ledger_path
from fedlsg.strategies.protocol.expectations import Expectations, Uplink
from fedlsg.strategies.protocol.proofs import LedgerCopies
from fedlsg.strategies.protocol.round_report import (
    AWAY,
    RoundReport,
    Sent,
    SimulatedClock,
    traffic_of,
)
from fedlsg.strategies.protocol.wire import OVER_BUDGET
from fedlsg.strategies.strategy import BudgetSpentError, FederationSettings, Patience
from tests.strategies.small_federation import public_terms, server_state

ENTRY = Entry(
    client=0,
    round=2,
    attempt=0,
    steps=3,
    sample_rate=0.1,
    noise_multiplier=2.0,
    clip_norm=1.0,
    num_examples=100,
    mechanism="dp",
    reproducible=False,
    run="a",
)
TERMS = {
    "steps": 3,
    "sample_rate": 0.1,
    "noise_multiplier": 2.0,
    "clip_norm": 1.0,
    "num_examples": 100,
    "mechanism": "dp",
}


def copies(folder, entry: Entry) -> LedgerCopies:
    Ledger(ledger_path(folder, 0), client=0).charge(entry)
    return LedgerCopies(folder=folder, run="a")


def test_the_announced_charge_is_accepted(tmp_path):
    copies(tmp_path, ENTRY).insist(0, 2, TERMS)


@pytest.mark.parametrize(
    "other",
    [
        {"steps": 2},
        {"sample_rate": 0.05},
        {"noise_multiplier": 4.0},
        {"clip_norm": 0.5},
        {"num_examples": 200},
    ],
    ids=str,
)
def test_a_charge_of_other_terms_is_refused_by_their_name(other, tmp_path):
    (name,) = other
    with pytest.raises(
        LedgerError, match=rf"client 0 charged round 2 with {name}=.*announced {TERMS[name]}"
    ):
        copies(tmp_path, replace(ENTRY, **other)).insist(0, 2, TERMS)


def test_a_charge_of_another_lambda_is_refused(tmp_path):
    """0 unless it is announced."""
    copies(tmp_path / "same", replace(ENTRY, log_ratio=0.1)).insist(
        0, 2, TERMS | {"log_ratio": 0.1}
    )
    for number, (charged, announced) in enumerate(
        [(0.0, {"log_ratio": 0.1}), (0.1, {}), (0.1, {"log_ratio": 0.2})]
    ):
        own = copies(tmp_path / f"{number}", replace(ENTRY, log_ratio=charged))
        with pytest.raises(LedgerError, match=rf"log_ratio={charged} \(announced"):
            own.insist(0, 2, TERMS | announced)


@pytest.mark.parametrize("other", [{"round": 1}, {"run": "b"}], ids=str)
def test_a_charge_of_another_round_or_run_is_none(other, tmp_path):
    with pytest.raises(LedgerError, match="its ledger has no entry for that round"):
        copies(tmp_path, replace(ENTRY, **other)).insist(0, 2, TERMS)


REFUSED = f"[{OVER_BUDGET}] round 3 would pass the privacy budget"


def report(**more: object) -> RoundReport:
    return RoundReport(**({"round": 3, "asked": [0, 1, 2]} | more))  # type: ignore[arg-type]


def test_the_clock_reads_the_payload_bytes_of_every_message_and_goes_on_from_round_to_round():
    sent = [
        Sent(0, "down", 0, 1000, 9999),
        Sent(1, "down", 0, 1000, 9999),
        Sent(0, "up", 0, 500, 9999),
    ]
    sent += [Sent(0, "up", 0, 500, 9999), Sent(1, "up", 0, 3000, 9999)]
    one = Participation(
        clients=2, per_round=2, seed=0, compute_seconds=[2.0, 1.0], uplink=8000.0, downlink=8000.0
    )
    clock = SimulatedClock(one)
    for round in (1, 2):
        done = report(round=round, asked=clock.select(round), sent=sent)
        assert traffic_of(done) == {0: (1000, 1000), 1: (1000, 3000)}
        assert clock.late(done, [0, 1]) == []
        done.answered = [0, 1]
        clock.close(done)
        assert done.simulated_clock == clock.now == 5.0 * round, (
            "client 1: a second down, one of work, three up"
        )


def test_dropouts_are_no_refusals_and_a_federation_without_budget_ends_regularly_after_three_rounds():
    everybody = report(rejected=dict.fromkeys(range(3), REFUSED))
    with pytest.raises(
        BudgetSpentError, match="the privacy budget of every client was spent before round 3"
    ):
        Patience().count(everybody, updated=False)
    some, patience = report(rejected={0: REFUSED}, dropped=[1, 2]), Patience()
    for _ in range(2):
        patience.count(some, updated=False)
    with pytest.raises(
        BudgetSpentError,
        match="no client was left with privacy budget in round 3: 3 selected, 1 rejec",
    ):
        patience.count(some, updated=False)
    nobody, patience = report(asked=[]), Patience()
    assert not nobody.budget_spent
    for _ in range(2):
        patience.count(nobody, updated=False)
    with pytest.raises(RuntimeError, match="no valid update in 3 rounds in a row: 0 selected"):
        patience.count(nobody, updated=False)


def test_the_noise_of_a_sum_is_that_of_all_clients_in_it():
    state = server_state(clip_norm=0.5)
    local = LocalTraining()
    terms = [public_terms(1, noise_multiplier=sigma)[0] for sigma in (1.0, 2.0, 3.0)]
    uplink = Uplink(method=state.method, codec=find_codec("float32"), seed=state.seed)
    settings = FederationSettings(terms=terms, clients_per_round=3, local=local, uplink=uplink)
    known = Expectations(state=state, settings=settings)
    for clients in ((0,), (0, 2), (0, 1, 2)):
        each = [0.5 * (client + 1) for client in clients]
        assert known.noise_of_sum(clients, state.plan(local)) == pytest.approx(hypot(*each))


def test_a_client_that_is_gone_is_lost_and_not_rejected():
    gone = {0: AWAY, 1: f"[{ErrorCode.NODE_UNAVAILABLE}] Node Unavailable", 2: "payload checksum"}
    assert report(rejected=gone).counts == "3 selected, 2 lost, 1 rejected"
    assert report(rejected={2: "payload checksum"}).counts == "3 selected, 1 rejected"
