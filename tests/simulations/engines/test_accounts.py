"""The driver's accounts: a charge is on disk before anybody trains, whatever ends the driver or a
worker.
"""

import json
import os
import re
from typing import Any

import pytest
from flwr.app import Context, Message, MessageType, RecordDict

from fedlsg.simulations.client.client_account import RECORD
from fedlsg.simulations.client.client_app import app as honest
from fedlsg.simulations.engines import local, ray
from fedlsg.simulations.engines.accounts import Accounts, give
from fedlsg.simulations.server.recorder import Recorder
from fedlsg.simulations.storage.examined import examine
from fedlsg.strategies.protocol.round_report import RoundReport
from fedlsg.strategies.protocol.wire import read_update
from tests.simulations.support.late_charges import charge_late
from tests.simulations.support.runs import Run, ignore, plan_at, resume_local, run_local

SETTINGS = {"reproducible": False, "clients": 3, "rounds": 3}
ENGINES = [pytest.param("local"), pytest.param("ray", marks=pytest.mark.ray)]


class PowerCutError(Exception):
    """Stands for the end of the driver at this moment: nothing after it runs."""


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    """An engine whose driver keeps the accounts."""
    if request.param == "ray":
        request.getfixturevalue("on_ray")
    return {"local": local, "ray": ray}[request.param]


def planned(folder, engine: Any, **settings: Any):
    return plan_at(folder, **SETTINGS, engine=engine.__name__.rpartition(".")[2], **settings)


def cut_off(folder, monkeypatch, where: str, engine: Any) -> Run:
    """A run whose driver is gone in round 2, at the beginning of ``where``."""
    plan, directory = planned(folder, engine)
    honest = getattr(Accounts, where)

    def cut(self: Accounts, pile, *rest):
        if any(
            task.message.content["round"]["round"] == 2 for task in pile if RECORD in task.state
        ):
            raise PowerCutError
        return honest(self, pile, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Accounts, where, cut)
        patch.setattr(Accounts, "end", lambda self: None)
        with pytest.raises(PowerCutError):
            engine.run(plan, directory, on_round=ignore)
    return Run(directory.path, plan)


def resumed(run: Run, engine: Any) -> Run:
    engine.run(run.plan, run.directory, on_round=ignore)
    return run


def charged(run: Run, round: int) -> list[list[int]]:
    """Attempts of each client that were charged in a round."""
    return [
        [entry.attempt for entry in run.entries(client) if entry.round == round]
        for client in range(3)
    ]


@pytest.mark.slow
def test_clients_that_were_at_work_when_the_driver_ended_are_charged(tmp_path, engine, monkeypatch):
    run = cut_off(tmp_path / "run", monkeypatch, "settle", engine)
    assert charged(run, 2) == [[0]] * 3, "before anybody is back"
    assert charged(resumed(run, engine), 2) == [[0, 1]] * 3


def test_a_charge_that_comes_with_the_reply_would_be_lost(tmp_path, monkeypatch):
    """Negative control: an entry too few after a kill between the draw and the charge."""
    with monkeypatch.context() as patch:
        charge_late(patch)
        run = cut_off(tmp_path / "run", patch, "settle", local)
    assert charged(run, 2) == [[]] * 3, "one has trained, and nothing is charged"


@pytest.mark.slow
def test_a_kill_between_the_charge_and_the_draw_loses_no_entry(tmp_path, engine, monkeypatch):
    run = cut_off(tmp_path / "run", monkeypatch, "leaves", engine)
    assert charged(run, 2) == [[0]] * 3
    assert charged(resumed(run, engine), 2) == [[0, 1]] * 3


def test_a_round_has_one_record_and_one_sync(tmp_path, monkeypatch):
    """Of a ledger of ten clients: all other files of a round are written, or synced, elsewhere."""
    syncs, fsync = [], os.fsync

    def watched(descriptor: int) -> None:
        syncs.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    if os.path.isdir("/proc/self/fd"):
        monkeypatch.setattr(os, "fsync", watched)
    run = run_local(tmp_path / "run", **SETTINGS | {"clients": 10})
    assert len(run.directory.charges.path.read_bytes().splitlines()) == 1 + 3
    assert not syncs or sum(path.endswith("ledger/run.jsonl") for path in syncs) == 3


def test_a_client_that_refuses_is_not_charged(tmp_path, engine, monkeypatch):
    """Planted: the driver announces another rate than the one that it charges. The client sees it
    before it trains.
    """
    plan, directory = planned(tmp_path / "run", engine)
    honest = give

    def other(entry, **more) -> RecordDict:
        state = honest(entry, **more)
        if entry.client == 1:
            record = json.loads(state[RECORD]["entry"])
            state[RECORD]["entry"] = json.dumps(record | {"sample_rate": record["sample_rate"] / 2})
        return state

    monkeypatch.setattr("fedlsg.simulations.engines.accounts.give", other)
    engine.run(plan, directory, on_round=ignore)
    run = Run(directory.path, plan)
    assert [row.answered.split() for row in run.rows] == [["0", "2"]] * 3
    said = r"the driver has charged sample_rate=[\d.]+, not [\d.]+, which this client computes"
    assert re.search(said, run.rows[0].reasons), "nothing but what differs"
    assert [len(run.entries(client)) for client in (0, 1, 2)] == [3, 0, 3]


