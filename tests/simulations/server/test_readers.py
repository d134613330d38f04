"""Epsilon of a finished run against each reader: from the lines of its ledgers alone, and from K
and the shares.
"""

import json
import math
import statistics
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from fedlsg import load_run
from fedlsg.accounting import compose, epsilon
from fedlsg.privacy import Entry, Ledger, RunLedger
from fedlsg.simulations.attacks.audit.audited import audited_run
from fedlsg.simulations.report.page_of_run.run_page import run_page
from fedlsg.simulations.report.words import outcome
from fedlsg.simulations.run.commands import continued
from fedlsg.simulations.server.spent import Spent
from fedlsg.simulations.storage.results import read_run
from fedlsg.simulations.storage.run_directory import RunDir
from tests.simulations.support.runs import Run, reconfigure, run_local, stopped_after

SIGMA, RATE, ROUNDS, DELTA = 2.0, 0.05, 2, 1e-5
SECRET: dict[str, Any] = {"reproducible": False}
SUMS: dict[str, dict[str, Any]] = {
    "two clients": {"trust": "secure"},
    "three clients": {"trust": "secure", "clients": 3},
    "five clients": {"trust": "secure", "clients": 5, "method": "dpsgd"},
    "many clients": {"trust": "secure", "clients": 21, "colluders": 3},
    "an assumed sum of two": {"trust": "aggregate"},
    "an assumed sum": {"trust": "aggregate", "clients": 4, "min_survivors": 3},
    "whole clients": {
        "trust": "secure",
        "clients": 3,
        "unit": "client",
        "sample_rate": None,
        "batch_size": 20,
    },
}
EXPECTED = {  # the fewest clients of a sum, and those of them who read together
    "two clients": (2, 1),
    "three clients": (3, 1),
    "five clients": (5, 1),
    "many clients": (19, 3),
    "an assumed sum of two": (2, 1),
    "an assumed sum": (3, 1),
    "whole clients": (3, 1),
}


def lines(path: Path) -> list[dict[str, Any]]:
    """Every record of the run's ledger, as JSON: one a round, in which all clients have the same
    terms.
    """
    return [
        json.loads(line)["charged"]
        for line in (path / "ledger" / "run.jsonl").read_text().splitlines()[1:]
    ]


def from_lines(path: Path, known: int) -> float:
    """Epsilon against a reader who knows so many shares, from the text of the ledgers and nothing
    else.
    """
    (terms,) = {
        (e["sample_rate"], e["noise_multiplier"], e.get("min_survivors", 0), e.get("colluders", 0))
        for e in lines(path)
    }
    rate, sigma, shares, readers = terms
    noise = sigma * math.sqrt((shares - known) / (shares - readers)) if shares else sigma
    return epsilon(
        sample_rate=rate, noise_multiplier=noise, steps=len(lines(path)), delta=DELTA
    ).upper


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "case",
    [
        case if turn % 2 == 0 else pytest.param(case, marks=pytest.mark.slow)
        for turn, case in enumerate(SUMS)
    ],
)
def test_a_run_names_the_reader_of_each_epsilon(case, tmp_path):
    run = run_local(tmp_path / "run", **SECRET | {"rounds": ROUNDS} | SUMS[case])
    survivors, readers = EXPECTED[case]
    found, rate = run.summary["epsilon_by_reader"], 1.0 if "unit" in SUMS[case] else RATE
    share = SIGMA / math.sqrt(survivors - readers)
    for names, known in (
        (("outside", "server"), 0),
        (("participant",), 1),
        (("participants", "server_and_participants"), readers),
    ):
        noise = share * math.sqrt(survivors - known)
        true = epsilon(sample_rate=rate, noise_multiplier=noise, steps=ROUNDS, delta=DELTA).upper
        for name in names:
            assert found[name] == pytest.approx(true, rel=1e-6)
            assert found[name] == pytest.approx(from_lines(run.path, known), rel=1e-6)
    assert run.summary["epsilon_max"] == max(found.values()) == found["server_and_participants"]
    words = outcome(run.summary)["readers"]
    who = "one participant" if readers == 1 else f"{readers} participants"
    assert f"against {who}, also together with the server" in words
    assert "against the outside or the server alone" in words
    assert "also together with the server" in run_page(read_run(run.path))


def test_one_number_holds_for_every_reader_where_each_payload_has_all_of_its_noise(tmp_path):
    run = run_local(tmp_path / "run", **SECRET)
    assert set(run.summary["epsilon_by_reader"].values()) == {run.summary["epsilon_max"]}
    assert not {"min_survivors", "colluders"} & set().union(*lines(run.path))
    assert "readers" not in outcome(run.summary)
    assert "the same against everybody who reads it" in run_page(read_run(run.path))


def test_nothing_is_said_of_a_server_that_adds_the_noise(tmp_path):
    settings = {
        "unit": "client",
        "trust": "server",
        "sample_rate": None,
        "batch_size": 20,
        "clients_per_round": 3,
    }
    run = run_local(tmp_path / "run", **SECRET | settings, clients=8)
    assert run.summary["epsilon_by_reader"].keys() == {"outside", "participant", "participants"}
    assert set(run.summary["epsilon_by_reader"].values()) == {run.summary["epsilon_max"]}


