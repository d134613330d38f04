"""Memory does not grow with the number of clients: ten thousand of them need what a thousand need."""

import subprocess
import sys

import pytest

from tests.places import REPOSITORY

ROUNDS = """
import resource, sys, tempfile
from benchmarks.rounds import jobs
from simulations.engines import local
from simulations.plan.plan import make_plan
from simulations.rundir.rundir import create
from simulations.settings.settings import from_mapping

clients = int(sys.argv[1])
given = jobs.settings(
    "lenet", "dpsgd", rounds=2, engine="local", clients=clients, clients_per_round=100, train_rows=50_000, local_steps=1
)
plan = make_plan(from_mapping(given))
with tempfile.TemporaryDirectory() as folder:
    directory = create(folder + "/run", plan.settings)
    directory.write_config(plan.settings)
    local.run(plan, directory, on_round=lambda row: None, page=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(clients: int) -> int:
    """Kilobytes that a run of two rounds needs at most, in a process of its own."""
    here = REPOSITORY
    command = [sys.executable, "-c", ROUNDS, str(clients)]
    run = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
    return int(run.stdout.split()[-1])


@pytest.mark.slow
def test_ten_thousand_clients_need_the_memory_of_a_thousand():
    assert peak(10_000) < 1.1 * peak(1_000)
