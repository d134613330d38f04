"""A deployed client's budget is its own: nothing that a server says gives it a round more."""

import contextlib
import multiprocessing
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedlsg.accounting.certified import epsilon
from fedlsg.privacy.ledger import Entry, Ledger
from fedlsg.simulations.client.deployed import NodeAccount
from fedlsg.simulations.client.node.folder import Budget, NodeFolder
from fedlsg.simulations.client.node.node_config import read_terms
from fedlsg.simulations.client.node.refusals import OverBudgetError
from tests.simulations.support.deployed import (
    Server,
    digits_file,
    entries,
    examples,
    new_process,
    payload,
    refusal,
    terms,
)

STEPS = 3
BUDGET = 1.0001 * 0.2493455005
"""What three rounds of the small run spend: a number, for the accountants take seconds when tests
are collected.
"""

ENTRY = Entry(
    client=0,
    round=1,
    attempt=0,
    steps=1,
    sample_rate=0.05,
    noise_multiplier=2.0,
    clip_norm=0.5,
    num_examples=719,
    mechanism="dp",
)

WAYS: dict[str, dict[str, Any]] = {
    "the same server": {},
    "a new run": {"run": "run-2"},
    "another harmless setting": {"evaluate_every": 2},
    "a new run with another harmless setting": {
        "run": "run-2",
        "round_timeout": 1000.0,
        "run_dir": "/other",
    },
    "another method": {"run": "run-2", "method": "dpsgd"},
    "another seed": {"run": "run-2", "seed": 9},
    "another number of rounds": {"run": "run-2", "rounds": 100},
    "a budget of the run's own": {"run": "run-2", "epsilon": BUDGET},
}


def test_the_budget_is_what_three_rounds_spend():
    bound = epsilon(sample_rate=0.05, noise_multiplier=2.0, steps=STEPS, delta=1e-5)
    assert pytest.approx(1.0001 * bound.upper, rel=1e-7) == BUDGET


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """The client's own data, which no setting of a run changes."""
    return str(digits_file(tmp_path / "rows.npz"))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("way", WAYS)
def test_what_is_spent_stays_spent_however_the_server_asks(way, tmp_path, rows):
    """The attack: a budget that was spent, and then another run directory with one harmless setting
    changed.
    """
    node = terms(tmp_path / "node", epsilon_max=BUDGET, data=rows)
    assert Server.start(node, tmp_path / "copy").rounds(10) == STEPS
    again = Server.start(node, tmp_path / "copy", **WAYS[way])
    assert examples(again.query()) == 200  # the server still gets the ledger
    for _ in range(2):
        elsewhere = again.train(STEPS + 1, run_dir=str(tmp_path / "elsewhere"))
        assert "[1003] round 4 would pass epsilon-max" in refusal(elsewhere)
        new_process()
    assert len(entries(tmp_path / "node")) == STEPS
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.thinned(6)
@pytest.mark.parametrize("way", WAYS)
def test_the_same_question_is_answered_where_the_budget_is_not_spent(way, tmp_path, rows):
    """Control: it is the budget that refuses above, and nothing else of the question."""
    node = terms(tmp_path / "node", epsilon_max=3.0, data=rows)
    again = Server.start(node, tmp_path / "copy", **WAYS[way])
    payload(again.train(STEPS + 1))
    assert len(entries(tmp_path / "node")) == 1


def test_a_budget_of_the_run_alone_would_be_passed(tmp_path, monkeypatch):
    """Negative control: a client that looks at the run's own budget only goes on in every new
    run.
    """
    monkeypatch.setattr(NodeAccount, "budgets", property(lambda self: shipped(self)[1:]))
    node = terms(tmp_path / "node", epsilon_max=BUDGET)
    for run in ("run-1", "run-2"):
        assert Server.start(node, tmp_path / "copy", run=run, epsilon=BUDGET).rounds(10) == STEPS
    assert len(entries(tmp_path / "node")) == 2 * STEPS


shipped = NodeAccount.budgets.fget


def test_a_stored_payload_is_sent_again_for_free(tmp_path):
    server = Server.start(terms(tmp_path / "node", epsilon_max=BUDGET), tmp_path / "copy")
    first = payload(server.train(1))
    new_process()
    assert payload(server.train(1)) == first
    assert len(entries(tmp_path / "node")) == 1
    (tmp_path / "node/runs/run-1/checkpoint/outbox/client-000000.bin").unlink()
    assert payload(server.train(1)) != first
    assert [e.attempt for e in entries(tmp_path / "node")] == [0, 1]


def _race(node: dict[str, Any], copy: Path, run: str, barrier: Any, answered: Any) -> None:
    server = Server.start(node, copy, run=run)
    server.query()
    barrier.wait()
    answered.put(server.rounds(STEPS))


@pytest.mark.slow
def test_two_processes_on_one_ledger_spend_it_once(tmp_path):
    """Two runs at once: the rounds that both give together are those that the budget allows."""
    node = terms(tmp_path / "node", epsilon_max=BUDGET)
    context = multiprocessing.get_context("forkserver")  # imports once for both
    context.set_forkserver_preload([__name__])
    barrier, answered = context.Barrier(2), context.Queue()
    racers = [
        context.Process(target=_race, args=(node, tmp_path / f"copy-{run}", run, barrier, answered))
        for run in "ab"
    ]
    for racer in racers:
        racer.start()
    given = [answered.get(timeout=300) for _ in racers]
    for racer in racers:
        racer.join()
    assert sum(given) == STEPS
    assert len(entries(tmp_path / "node")) == STEPS


def charged_between_check_and_charge(path: Path, *, held: bool) -> int:
    """Entries of a ledger with one round left, where a second process asks for it after the first
    one's check.
    """
    node = NodeFolder.open(read_terms(terms(path, epsilon_max=BUDGET)))
    node.admit("form", 719, lambda key: "0" * 64)
    budget = (Budget(epsilon=BUDGET, delta=1e-5),)

    def charge(run: str, round: int = 1) -> None:
        with contextlib.suppress(OverBudgetError):
            node.charge(replace(ENTRY, run=run, round=round), budget)

    for round in range(1, STEPS):
        charge("before", round)
    second, shipped = threading.Thread(target=charge, args=("second",)), Ledger.would_exceed

    def interrupted(*args: Any, **kwargs: Any) -> bool:
        exceeds = shipped(*args, **kwargs)
        if second.ident is None:
            second.start()
            # With a lock the second one cannot end before the first: waiting longer shows nothing
            # more.
            second.join(timeout=3 if held else None)
        return exceeds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "would_exceed", interrupted)
        charge("first")
        second.join()
    return len(entries(path))


def test_check_and_charge_are_one_step(tmp_path, monkeypatch):
    assert charged_between_check_and_charge(tmp_path / "held", held=True) == STEPS
    monkeypatch.setattr(NodeFolder, "_locked", lambda self: contextlib.nullcontext())
    assert charged_between_check_and_charge(tmp_path / "planted", held=False) == STEPS + 1
