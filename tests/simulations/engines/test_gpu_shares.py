"""Shares of GPUs that Ray hands out: none on a cluster without one, some on a Ray that is told it
has two.
"""

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fedlsg.simulations.engines.workers import Workers
from tests.places import REPOSITORY
from tests.simulations.support.runs import plan_at, run_local

TWO_GPUS = """
import json, os, sys, tempfile
from pathlib import Path
import ray as real
from fedlsg.simulations.engines import cluster, ray
from tests.simulations.support.runs import ignore, plan_at
os.environ.update(cluster.ENVIRONMENT | cluster.LOOPBACK)
folder = tempfile.TemporaryDirectory(prefix="t")
real.init(address="local", _temp_dir=folder.name, num_cpus=6, num_gpus=2, include_dashboard=False,
          logging_level="ERROR", log_to_driver=False, job_config=cluster.driver_path_job())
with cluster.ready() as shared:
    workers = shared.workers(100, cpus=1, gpus=0.5)
    seen = real.get([w.__ray_call__.remote(lambda self: os.environ["CUDA_VISIBLE_DEVICES"]) for w in workers])
    for worker in workers:
        shared.kill(worker)
plan, directory = plan_at(Path(sys.argv[1]), engine="ray", clients=3, client_gpus=0.5)
assert ray.Workers(shared, plan, directory, "")._need == {"cpus": 1, "gpus": 0.5}
print(json.dumps({"seen": seen, "summary": ray.run(plan, directory, on_round=ignore)}))
real.shutdown()
folder.cleanup()
"""


@pytest.mark.parametrize(
    ("device", "gpus", "share"),
    [("auto", True, 0.25), ("auto", False, 0), ("cpu", True, 0), ("cuda", False, 0.25)],
)
def test_a_worker_takes_a_share_only_where_there_is_a_gpu(tmp_path, device, gpus, share):
    there: Any = SimpleNamespace(has_gpus=lambda: gpus)
    plan, directory = plan_at(tmp_path / "run")
    workers = Workers(there, plan, directory, "module:app")
    settings = SimpleNamespace(device=device, client_cpus=1, client_gpus=0.25)
    workers._plan = SimpleNamespace(settings=settings)  # type: ignore[assignment]
    assert workers._need == {"cpus": 1, "gpus": share}


@pytest.mark.slow
@pytest.mark.ray
def test_workers_share_all_gpus_and_compute_the_same_run(tmp_path):
    """Ray counts two GPUs; there is none, so that torch finds none in the workers and ``auto`` is
    the CPU.
    """
    env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", TWO_GPUS, str(tmp_path / "ray")],
        env={**env, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found["seen"]) == ["0", "0", "1", "1"]
    alone = run_local(tmp_path / "local", clients=3).summary
    assert alone is not None
    for name in ("device", "epsilon_max", "uplink_bytes", "accuracy", "loss"):
        assert found["summary"][name] == alone[name]