def test_a_reader_who_is_given_the_outside_s_epsilon_is_caught(tmp_path):
    """Negative control: a ledger whose lines claim one share more than there was."""
    run = run_local(tmp_path / "run", **SECRET, trust="secure", clients=3)
    told = from_lines(run.path, 0)
    assert told < from_lines(run.path, 1) * 0.9


def made_old(run: Run, *, trust: str) -> Run:
    """As an older version left it: no reader in summary and ledgers, and ``colluders = 0`` in its
    settings.

    Its noise multiplier was that of all m shares.
    """
    entries = [entry for client in run.directory.charges.clients() for entry in run.entries(client)]
    run.directory.charges.path.unlink()
    for entry in entries:
        own = Ledger(run.directory.ledger(entry.client), client=entry.client)
        own.charge(replace(entry, min_survivors=0, colluders=0))
    if trust == "secure":
        reconfigure(run, colluders=0)
    if run.directory.summary.exists():
        summary = run.directory.read_summary()
        del summary["epsilon_by_reader"]
        if trust == "secure":
            summary["secure_sum"] |= {
                "colluders": 0,
                "contributors": summary["secure_sum"]["min_survivors"],
            }
        run.directory.write_summary(summary)
    for path in (*run.path.glob("manifest.json*"), *run.path.glob("clients/manifest.json*")):
        path.unlink()
    return run


@pytest.mark.thinned(2)
@pytest.mark.parametrize("trust", ["secure", "aggregate"])
@pytest.mark.parametrize("finished", [True, False])
def test_an_old_run_whose_epsilon_is_too_small_is_named_and_not_shown_or_continued(
    trust, finished, tmp_path
):
    """Negative control: the same run as it is left today is read."""
    make = run_local if finished else partial(stopped_after, 1)
    run = make(tmp_path / "run", **SECRET, trust=trust, clients=3)
    assert read_run(run.path).done == finished
    old = made_old(run, trust=trust)
    refusal = (
        r"before version 0.1, which counted each client's own noise as protection .* Start a new "
        r"run"
    )
    for read in (
        read_run,
        audited_run,
        lambda path: continued(RunDir(Path(path)), Console(quiet=True)),
        load_run,
    ):
        with pytest.raises(ValueError, match=refusal):
            read(old.path)


def test_a_damaged_summary_stops_no_run_whose_ledgers_say_that_it_is_of_today(tmp_path):
    run = run_local(tmp_path / "run", **SECRET, trust="aggregate", clients=3)
    summary = run.directory.summary
    summary.write_bytes(summary.read_bytes()[:200])
    continued(run.directory, Console(quiet=True))
    assert not summary.exists(), "resume writes it again"


CLIENTS, SPENT_DELTA = 7, 1e-5
ASKED = st.lists(
    st.dictionaries(st.integers(0, CLIENTS - 1), st.sampled_from([1.5, 3.0])), max_size=5
)


def entry(client: int, round: int, sigma: float, mechanism: str = "dp") -> Entry:
    return Entry(
        client=client,
        round=round,
        attempt=0,
        steps=1,
        sample_rate=0.2,
        noise_multiplier=sigma,
        clip_norm=1.0,
        num_examples=40,
        mechanism=mechanism,
    )


def spent_of(folder: str, rounds: list[dict[int, float]]) -> Spent:
    ledger = RunLedger(Path(folder) / "ledger")
    spent = Spent(RunDir(Path(folder)), CLIENTS, delta=SPENT_DELTA)
    for round, sigmas in enumerate(rounds, 1):
        ledger.charge([entry(client, round, sigma) for client, sigma in sigmas.items()])
        spent.update(sigmas, [])
    return spent


@settings(max_examples=5)
@given(ASKED)
def test_rounds_one_by_one_are_what_all_ledgers_say(rounds):
    """Oracle: each client composed alone, in a new reader."""
    with TemporaryDirectory() as folder:
        spent = spent_of(folder, rounds)
        shown, ledger = spent.displayed(), RunLedger(Path(folder) / "ledger")
        each = [
            compose(ledger.of(client).events(), delta=SPENT_DELTA).upper
            for client in range(CLIENTS)
        ]
        found = spent.certified()
        assert (found.largest, found.median) == (max(each), statistics.median(each))
        assert found.worst == each.index(max(each))
        assert shown.largest >= 0.999 * found.largest * (bool(rounds))
        assert (spent.displayed().largest, spent.displayed().median) == (
            shown.largest,
            shown.median,
        )
        assert spent.by_reader()["outside"] <= found.largest * (1 + 1e-9)


def test_an_entry_without_privacy_has_no_bound(tmp_path):
    spent = spent_of(str(tmp_path), [{0: 3.0, 1: 3.0}])
    RunLedger(tmp_path / "ledger").charge([entry(3, 2, 0.0, "clip-only")])
    spent.update([3], [])
    found = spent.certified()
    assert (spent.displayed().largest, found.largest, found.worst) == (
        float("inf"),
        float("inf"),
        3,
    )
