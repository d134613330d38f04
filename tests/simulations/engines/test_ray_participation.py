"""Clients that are away, leave, are slow or late on Ray: bit for bit the run of the engine local."""

from typing import Any

import pytest
import torch

from simulations.engines import ray
from simulations.rundir.tables import TIMES
from tests.simulations.support.runs import Run, ignore, plan_at, run_local

pytestmark = pytest.mark.ray

FEDERATION: dict[str, Any] = {
    "clients": 60, "clients_per_round": 10, "rounds": 3, "sample_rate": 0.3, "availability": "0.9", "dropout": 0.3,
    "speed": "lognormal 0.5", "over_selection": 0.4, "deadline": 0.12, "uplink_mbps": 2.0, "downlink_mbps": 20.0,
}  # fmt: skip


def rows(run: Run) -> list[dict[str, Any]]:
    """rounds.csv without wall time, and without the size of whole messages, which hold the path of the run."""
    left_out = ("seconds", *TIMES, "uplink_bytes_wire", "downlink_bytes_wire")
    return [{name: value for name, value in row.columns.items() if name not in left_out} for row in run.rows]


def charges(run: Run) -> list[Any]:
    return [run.entries(client) for client in range(60)]


@pytest.mark.slow
@pytest.mark.parametrize("downlink", ["full", "sparse"])
def test_both_engines_give_the_same_run(tmp_path, on_ray, downlink):
    here = run_local(tmp_path / "local", **FEDERATION, downlink=downlink)
    plan, directory = plan_at(tmp_path / "ray", **FEDERATION, downlink=downlink, engine="ray")
    there = Run(directory.path, plan, ray.run(plan, directory, on_round=ignore))
    assert here.summary is not None
    assert there.summary is not None
    assert torch.equal(here.weights, there.weights)
    assert charges(here) == charges(there)
    assert rows(here) == rows(there)
    assert here.summary["simulated"] == there.summary["simulated"]
    assert here.summary["epsilon_max"] == there.summary["epsilon_max"]
    assert min(there.summary["simulated"][name] for name in ("answered", "dropped", "late")) > 1
    trained = there.summary["simulated"]["answered"] + there.summary["simulated"]["late"]
    assert sum(map(len, charges(there))) == trained, "who left is not charged, who was late is"
