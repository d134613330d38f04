"""Client-level privacy on Ray: bit for bit the run of the engine local, with clients that leave."""

import pytest
import torch

from fedlsg.privacy import SERVER
from simulations.engines import ray
from tests.simulations.support.runs import Run, ignore, plan_at, run_local

pytestmark = pytest.mark.ray

FEDERATION = {
    "unit": "client", "trust": "server", "sample_rate": None, "batch_size": 10, "clients": 40, "clients_per_round": 12,
    "local_steps": 2, "method": "probe", "rounds": 3, "clip_quantile": 0.5, "dropout": 0.2, "downlink": "sparse",
}  # fmt: skip


@pytest.mark.slow
def test_both_engines_give_the_same_run(tmp_path, on_ray):
    here = run_local(tmp_path / "local", **FEDERATION)
    plan, directory = plan_at(tmp_path / "ray", **FEDERATION, engine="ray")
    there = Run(directory.path, plan, ray.run(plan, directory, on_round=ignore))
    assert torch.equal(here.weights, there.weights)
    assert here.entries(SERVER) == there.entries(SERVER)
    assert here.rows == there.rows
    assert here.checkpoint["server"]["clip_norm"] == there.checkpoint["server"]["clip_norm"]
    assert not list(there.path.rglob("client-*")), "no file tells who took part"
    assert there.payloads == {}
    assert not list(there.path.glob("checkpoint/outbox/*"))
