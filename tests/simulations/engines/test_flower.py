"""Flower's own runtimes run the same apps: ``flwr run`` on its simulation and on SuperNodes."""

import os

import pytest

from benchmarks.flower.deployment import deploy
from benchmarks.flower.flower_app import simulate, write_app
from tests.places import REPOSITORY
from tests.simulations.support.runs import Run, plan_at, run_local


@pytest.mark.ray
def test_flower_s_simulation_runs_as_the_local_engine(tmp_path):
    settings = {
        "downlink": "sparse",
        "rounds": 3,
        "clients": 3,
        "clients_per_round": 2,
        "record_updates": True,
    }
    alone = run_local(tmp_path / "local", **settings)
    plan, directory = plan_at(tmp_path / "run", engine="flower", **settings)
    app = write_app(tmp_path / "app", plan)
    status = simulate(app, tmp_path / "flower", nodes=3)
    assert status == "finished:completed", (tmp_path / "flower" / "flower.log").read_text()[-3000:]
    run = Run(directory.path, plan)
    assert run.weights.equal(alone.weights)
    assert run.payloads == alone.payloads
    assert run.model_file == alone.model_file
    assert run.ledgers == alone.ledgers
    assert [row.downlink_bytes for row in run.rows] == [row.downlink_bytes for row in alone.rows]


@pytest.mark.slow
@pytest.mark.ray
def test_supernodes_keep_replicas_of_their_own(tmp_path, monkeypatch):
    """Under reproducible noise, which a deployed client refuses: a ClientApp of this test lifts
    that refusal alone.
    """
    settings = {"downlink": "sparse", "rounds": 3, "momentum": 0.9, "codec": "noise-floor"}
    alone = run_local(tmp_path / "local", **settings)
    plan, directory = plan_at(tmp_path / "deployed", engine="flower", **settings)
    clients = REPOSITORY / "tests" / "simulations" / "support"
    # for the SuperNodes
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(clients), str(REPOSITORY)]))
    flower = deploy(plan, tmp_path / "flower", nodes=2, client_app="reproducible_clients:app")
    assert flower.status == "finished:completed", flower.log[-3000:]
    run = Run(directory.path, plan)
    assert run.weights.equal(alone.weights)
    assert [row.downlink_bytes for row in run.rows] == [row.downlink_bytes for row in alone.rows]
    assert [row.downlink_messages for row in run.rows] == [2] * 3
    kept = (tmp_path / "flower").glob("node-*/runs/*/replicas/client-*.bin")
    assert sorted(path.name for path in kept) == ["client-000000.bin", "client-000001.bin"]
