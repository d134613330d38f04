"""Replicas and carriers of probes in whole runs: the same weights and bytes, no matter who joins
late.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message

from fedlsg.simulations.client import client_app as client_app
from fedlsg.simulations.client.client_app import app, simulated_settings
from fedlsg.simulations.client.process_state import process
from fedlsg.simulations.client.train import answer
from fedlsg.simulations.storage.messages.byte_lines import read_lines
from tests.fedlsg.support.own_methods import OWN_RECIPE
from tests.simulations.support.runs import Run, run_local

PROBED = {"rank": 6, "out_rank": 5, "probes": 20, "refresh_rounds": 2}
CASES: dict[str, dict[str, Any]] = {
    "lsg": {"momentum": 0.9},
    "adam": {"optimizer": "adam", "learning_rate": 0.01, "schedule": "cosine", "ema": 0.9},
    "NAdam": {
        "optimizer": "NAdam",
        "learning_rate": 0.01,
        "optimizer_options": "momentum_decay=0.01",
    },
    "Adagrad": {
        "optimizer": "adagrad",
        "learning_rate": 0.05,
        "clients": 4,
        "clients_per_round": 2,
    },
    "evaluated by an average": {"ema": 0.9, "momentum": 0.0, "rank": 5},
    "rgp": {"method": "rgp"},
    "rs, masks of an epoch": {"method": "rs", "redraw": "epoch", "sparsity": 0.5},
    "rs, ranked": {
        "method": "rs",
        "ranking": "gradients",
        "sparsity": 0.5,
        "cooling": False,
        "sample_rate": 0.5,
    },
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


def sparse_and_full(out: Path, **settings: Any) -> tuple[Run, Run]:
    settings = {"rounds": 3, "evaluate_every": 9} | settings
    return run_local(out / "sparse", downlink="sparse", **settings), run_local(
        out / "full", **settings
    )


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "name",
    [
        name if turn % 2 == 0 else pytest.param(name, marks=pytest.mark.slow)
        for turn, name in enumerate(CASES)
    ],
)
def test_sparse_in_float32_is_full_bit_for_bit(name, tmp_path, own_code):
    sparse, full = sparse_and_full(tmp_path, **CASES[name])
    assert sparse.weights.equal(full.weights)
    assert [row.answered for row in sparse.rows] == [row.answered for row in full.rows]
    assert [row.downlink_messages for row in sparse.rows] == [
        row.downlink_messages for row in full.rows
    ]
    assert sum(row.downlink_bytes for row in sparse.rows) < sum(
        row.downlink_bytes for row in full.rows
    )
    for run in (sparse, full):
        lines = [
            line
            for line in read_lines(run.path / "bytes.csv")
            if line.direction == "down" and line.round
        ]
        assert all(line.payload_bytes >= line.values_bytes for line in lines)
        assert sum(line.payload_bytes for line in lines) == sum(
            row.downlink_bytes for row in run.rows
        )
    assert sparse.summary["downlink_bytes_dense"] == full.summary["downlink_bytes_dense"]


def flip(settings: Any) -> None:
    """One bit of one weight of this process's replica."""
    here = process(settings)
    weight = next(iter(here.state.parameters.values())).view(torch.int32)
    weight.view(-1)[5] ^= 1 << 20


def is_for(message: Message, context: Context, round: int, partition: int) -> bool:
    train = message.metadata.message_type == "train"
    return train and (message.content["round"]["round"], context.node_config["partition-id"]) == (
        round,
        partition,
    )


def diverging(round: int, partition: int = 0) -> Callable[[Message, Context], Any]:
    done = []

    def client(message: Message, context: Context) -> Any:
        if not done and is_for(message, context, round, partition):
            done.append(True)
            flip(simulated_settings(context.run_config, int(context.node_config["num-partitions"])))
        return app(message, context)

    return client


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lsg", "rs"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_replica_that_diverged_is_noticed_and_repaired_in_the_same_round(
    method, momentum, tmp_path
):
    """lsg: the update does not fit the frame that is derived from other weights; rs: the digest of
    the weights.
    """
    settings = {
        "method": method,
        "momentum": momentum,
        "sparsity": 0.8,
        "rounds": 9,
        "evaluate_every": 9,
    }
    honest = run_local(tmp_path / "honest", downlink="sparse", **settings)
    run = run_local(tmp_path / "run", downlink="sparse", client=diverging(4), **settings)
    assert run.weights.equal(honest.weights)
    assert run.ledgers == honest.ledgers
    assert "clients [] derive another frame, [0] hold another model" in run.log
    whole = 4 * 4810 * (2 if momentum else 1)
    extra = [
        r.downlink_bytes - h.downlink_bytes for r, h in zip(run.rows, honest.rows, strict=True)
    ]
    assert extra == [0, 0, 0, whole] + [0] * 5
    assert [row.downlink_messages for row in run.rows] == [2, 2, 2, 3] + [2] * 5
    assert [row.answered for row in run.rows] == ["0 1"] * 9


CORE: dict[str, Any] = {
    "method": "probe",
    "rank": 6,
    "out_rank": 5,
    "probes": 20,
    "refresh_rounds": 3,
}
SOME: dict[str, Any] = {"clients": 4, "clients_per_round": 2, "rounds": 7, "evaluate_every": 9}


def alone(message: Message, context: Context) -> Any:
    """A client whose process begins with the message, and that has a machine of its own."""
    process.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_app, "answer", lambda *args, shared: answer(*args, shared=False))
        return app(message, context)


def down(run: Run) -> list[int]:
    return [row.downlink_bytes for row in run.rows]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_local(tmp_path_factory.mktemp("unbroken") / "run", **CORE, **SOME)


@pytest.mark.slow
@pytest.mark.parametrize("downlink", ["full", "sparse"])
def test_clients_on_machines_of_their_own_keep_carriers_in_files(downlink, unbroken, tmp_path):
    """They derive them at a refresh, and need no file of the server."""
    run = run_local(tmp_path / "run", client=alone, downlink=downlink, **CORE, **SOME)
    assert run.weights.equal(unbroken.weights)
    assert [row.downlink_messages for row in run.rows] == [2] * 7
    files = sorted(path.name for path in (run.path / "replicas").iterdir())
    if downlink == "full":
        assert down(run) == down(unbroken)
        assert files == [f"basis-{client:06d}.bin" for client in range(4)]
    else:
        assert files == [f"client-{client:06d}.bin" for client in range(4)]
