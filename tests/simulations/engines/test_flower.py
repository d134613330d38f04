"""Flower's own runtimes run the same apps: ``flwr run`` on its simulation and on SuperNodes."""

import pytest

from benchmarks.flower.flower_app import simulate, write_app
from tests.simulations.support.runs import Run, plan_at, run_local


@pytest.mark.ray
def test_flower_s_simulation_runs_as_the_local_engine(tmp_path):
    settings = {"downlink": "sparse", "rounds": 3, "clients": 3, "clients_per_round": 2, "record_updates": True}
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
