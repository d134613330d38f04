"""The driver's accounts: a charge is on disk before anybody trains, whatever ends the driver or a worker."""

import json

import pytest
from flwr.app import RecordDict

from simulations.client.remote_account import RECORD, give
from simulations.engines import ray
from simulations.engines.accounts import Accounts
from simulations.server.recorder import Recorder
from strategies.federation.report import RoundReport
from tests.simulations.support.runs import Run, ignore, plan_at, run_local

pytestmark = pytest.mark.ray
SETTINGS = {"engine": "ray", "reproducible": False, "clients": 3, "rounds": 3}


class PowerCutError(Exception):
    """Stands for the end of the driver at this moment: nothing after it runs."""


def cut_off(folder, monkeypatch, where: str) -> Run:
    """A run whose driver is gone in round 2, at the beginning of ``where``."""
    plan, directory = plan_at(folder, **SETTINGS)
    honest = getattr(Accounts, where)

    def cut(self: Accounts, pile, *rest):
        if any(task.message.content["round"]["round"] == 2 for task in pile if RECORD in task.state):
            raise PowerCutError
        return honest(self, pile, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Accounts, where, cut)
        patch.setattr(Accounts, "end", lambda self: None)
        with pytest.raises(PowerCutError):
            ray.run(plan, directory, on_round=ignore)
    return Run(directory.path, plan)


def resumed(run: Run) -> Run:
    ray.run(run.plan, run.directory, on_round=ignore)
    return run


def charged(run: Run, round: int) -> list[list[int]]:
    """Attempts of each client that were charged in a round."""
    return [[entry.attempt for entry in run.entries(client) if entry.round == round] for client in range(3)]


def test_clients_that_were_at_work_when_the_driver_ended_are_charged(tmp_path, on_ray, monkeypatch):
    run = cut_off(tmp_path / "run", monkeypatch, "settle")
    pending = {entry.client for entry in run.directory.journal.pending() if entry.round == 2}
    assert pending
    assert all(not attempts for attempts in charged(run, 2)), "their ledgers do not know it yet"
    run = resumed(run)
    assert charged(run, 2) == [[0, 1] if client in pending else [0] for client in range(3)]
    assert not run.directory.journal.path.exists()


def test_without_the_journal_their_charges_would_be_lost(tmp_path, on_ray, monkeypatch):
    """Negative control: planted is a driver that charges after the replies."""
    monkeypatch.setattr(Accounts, "begin", lambda self, pile: None)
    run = resumed(cut_off(tmp_path / "run", monkeypatch, "settle"))
    assert charged(run, 2) == [[0]] * 3, "three trained twice, and were charged once"


def test_nobody_trains_before_the_charge_is_on_disk(tmp_path, on_ray, monkeypatch):
    run = cut_off(tmp_path / "run", monkeypatch, "begin")
    assert [entry for entry in run.directory.journal.pending() if entry.round == 2] == []
    assert charged(resumed(run), 2) == [[0]] * 3


def test_a_long_journal_is_settled_between_rounds(tmp_path, on_ray, monkeypatch):
    monkeypatch.setattr("simulations.engines.accounts.JOURNAL_BYTES", 1)
    run = cut_off(tmp_path / "run", monkeypatch, "settle")
    assert {entry.round for entry in run.directory.journal.pending()} == {2}
    assert charged(run, 1) == [[0]] * 3
    assert [len(attempts) for attempts in charged(resumed(run), 3)] == [1] * 3


def test_a_client_that_refuses_is_not_charged(tmp_path, on_ray, monkeypatch):
    """Planted: the driver announces another rate than the one that it charges. The client sees it before it trains."""
    plan, directory = plan_at(tmp_path / "run", **SETTINGS)
    honest = give

    def other(entry, **more) -> RecordDict:
        state = honest(entry, **more)
        if entry.client == 1:
            record = json.loads(state[RECORD]["entry"])
            state[RECORD]["entry"] = json.dumps(record | {"sample_rate": record["sample_rate"] / 2})
        return state

    monkeypatch.setattr("simulations.engines.accounts.give", other)
    ray.run(plan, directory, on_round=ignore)
    run = Run(directory.path, plan)
    assert [row.answered.split() for row in run.rows] == [["0", "2"]] * 3
    assert "the driver has charged" in run.rows[0].reasons
    assert [len(run.entries(client)) for client in (0, 2)] == [3, 3]
    assert not directory.ledger(1).exists()


def test_a_stored_payload_is_sent_again_without_a_charge(tmp_path, on_ray, monkeypatch):
    """The driver ends after it stored the payloads of round 2, before the round is over."""
    plan, directory = plan_at(tmp_path / "run", **SETTINGS, record_updates=True)
    honest = Recorder.on_round

    def stop(self: Recorder, report: RoundReport) -> None:
        if report.round == 2:
            raise PowerCutError
        honest(self, report)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "on_round", stop)
        with pytest.raises(PowerCutError):
            ray.run(plan, directory, on_round=ignore)
    before = {path.name: path.read_bytes() for path in directory.outbox(0).parent.iterdir()}
    run = resumed(Run(directory.path, plan))
    assert charged(run, 2) == [[0]] * 3
    payloads = [run.payloads[f"round-000002/client-{client:06d}.bin"] for client in range(3)]
    assert all(before[f"client-{client:06d}.bin"].endswith(payload) for client, payload in enumerate(payloads))


def test_the_memory_of_error_feedback_is_the_drivers(tmp_path, on_ray):
    settings = {"method": "topk", "clients": 3, "rounds": 3, "reproducible": True}
    settings = {**settings, "noise_multiplier": None, "topk_rate": 0.1}
    alone = run_local(tmp_path / "local", **settings)
    plan, directory = plan_at(tmp_path / "ray", **settings, engine="ray")
    run = Run(directory.path, plan, ray.run(plan, directory, on_round=ignore))
    assert run.weights.equal(alone.weights)
    files = [path.relative_to(run.path) for path in sorted(run.path.glob("clients/client-*/*"))]
    assert files
    assert all((run.path / file).read_bytes() == (alone.path / file).read_bytes() for file in files)
