"""Replicas in whole runs: the same weights and the bytes of the messages, whoever joins late, diverges or resumes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message

from fedlsg.state.server_update import HEADER
from simulations.client import app as client_app
from simulations.client import replica as replicas
from simulations.client.app import app, simulated_settings
from simulations.client.model import process
from simulations.client.train import answer
from simulations.engines import local
from simulations.rundir.journal import read_lines
from simulations.rundir.tables import Row
from tests.fedlsg.support.own_methods import OWN_RECIPE
from tests.simulations.support.runs import Run, plan_at, resume_local, run_local

PROBED = {"rank": 6, "out_rank": 5, "probes": 20, "refresh_rounds": 2}
CASES: dict[str, dict[str, Any]] = {
    "lsg": {"momentum": 0.9},
    "adam": {"optimizer": "adam", "learning_rate": 0.01, "schedule": "cosine", "ema": 0.9},
    "NAdam": {"optimizer": "NAdam", "learning_rate": 0.01, "optimizer_options": "momentum_decay=0.01"},
    "Adagrad": {"optimizer": "adagrad", "learning_rate": 0.05, "clients": 4, "clients_per_round": 2},
    "evaluated by an average": {"ema": 0.9, "momentum": 0.0, "rank": 5},
    "rgp": {"method": "rgp"},
    "rs, masks of an epoch": {"method": "rs", "redraw": "epoch", "sparsity": 0.5},
    "rs, ranked": {"method": "rs", "ranking": "gradients", "sparsity": 0.5, "cooling": False, "sample_rate": 0.5},
    "dpsgd": {"method": "dpsgd", "momentum": 0.5},
    "lora": {"method": "lora"},
    "local steps": {"local_steps": 3, "local_momentum": 0.5},
    "dp-snip": {"method": "dp-ssgd", "prune": "dp-snip", "prune_rate": 0.3},
    "probe": {"method": "probe", **PROBED, "rounds": 4},
    "probe, some clients": {
        "method": "lsg-probe",
        "probes": 20,
        "refresh_rounds": 3,
        "clients": 5,
        "clients_per_round": 2,
        "rounds": 8,
    },
    "top-k": {"method": "topk", "topk_rate": 0.05, "noise_multiplier": None},
    "functions of a user": {"method": OWN_RECIPE, "local_steps": 2},
    "some clients": {"clients": 4, "clients_per_round": 2, "rounds": 5},
}
UPDATE = HEADER.size + 80 + 4 * 1074
"""Bytes of an update of lsg on digits: 1,074 values, a payload's header and checksum, a step's header."""


def sparse_and_full(out: Path, **settings: Any) -> tuple[Run, Run]:
    settings = {"rounds": 3, "evaluate_every": 9} | settings
    return run_local(out / "sparse", downlink="sparse", **settings), run_local(out / "full", **settings)


@pytest.mark.parametrize(
    "name", [name if turn % 2 == 0 else pytest.param(name, marks=pytest.mark.slow) for turn, name in enumerate(CASES)]
)
def test_sparse_in_float32_is_full_bit_for_bit(name, tmp_path, own_code):
    sparse, full = sparse_and_full(tmp_path, **CASES[name])
    assert sparse.weights.equal(full.weights)
    assert [row.answered for row in sparse.rows] == [row.answered for row in full.rows]
    assert [row.downlink_messages for row in sparse.rows] == [row.downlink_messages for row in full.rows]
    assert sum(row.downlink_bytes for row in sparse.rows) < sum(row.downlink_bytes for row in full.rows)
    for run in (sparse, full):
        lines = [line for line in read_lines(run.path / "bytes.csv") if line.direction == "down" and line.round]
        assert all(line.payload_bytes >= line.values_bytes for line in lines)
        assert sum(line.payload_bytes for line in lines) == sum(row.downlink_bytes for row in run.rows)
    assert sparse.summary["downlink_bytes_dense"] == full.summary["downlink_bytes_dense"]


# --- clients that are not there, or hold something else


def late(silent: int) -> Callable[[Message, Context], Any]:
    """Client 1 stays silent until a round."""

    def client(message: Message, context: Context) -> Any:
        train = message.metadata.message_type == "train"
        if train and context.node_config["partition-id"] == 1 and message.content["round"]["round"] < silent:
            return None
        return app(message, context)

    return client


def flip(settings: Any) -> None:
    """One bit of one weight of this process's replica."""
    here = process(settings)
    weight = next(iter(here.state.parameters.values())).view(torch.int32)
    weight.view(-1)[5] ^= 1 << 20


def is_for(message: Message, context: Context, round: int, partition: int) -> bool:
    train = message.metadata.message_type == "train"
    return train and (message.content["round"]["round"], context.node_config["partition-id"]) == (round, partition)


def diverging(round: int, partition: int = 0) -> Callable[[Message, Context], Any]:
    done = []

    def client(message: Message, context: Context) -> Any:
        if not done and is_for(message, context, round, partition):
            done.append(True)
            flip(simulated_settings(context.run_config, int(context.node_config["num-partitions"])))
        return app(message, context)

    return client


