"""The ledger's rules in a federation: charged before noise, for every attempt, and never past the
budget.
"""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message
from torch import Tensor

import fedlsg.simulations.client.train
import fedlsg.training.client_round
from fedlsg.accounting.certified import epsilon
from fedlsg.privacy import Entry, Ledger, RunLedger
from fedlsg.simulations.client.client_account import GivenAccount
from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.engines import local
from fedlsg.simulations.storage.run_directory import RunDir
from tests.simulations.support.broken_runs import Tape
from tests.simulations.support.late_charges import charge_late
from tests.simulations.support.runs import Run, ignore, plan_at, resume_local, run_local


def charged_before_noise(run: Path, monkeypatch: pytest.MonkeyPatch, **settings: object) -> bool:
    """Whether at every first draw of noise the charge for it was on disk."""
    add_noise, before = fedlsg.training.client_round.add_noise, []

    def watched(*args: object) -> Tensor:
        ledger = RunLedger(run / "ledger")
        before.append(sum(len(ledger.of(client).entries) for client in ledger.clients()))
        return add_noise(*args)

    monkeypatch.setattr(fedlsg.training.client_round, "add_noise", watched)
    run_local(run, **settings)
    return before == [2, 2, 4, 4]


def test_the_ledger_is_charged_before_noise_is_drawn(tmp_path, monkeypatch):
    assert charged_before_noise(tmp_path / "run", monkeypatch)


def test_a_charge_after_training_is_caught(tmp_path, monkeypatch):
    charge_late(monkeypatch)
    assert not charged_before_noise(tmp_path / "run", monkeypatch)


def draws_of_a_client_that_trains_twice(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, int]:
    """How often noise was drawn, and how many steps the ledger has: planted is a second draw for
    one attempt.
    """
    add_noise = fedlsg.training.client_round.add_noise
    client_step = fedlsg.simulations.client.train.client_step
    drawn = []

    def watched(*args: object) -> Tensor:
        drawn.append(1)
        return add_noise(*args)

    def twice(*args: object, **kwargs: object) -> Tensor:
        client_step(*args, **kwargs)
        return client_step(*args, **kwargs)

    monkeypatch.setattr(fedlsg.training.client_round, "add_noise", watched)
    monkeypatch.setattr(fedlsg.simulations.client.train, "client_step", twice)
    found = run_local(run, rounds=1)
    return len(drawn), sum(entry.steps for client in range(2) for entry in found.entries(client))


def test_an_attempt_pays_for_one_draw(tmp_path, monkeypatch):
    assert draws_of_a_client_that_trains_twice(tmp_path / "run", monkeypatch) == (2, 2)
    assert "a second draw is not charged" in Run(tmp_path / "run").rows[0].reasons


def test_an_attempt_that_pays_for_two_draws_is_caught(tmp_path, monkeypatch):
    """Negative control: an account that may be used again."""
    charge = GivenAccount.charge

    def forgets(self: GivenAccount, entry: Entry) -> None:
        self.record["charged"] = False
        charge(self, entry)

    monkeypatch.setattr(GivenAccount, "charge", forgets)
    drawn, charged = draws_of_a_client_that_trains_twice(tmp_path / "run", monkeypatch)
    assert drawn > charged


def test_a_run_whose_ledger_cannot_be_written_releases_nothing(tmp_path):
    plan, directory = plan_at(tmp_path / "run", rounds=1)

    asked, path = [], directory.charges.path

    def client(message: Message, context: Context) -> Message:
        asked.append(message.metadata.message_type)
        reply = app(message, context)
        path.mkdir(parents=True, exist_ok=True)  # opening it for appending fails, also for root
        return reply

    with pytest.raises(ValueError, match="ledger"):
        local.run(plan, directory, on_round=ignore, client=client)
    assert set(asked) == {"query"}


def test_local_steps_are_all_charged(tmp_path):
    run = run_local(tmp_path / "run", local_steps=3, rounds=1)
    (entry,) = run.entries(0)
    assert (entry.steps, entry.sample_rate, entry.noise_multiplier, entry.num_examples) == (
        3,
        0.05,
        2.0,
        719,
    )


