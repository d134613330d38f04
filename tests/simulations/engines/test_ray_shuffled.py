"""Shuffled batches on Ray: bit for bit those of the engine local, and each row once an epoch with secret orders."""

import pytest
import torch

from simulations.engines import ray
from tests.simulations.client.test_shuffled import truth_of
from tests.simulations.support.runs import Run, ignore, plan_at, run_local

pytestmark = pytest.mark.ray

SHUFFLE = {
    "sampling": "shuffle", "sample_rate": None, "batch_size": 150, "rounds": 6, "method": "rs", "local_steps": 2,
}  # fmt: skip


def test_both_engines_give_the_same_run(tmp_path, on_ray):
    here = run_local(tmp_path / "local", **SHUFFLE)
    plan, directory = plan_at(tmp_path / "ray", **SHUFFLE, engine="ray")
    there = Run(directory.path, plan, ray.run(plan, directory, on_round=ignore))
    assert torch.equal(here.weights, there.weights)
    assert [here.entries(c) for c in range(2)] == [there.entries(c) for c in range(2)]


def test_a_secret_order_lasts_over_rounds(tmp_path, on_ray):
    given = SHUFFLE | {"engine": "ray", "record_updates": True, "reproducible": False, "rounds": 5}
    plan, directory = plan_at(tmp_path / "ray", **given)
    ray.run(plan, directory, on_round=ignore)
    for client, part in enumerate(plan.parts):
        rows = torch.cat([truth_of(directory.path, round, client) for round in range(1, 6)])
        for epoch in rows.split(len(part)):
            assert torch.equal(epoch.sort().values, part.sort().values)
