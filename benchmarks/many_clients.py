"""Seconds to the first row and seconds a round, by the number of clients: 100 of them a round, 5 images each.

    python -m benchmarks.many_clients --json FILE [--clients 1000 10000] [--engine ray] [--rounds 12]

Each number of clients is a process of its own, one after the other. The work of a round is the same for all.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import jobs
from benchmarks.job_run import on_ray
from benchmarks.pairs import write
from simulations.engines import local
from simulations.plan.plan import make_plan
from simulations.rundir.lock import create
from simulations.rundir.tables import Row
from simulations.settings.settings import from_mapping

COHORT, IMAGES = 100, 5


def measure(clients: int, engine: str, rounds: int) -> dict[str, float]:
    """Seconds from the plan to the first row, and the median of the later rounds' seconds."""
    given = jobs.settings(
        "lenet", "dpsgd", rounds=rounds, engine=engine, clients=clients, clients_per_round=COHORT,
        train_rows=IMAGES * clients, local_steps=1,
    )  # fmt: skip
    began = time.perf_counter()
    plan = make_plan(from_mapping(given))
    planned = time.perf_counter()
    rows: list[float] = []

    def on_round(row: Row) -> None:
        rows.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        directory = create(f"{folder}/run", plan.settings)
        directory.write_config(plan.settings)
        (on_ray if engine == "ray" else local.run)(plan, directory, on_round=on_round)
    each = [later - earlier for earlier, later in itertools.pairwise(rows)]
    return {"plan": planned - began, "first_row": rows[0] - planned, "round": statistics.median(each)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", type=Path)
    options.add_argument("--clients", type=int, nargs="+", default=[1000, 10_000])
    options.add_argument("--engine", choices=("ray", "local"), default="ray")
    options.add_argument("--rounds", type=int, default=12)
    given = options.parse_args()
    results: dict[str, Any] = {}
    print("| clients | plan, s | to the first row, s | a round, s |\n|---|---|---|---|")
    for clients in given.clients:
        code = "import json; from benchmarks.many_clients import measure; "
        code += f"print(json.dumps(measure({clients}, {given.engine!r}, {given.rounds})))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"| {clients} | {found['plan']:.1f} | {found['first_row']:.1f} | {found['round']:.2f} |", flush=True)
        results[str(clients)] = found
    write(given.json, {"many_clients": results, "engine": given.engine, "rounds": given.rounds})


if __name__ == "__main__":
    main()