@pytest.mark.parametrize("method", ["lsg", "rs"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_replica_that_diverged_is_noticed_and_repaired_in_the_same_round(method, momentum, tmp_path):
    """lsg: the update does not fit the frame that is derived from other weights; rs: the digest of the weights."""
    settings = {"method": method, "momentum": momentum, "sparsity": 0.8, "rounds": 9, "evaluate_every": 9}
    honest = run_local(tmp_path / "honest", downlink="sparse", **settings)
    run = run_local(tmp_path / "run", downlink="sparse", client=diverging(4), **settings)
    assert run.weights.equal(honest.weights)
    assert run.ledgers == honest.ledgers
    assert "clients [] derive another frame, [0] hold another model" in run.log
    whole = 4 * 4810 * (2 if momentum else 1)
    extra = [r.downlink_bytes - h.downlink_bytes for r, h in zip(run.rows, honest.rows, strict=True)]
    assert extra == [0, 0, 0, whole] + [0] * 5
    assert [row.downlink_messages for row in run.rows] == [2, 2, 2, 3] + [2] * 5
    assert [row.answered for row in run.rows] == ["0 1"] * 9


def test_without_the_digest_a_replica_that_diverged_goes_unnoticed(tmp_path, monkeypatch):
    """Negative control: what the digest is for."""
    settings = {"method": "rs", "sparsity": 0.8, "rounds": 4, "evaluate_every": 9}
    honest = run_local(tmp_path / "honest", downlink="sparse", **settings)
    reference: list[bytes] = []
    read = replicas.read_reference
    monkeypatch.setattr(replicas, "read_reference", lambda c: (reference.append(read(c).digest), read(c))[1])
    monkeypatch.setattr(replicas, "digest_of", lambda weights: reference[-1])
    run = run_local(tmp_path / "run", downlink="sparse", client=diverging(3), **settings)
    assert [row.downlink_messages for row in run.rows] == [2] * 4
    assert not run.weights.equal(honest.weights)


# --- machines of their own


def alone(message: Message, context: Context) -> Any:
    """A client whose process begins with the message, and that shares its replica with nobody."""
    process.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_app, "answer", lambda *args, shared: answer(*args, shared=False))
        return app(message, context)


def test_clients_on_machines_of_their_own_keep_replicas_in_files(tmp_path):
    settings = {"clients": 3, "clients_per_round": 2, "rounds": 5, "optimizer": "adam", "learning_rate": 0.01}
    shared = run_local(tmp_path / "shared", downlink="sparse", **settings)
    run = run_local(tmp_path / "run", downlink="sparse", client=alone, **settings)
    assert run.weights.equal(shared.weights)
    assert [row.downlink_bytes for row in run.rows] == [row.downlink_bytes for row in shared.rows]
    assert [row.downlink_messages for row in run.rows] == [2] * 5
    assert sorted(p.name for p in (run.path / "replicas").iterdir()) == [f"client-{c:06d}.bin" for c in range(3)]
    assert not (shared.path / "replicas").exists()


@pytest.mark.parametrize("damage", [lambda p: p.unlink(), lambda p: p.write_bytes(p.read_bytes()[:-9] + bytes(9))])
def test_a_damaged_replica_costs_one_whole_model(damage, tmp_path):
    def client(message: Message, context: Context) -> Any:
        if not seen and is_for(message, context, 3, 0):
            seen.append(True)
            damage(tmp_path / "run" / "replicas" / "client-000000.bin")
        return alone(message, context)

    seen: list[bool] = []
    settings = {"rounds": 4, "momentum": 0.0, "evaluate_every": 9}
    run = run_local(tmp_path / "run", downlink="sparse", client=client, **settings)
    full = run_local(tmp_path / "full", **settings)
    assert run.weights.equal(full.weights)
    assert [row.downlink_bytes for row in run.rows] == [0, 2 * UPDATE, 2 * UPDATE + 4 * 4810, 2 * UPDATE]
    assert [row.downlink_messages for row in run.rows] == [2, 2, 3, 2]


def forgetting(rounds: set[int], replica: Path) -> Callable[[Message, Context], Any]:
    """Client 0, on a machine of its own, has lost its replica in some rounds."""

    def client(message: Message, context: Context) -> Any:
        if any(is_for(message, context, round, 0) for round in rounds) and "steps" in message.content:
            replica.unlink(missing_ok=True)
        return alone(message, context)

    return client


def test_repairs_are_counted_over_a_resume_and_stop_after_the_second(tmp_path):
    """The third time it gets weights alone, and goes on getting them."""
    settings = {"downlink": "sparse", "rounds": 9, "momentum": 0.0, "evaluate_every": 9}
    client = forgetting({3, 5, 7}, tmp_path / "run" / "replicas" / "client-000000.bin")
    plan, directory = plan_at(tmp_path / "run", **settings)

    def stop(row: Row) -> None:
        if row.round == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        local.run(plan, directory, on_round=stop, client=client)
    run = resume_local(directory.path, client=client)
    assert [row.downlink_messages for row in run.rows] == [2, 2, 3, 2, 3, 2, 3, 2, 2]
    assert run.summary["downlink"]["repairs"] == 3
    assert run.checkpoint["downlink"]["repairs"] == {0: 3}
    assert 0 not in run.checkpoint["downlink"]["held"]


# --- resumed

LONG = {"rounds": 6, "clients": 3, "clients_per_round": 2, "momentum": 0.9, "evaluate_every": 9}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_local(tmp_path_factory.mktemp("whole") / "run", downlink="sparse", **LONG)


# --- settings
