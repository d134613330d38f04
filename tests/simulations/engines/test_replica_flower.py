"""Sparse downlink on Flower: replicas of Ray's actors and of SuperNodes, and the bytes of the local engine."""

import pytest

from benchmarks.deployment import deploy
from simulations.engines import flower
from tests.simulations.support.runs import Run, ignore, plan_at, run_local


@pytest.mark.ray
def test_flower_sends_the_same_bytes(tmp_path):
    settings = {"downlink": "sparse", "rounds": 4, "clients": 3, "clients_per_round": 2, "momentum": 0.9}
    alone = run_local(tmp_path / "local", **settings)
    plan, directory = plan_at(tmp_path / "flower", engine="flower", **settings)
    run = Run(directory.path, plan, flower.run(plan, directory, on_round=ignore))
    assert run.weights.equal(alone.weights)
    assert [row.downlink_bytes for row in run.rows] == [row.downlink_bytes for row in alone.rows]
    assert [row.downlink_messages for row in run.rows] == [2] * 4
    assert not (run.path / "replicas").exists()


@pytest.mark.slow
@pytest.mark.ray
def test_supernodes_keep_replicas_of_their_own(tmp_path):
    settings = {"downlink": "sparse", "rounds": 3, "momentum": 0.9, "codec": "noise-floor"}
    alone = run_local(tmp_path / "local", **settings)
    plan, directory = plan_at(tmp_path / "deployed", engine="flower", **settings)
    flower = deploy(plan, tmp_path / "flower", nodes=2)
    assert flower.status == "finished:completed", flower.log[-3000:]
    run = Run(directory.path, plan)
    assert run.weights.equal(alone.weights)
    assert [row.downlink_bytes for row in run.rows] == [row.downlink_bytes for row in alone.rows]
    assert [row.downlink_messages for row in run.rows] == [2] * 3
    assert sorted(path.name for path in (run.path / "replicas").iterdir()) == ["client-000000.bin", "client-000001.bin"]