def test_a_client_over_its_budget_does_not_train_and_is_named(tmp_path):
    budget = 1.0001 * epsilon(sample_rate=0.05, noise_multiplier=2.0, steps=2, delta=1e-5).upper
    plan, directory = plan_at(tmp_path / "run", reproducible=False, epsilon=budget)
    earlier = Entry(
        client=1,
        round=0,
        attempt=0,
        steps=1,
        sample_rate=0.05,
        noise_multiplier=2.0,
        clip_norm=0.5,
        num_examples=718,
        mechanism="dp",
    )
    Ledger(directory.ledger(1), client=1).charge(earlier)
    run = Run(directory.path, plan, local.run(plan, directory, on_round=ignore))
    assert [row.rejected for row in run.rows] == ["", "1"]
    assert "round 2 would pass the privacy budget" in run.rows[1].reasons
    assert "round 2: client 1: round 2 would pass" in run.log
    assert [e.round for e in run.entries(1)] == [0, 1]
    assert [e.round for e in run.entries(0)] == [1, 2]
    assert run.summary["private"]
    assert run.summary["epsilon_max"] <= budget


def test_an_answered_round_is_answered_again_with_the_same_bytes_and_no_charge(tmp_path):
    first, second = Tape((2, 1)), Tape()
    with pytest.raises(KeyboardInterrupt):
        run_local(
            tmp_path / "run", client=first, clients=3, reproducible=False, record_updates=True
        )
    assert set(first.sent) == {(1, 0), (1, 1), (1, 2), (2, 0)}
    run = resume_local(tmp_path / "run", client=second)
    assert set(second.sent) == {(2, 1), (2, 2)}, "the driver sends the payload of the other one"
    assert run.payloads["round-000002/client-000000.bin"] == first.sent[2, 0]
    assert [[(e.round, e.attempt) for e in run.entries(c)] for c in range(3)] == [
        [(1, 0), (2, 0)]
    ] * 3
    assert [row.round for row in run.rows] == [1, 2]
    assert run.summary["private"]


def interrupted_once(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Run:
    """A run that was interrupted between client 0's noise and its payload in round 2, continued."""
    pack = fedlsg.simulations.client.train.pack

    def interrupted(*args: object, round: int, **kwargs: object) -> bytes:
        if round == 2:
            raise KeyboardInterrupt
        return pack(*args, round=round, **kwargs)

    monkeypatch.setattr(fedlsg.simulations.client.train, "pack", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_local(folder, reproducible=False, **settings)
    monkeypatch.setattr(fedlsg.simulations.client.train, "pack", pack)
    return resume_local(folder)


def test_a_second_attempt_of_private_training_is_charged(tmp_path, monkeypatch):
    """Interrupted between the charge and the store: the noise was drawn, so it counts."""
    run = interrupted_once(tmp_path / "run", monkeypatch, local_steps=2)
    assert [(e.round, e.attempt) for e in run.entries(0)] == [(1, 0), (2, 0), (2, 1)]
    assert [(e.round, e.attempt) for e in run.entries(1)] == [(1, 0), (2, 0)], (
        "it was not asked in the first attempt"
    )
    assert run.summary["epsilon_max"] > run.summary["epsilon_median"]
    assert (run.rows[-1].epsilon_max, run.rows[-1].epsilon_median) == (
        run.summary["epsilon_max"],
        run.summary["epsilon_median"],
    )


def test_of_an_interrupted_pass_all_clients_whose_batches_were_drawn_stay_charged(
    tmp_path, monkeypatch
):
    run = interrupted_once(tmp_path / "run", monkeypatch)
    for client in (0, 1):
        assert [(e.round, e.attempt) for e in run.entries(client)] == [(1, 0), (2, 0), (2, 1)]


def test_a_reproducible_second_attempt_is_the_same_release(tmp_path, monkeypatch, small):
    with pytest.raises(KeyboardInterrupt):
        run_local(tmp_path / "run", client=Tape((2, 1)))
    RunDir(tmp_path / "run").last_payload(0).unlink()
    run = resume_local(tmp_path / "run")
    assert run.ledgers == small.ledgers
    assert run.weights.equal(small.weights)


def test_a_payload_stored_for_another_question_is_caught(tmp_path, monkeypatch):
    """Negative control: every round asks the same question; the ledger lacks the round that the
    payload answers.
    """
    monkeypatch.setattr(
        "fedlsg.simulations.engines.accounts.request_id_of", lambda *given: "0" * 64
    )
    run = run_local(tmp_path / "run")
    assert [row.rejected for row in run.rows] == ["", "0 1"]
    assert "lost the entry of round 2, whose payload is stored" in run.rows[1].reasons
