"""Laws of a federation: what it equals, how its noise adds up, when its ledger is charged."""

import logging
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Context, Error, Message
from torch import Tensor

import fedlsg.simulations.client.process_state
import fedlsg.simulations.client.train
from fedlsg.frame import Frame
from fedlsg.randomness import reproducible_stream
from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.client.virtual import ClientFunction
from fedlsg.state.server_state import ServerState
from fedlsg.strategies.protocol.wire import LOST, Announcement
from tests.simulations.support.runs import Run, run_local

N = 1437  # training images of digits


def test_batches_are_drawn_at_the_rate_that_the_ledger_is_told(tmp_path):
    """batch_size over unequal partitions: q_k = B / N_k; the truth beside the updates says which
    rows were drawn.
    """
    settings = {
        "batch_size": 60,
        "sample_rate": None,
        "partition": "dirichlet",
        "record_updates": True,
    }
    run = run_local(tmp_path / "run", clients=3, local_steps=2, rounds=1, **settings)
    sizes = [len(part) for part in run.plan.parts]
    assert max(sizes) > 1.5 * min(sizes)
    for client, part in enumerate(run.plan.parts):
        (entry,) = run.entries(client)
        assert (entry.sample_rate, entry.num_examples, entry.steps) == (
            60 / len(part),
            len(part),
            2,
        )
        sampler = reproducible_stream(0, "sampler", client, 1)
        drawn = [part[sampler.bernoulli(len(part), entry.sample_rate)] for _ in range(2)]
        truth = np.load(run.path / "updates-truth" / "round-000001" / f"client-{client:06d}.npy")
        assert truth.tolist() == torch.cat(drawn).tolist()


LOUD = {
    "method": "dpsgd",
    "rounds": 1,
    "noise_multiplier": 50.0,
    "clip_norm": 0.5,
    "learning_rate": 1.0,
    "momentum": 0.0,
}
TOLERANCE = 0.05  # five standard deviations of a standard deviation from 4,810 numbers


def failing(*partitions: int) -> ClientFunction:
    def client(message: Message, context: Context) -> Message:
        if (
            message.metadata.message_type == "train"
            and context.node_config["partition-id"] in partitions
        ):
            raise RuntimeError("planted failure")
        return app(message, context)

    return client


def noise_gain(run: Run) -> float:
    """Noise of the averaged update over sigma C / (q N), which is that of central training."""
    start = torch.cat([w.detach().flatten() for w in run.plan.initial.model().parameters()])
    return float((run.weights - start).std()) / (50.0 * 0.5 / (0.05 * N))


def test_a_divisor_from_the_number_of_answers_is_caught(tmp_path, monkeypatch):
    finish = ServerState.finish_round

    def planted(self: ServerState, frame: Frame, updates: list[Tensor], **noise: float) -> None:
        self.divisor *= len(updates) / 5
        finish(self, frame, updates, **noise)

    monkeypatch.setattr(ServerState, "finish_round", planted)
    run = run_local(tmp_path / "run", client=failing(1, 4), clients=5, **LOUD)
    assert not math.isclose(noise_gain(run), math.sqrt(3), rel_tol=TOLERANCE)


def payload_noise(run: Run) -> list[float]:
    """Standard deviation of every payload over sigma C."""
    values = [
        torch.frombuffer(bytearray(payload[64:-16]), dtype=torch.float32)
        for payload in run.payloads.values()
    ]
    return [float(v.std()) / (50.0 * 0.5) for v in values]


@pytest.mark.parametrize(("survivors", "failed"), [(None, ()), (4, ()), (3, ()), (3, (0,))])
def test_each_client_adds_its_share_of_the_noise(survivors, failed, tmp_path):
    settings = LOUD | {
        "trust": "aggregate",
        "min_survivors": survivors,
        "record_updates": True,
        "clients": 4,
    }
    run = run_local(tmp_path / "run", client=failing(*failed), **settings)
    needed = 4 if survivors is None else survivors
    assert len(run.payloads) == 4 - len(failed)
    for noise in payload_noise(run):
        assert math.isclose(noise, 1 / math.sqrt(needed - 1), rel_tol=TOLERANCE), (
            "one of them reads the sum"
        )
    assert math.isclose(
        noise_gain(run), math.sqrt((4 - len(failed)) / (needed - 1)), rel_tol=TOLERANCE
    )
    assert noise_gain(run) > 1 - TOLERANCE, (
        "the sum of the fewest survivors carries all of the noise"
    )
    assert run.entries(3)[0].noise_multiplier == 50.0


def test_a_sent_frame_that_is_not_the_announced_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(
        fedlsg.simulations.client.process_state, "read_frame", lambda content, derived: derived
    )
    derived_frame = fedlsg.simulations.client.process_state.derived_frame

    def other(here: object, announced: Announcement, content: object) -> Frame:
        return derived_frame(here, replace(announced, round=announced.round + 100), content)

    monkeypatch.setattr(fedlsg.simulations.client.process_state, "derived_frame", other)
    run = run_local(tmp_path / "run", rounds=1)
    assert run.rows[0].rejected == "0 1"
    assert run.rows[0].reasons.startswith("0 1: ")
    assert not run.directory.charges.clients()


@pytest.mark.parametrize(("clients", "failed"), [(1, ()), (2, ()), (5, ()), (5, (1, 4))])
def test_clients_add_their_noise_over_a_constant_divisor(clients, failed, tmp_path):
    run = run_local(tmp_path / "run", client=failing(*failed), clients=clients, **LOUD)
    assert run.rows[0].rejected == " ".join(map(str, failed))
    assert math.isclose(noise_gain(run), math.sqrt(clients - len(failed)), rel_tol=TOLERANCE)


def test_a_federation_that_became_one_client_says_so_in_each_round_and_in_its_summary(
    tmp_path, caplog
):
    trained = list[Message]()

    def dead(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train" and context.node_config["partition-id"] == 1:
            trained.append(message)
        if len(trained) > 2 and trained[-1] is message:
            return Message(Error(code=LOST[0], reason="the worker is gone"), reply_to=message)
        return app(message, context)

    with caplog.at_level(logging.WARNING, "flwr"):
        run = run_local(tmp_path / "run", client=dead, clients=2, rounds=8)
    assert run.summary["rounds_by_client"] == {"0": 8, "1": 2}
    alone = [row.round for row in run.rows if row.asked == "0"]
    assert alone == [5, 6, 8]
    for round in alone:
        assert f"round {round}: client 1 is left out until round " in caplog.text


def test_where_nobody_failed_a_summary_has_no_rounds_by_client(tmp_path):
    assert "rounds_by_client" not in run_local(tmp_path / "run", clients=2, rounds=2).summary