def test_a_stored_payload_is_sent_again_without_a_charge(tmp_path, engine, monkeypatch):
    """The driver ends after it stored the payloads of round 2, before the round is over."""
    plan, directory = planned(tmp_path / "run", engine, record_updates=True)
    honest = Recorder.on_round

    def stop(self: Recorder, report: RoundReport) -> None:
        if report.round == 2:
            raise PowerCutError
        honest(self, report)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "on_round", stop)
        with pytest.raises(PowerCutError):
            engine.run(plan, directory, on_round=ignore)
    before = {path.name: path.read_bytes() for path in directory.last_payload(0).parent.iterdir()}
    run = resumed(Run(directory.path, plan), engine)
    assert charged(run, 2) == [[0]] * 3
    payloads = [run.payloads[f"round-000002/client-{client:06d}.bin"] for client in range(3)]
    assert all(
        before[f"client-{client:06d}.bin"].endswith(payload)
        for client, payload in enumerate(payloads)
    )


def test_the_outbox_has_the_payloads_of_two_rounds_and_both_checkpoints_find_theirs(tmp_path):
    """A file for every client that ever took part grew to 81 MB with 10,000 clients."""
    few = {"clients": 40, "clients_per_round": 3, "train_rows": 400, "rounds": 5}
    plan, directory = plan_at(tmp_path / "run", **SETTINGS | few)
    local.run(plan, directory, on_round=ignore)
    run = Run(directory.path, plan)
    asked = [set(map(int, row.answered.split())) for row in run.rows]
    outbox = directory.last_payload(0).parent
    kept = {int(path.stem.rpartition("-")[2]) for path in outbox.iterdir()}
    assert kept == asked[-1] | asked[-2]
    assert set.union(*asked) - kept, "the control: earlier clients had payloads"
    assert not examine(directory).changed
    # the last checkpoint is damaged: round 5 is answered again from its payloads
    spent = [len(run.entries(client)) for client in range(40)]
    directory.checkpoint.write_bytes(b"")
    directory.summary.unlink()
    again = resume_local(directory.path)
    assert [len(again.entries(client)) for client in range(40)] == spent
    # and without them, they are charged again
    directory.checkpoint.write_bytes(b"")
    directory.summary.unlink()
    for path in outbox.iterdir():
        path.unlink()
    again = resume_local(directory.path)
    assert sum(len(again.entries(client)) for client in range(40)) == sum(spent) + 3


def test_a_round_whose_replies_are_lost_is_answered_from_the_store(tmp_path, monkeypatch):
    """The driver knows what it has stored, and reads no file that answers something else."""
    deliver, lost = local.LocalGrid.deliver, [2]

    def losing(
        self: local.LocalGrid, messages: list[Message], timeout: float | None
    ) -> list[Message]:
        replies = list(deliver(self, messages, timeout))
        if not any(
            message.metadata.group_id == str(number) for message in messages for number in lost
        ):
            return replies
        lost.clear()
        return []

    monkeypatch.setattr(local.LocalGrid, "deliver", losing)
    run = run_local(tmp_path / "run", **SETTINGS)
    assert not lost
    assert [row.answered for row in run.rows] == ["0 1 2"] * 3
    assert [charged(run, number) for number in (1, 2, 3)] == [[[0]] * 3] * 3


@pytest.mark.ray
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


def test_a_payload_pays_its_charge_whatever_its_client_says(tmp_path):
    """Negative control: without this the charge is void, and epsilon too small."""
    plan, directory = planned(tmp_path / "run", local)

    def lying(message: Message, context: Context) -> Message:
        reply = honest(message, context)
        if RECORD in context.state:
            context.state[RECORD]["charged"] = False
        return reply

    local.run(plan, directory, on_round=ignore, client=lying)
    assert [charged(Run(directory.path, plan), round) for round in (1, 2, 3)] == [[[0]] * 3] * 3


def test_a_client_cannot_answer_for_another_one(tmp_path):
    """The reply of the client that was asked is used, whatever comes later in its name."""
    plan, directory = planned(tmp_path / "run", local, record_updates=True)
    first, sent = list[Message](), list[bytes]()

    def lying(message: Message, context: Context) -> Message:
        reply = honest(message, context)
        if message.metadata.message_type != MessageType.TRAIN:
            return reply
        if context.node_config["partition-id"] == 0:
            first[:] = [message]
            sent.append(read_update(reply.content))
        return Message(reply.content, reply_to=first[0])

    local.run(plan, directory, on_round=ignore, client=lying)
    run = Run(directory.path, plan)
    assert [charged(run, round) for round in (1, 2)] == [[[0]] * 3] * 2
    assert [run.payloads[f"round-{round:06d}/client-000000.bin"] for round in (1, 2, 3)] == sent
