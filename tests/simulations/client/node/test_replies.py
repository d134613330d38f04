"""What leaves a client that fails: one text, whatever failed; and what it has spent stays spent."""

import errno
import pickle
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from flwr.app import Context, Message

import fedlsg.simulations.client.deployed
import fedlsg.simulations.client.train
import fedlsg.training.client_round
from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.engines import local
from fedlsg.strategies.protocol.wire import IN_RUN_LOG, NO_REASON, over_the_wire
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
from tests.simulations.support.runs import Run, ignore, plan_at

FAILURES: dict[str, BaseException] = {
    "memory": MemoryError("cannot allocate 123 rows"),
    "CUDA memory": torch.OutOfMemoryError("batch of 123"),
    "label": IndexError("Target 7 is out of bounds"),
    "value": ValueError("row 17 holds 0.25"),
    "file": OSError("cannot read row 17"),
    "full disk": OSError(errno.ENOSPC, "No space left on device", "row 17"),
    "assertion": AssertionError(),
    "nothing to say": RuntimeError(),
}


def fail(error: BaseException) -> Callable[..., Any]:
    def raises(*args: Any, **kwargs: Any) -> Any:
        raise error

    return raises


@pytest.fixture
def unrehearsed(monkeypatch):
    """The round on public rows, which comes before the charge, would find what these tests
    plant.
    """
    monkeypatch.setattr(fedlsg.simulations.client.deployed, "rehearse", lambda base, terms: None)


PLACES = {
    "the clip": (fedlsg.training.client_round, "clipped_sum"),
    "the batch": (fedlsg.simulations.client.train, "batches"),
    "packing": (fedlsg.simulations.client.train, "pack"),
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    ("failure", "place"),
    [
        pytest.param(
            failure,
            place,
            marks=[] if failure == "memory" or place == "the clip" else pytest.mark.slow,
        )
        for failure, place in product(FAILURES, PLACES)
    ],
)
@pytest.mark.usefixtures("unrehearsed")
def test_whatever_fails_near_private_data_leaves_one_text(
    failure, place, tmp_path, monkeypatch, caplog
):
    server = Server.start(terms(tmp_path / "node"), tmp_path / "copy")
    assert examples(server.query()) == 719
    monkeypatch.setattr(*PLACES[place], fail(FAILURES[failure]))
    assert refusal(server.train(1)) == f"[1001] {NO_REASON}"
    assert type(FAILURES[failure]).__name__ in caplog.text, "the client's own log has it"
    assert str(FAILURES[failure]) in caplog.text


@pytest.mark.parametrize("place", ["the clip", "packing"])
@pytest.mark.usefixtures("unrehearsed")
def test_a_client_whose_training_fails_after_the_charge_stays_charged(place, tmp_path, monkeypatch):
    server = Server.start(terms(tmp_path / "node"), tmp_path / "copy")
    server.query()
    with monkeypatch.context() as patch:
        patch.setattr(*PLACES[place], fail(MemoryError()))
        for _ in range(2):
            refusal(server.train(1))
    assert [(e.round, e.attempt) for e in entries(tmp_path / "node")] == [(1, 0), (1, 1)]
    payload(server.train(1))
    assert [(e.round, e.attempt) for e in entries(tmp_path / "node")] == [(1, 0), (1, 1), (1, 2)]
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "node/ledger.jsonl").read_bytes(), (
        "the server hears of all"
    )


def test_a_simulated_client_stays_charged_too_and_its_user_finds_out_why(tmp_path, monkeypatch):
    plan, directory = plan_at(tmp_path / "run", reproducible=False)
    pack, failed = fedlsg.simulations.client.train.pack, []

    def once(*args: Any, **kwargs: Any) -> bytes:
        if not failed:
            failed.append(True)
            raise MemoryError("batch of 123")
        return pack(*args, **kwargs)

    monkeypatch.setattr(fedlsg.simulations.client.train, "pack", once)
    run = Run(directory.path, plan, local.run(plan, directory, on_round=ignore))
    assert run.rows[0].reasons == f"0: {IN_RUN_LOG}"
    assert "MemoryError: batch of 123" in run.log
    assert [e.round for e in run.entries(0)] == [1, 2]


@pytest.mark.parametrize("failure", ["memory", "full disk", "nothing to say"])
def test_what_a_client_app_raises_leaves_an_engine_without_its_text(failure, tmp_path):
    def client(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train" and context.node_config["partition-id"] == 0:
            raise FAILURES[failure]
        return app(message, context)

    plan, directory = plan_at(tmp_path / "run", rounds=1)
    run = Run(directory.path, plan, local.run(plan, directory, on_round=ignore, client=client))
    assert run.rows[0].reasons == f"0: {IN_RUN_LOG}"
    assert type(FAILURES[failure]).__name__ in run.log


def test_the_secret_is_in_no_reply(tmp_path):
    """Nor is the hash of the data: with both, one could test guesses of a row."""
    replies: list[Message] = []

    class Watched(Server):
        def _noted(self, reply: Message) -> Message:
            replies.append(reply)
            return super()._noted(reply)

    node = terms(tmp_path / "node", data=str(digits_file(tmp_path / "rows.npz")))
    server = Watched.start(node, tmp_path / "copy")
    server.query()
    server.train(1)
    server.train(1, sample_rate=1.0, noise_multiplier=1e-3)
    digits_file(tmp_path / "rows.npz", slice(1, 201))
    new_process()
    server.query()
    assert [r.has_error() for r in replies] == [False, False, False, True]
    key = (tmp_path / "node" / "secret.key").read_bytes()
    record = (tmp_path / "node" / "data.json").read_text()
    digest = record.split('"digest": "')[1][:64]
    for reply in replies:
        sent = pickle.dumps(over_the_wire(reply)) + str(reply).encode()
        for secret in (key, key.hex().encode(), digest.encode(), bytes.fromhex(digest)):
            assert secret not in sent
    assert (tmp_path / "node" / "ledger.jsonl").read_bytes().splitlines()[-1] in pickle.dumps(
        replies[1]
    ), "control"
