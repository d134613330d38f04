"""What a run has spent, kept up to date by the clients of each round, is what all ledgers say."""

import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from fedlsg.accounting import compose
from fedlsg.privacy import Entry, RunLedger
from simulations.rundir.rundir import RunDir
from simulations.server.spent import Spent

CLIENTS, DELTA = 7, 1e-5
ROUNDS = st.lists(st.dictionaries(st.integers(0, CLIENTS - 1), st.sampled_from([1.5, 3.0])), max_size=5)


def entry(client: int, round: int, sigma: float, mechanism: str = "dp") -> Entry:
    return Entry(
        client=client, round=round, attempt=0, steps=1, sample_rate=0.2, noise_multiplier=sigma, clip_norm=1.0,
        num_examples=40, mechanism=mechanism,
    )  # fmt: skip


def spent_of(folder: str, rounds: list[dict[int, float]]) -> Spent:
    ledger, spent = RunLedger(Path(folder) / "ledger"), Spent(RunDir(Path(folder)), CLIENTS, delta=DELTA)
    for round, sigmas in enumerate(rounds, 1):
        ledger.charge([entry(client, round, sigma) for client, sigma in sigmas.items()])
        spent.update(sigmas, [])
    return spent


@settings(max_examples=5)
@given(ROUNDS)
def test_rounds_one_by_one_are_what_all_ledgers_say(rounds):
    """Oracle: each client composed alone, in a new reader."""
    with TemporaryDirectory() as folder:
        spent = spent_of(folder, rounds)
        shown, ledger = spent.displayed(), RunLedger(Path(folder) / "ledger")
        each = [compose(ledger.of(client).events(), delta=DELTA).upper for client in range(CLIENTS)]
        found = spent.certified()
        assert (found.largest, found.median) == (max(each), statistics.median(each))
        assert found.worst == each.index(max(each))
        assert shown.largest >= 0.999 * found.largest * (bool(rounds))
        assert (spent.displayed().largest, spent.displayed().median) == (shown.largest, shown.median)
        assert spent.by_reader()["outside"] <= found.largest * (1 + 1e-9)


def test_an_entry_without_privacy_has_no_bound(tmp_path):
    spent = spent_of(str(tmp_path), [{0: 3.0, 1: 3.0}])
    RunLedger(tmp_path / "ledger").charge([entry(3, 2, 0.0, "clip-only")])
    spent.update([3], [])
    found = spent.certified()
    assert (spent.displayed().largest, found.largest, found.worst) == (float("inf"), float("inf"), 3)
