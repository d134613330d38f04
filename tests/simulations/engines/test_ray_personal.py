"""Personal heads on Ray: bit for bit the run of the engine local."""

from typing import Any

import pytest
import torch

from simulations.engines import ray
from simulations.rundir.last_payload import FeedbackBox
from tests.simulations.support.runs import Run, ignore, plan_at, run_local

pytestmark = pytest.mark.ray

PERSONAL: dict[str, Any] = {
    "personal": "classifier", "partition": "dirichlet", "alpha": 0.1, "clients": 3, "method": "lsg", "momentum": 0.9,
}  # fmt: skip


def heads(run: Run) -> list[torch.Tensor]:
    return [FeedbackBox(run.directory.own(client), client).newest(99, 64 * 10 + 10) for client in range(3)]


def test_both_engines_keep_the_same_heads(tmp_path, on_ray):
    here = run_local(tmp_path / "local", **PERSONAL)
    plan, directory = plan_at(tmp_path / "ray", **PERSONAL, engine="ray")
    ray.run(plan, directory, on_round=ignore)
    there = Run(directory.path, plan)
    assert torch.equal(here.weights, there.weights)
    assert all(map(torch.equal, heads(here), heads(there)))
    assert heads(there)[0].any()
