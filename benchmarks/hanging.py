"""Seconds that a client that never replies costs the others, round by round: docs/results/faults-runs.md.

    python -m benchmarks.hanging [--engine ray] [--rounds 8] [--round-timeout 3600]

Digits, five clients, all of them in each round; the third sleeps before it trains, in every round.
"""

import argparse
import csv
import tempfile
import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from simulations.client.app import app as honest
from simulations.engines import local
from simulations.plan.plan import make_plan
from simulations.rundir.lock import create
from simulations.settings.settings import from_mapping

HANGS = 2
app = ClientApp()
app.query()(honest)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client never comes back."""
    if context.node_config["partition-id"] == HANGS:
        time.sleep(1e6)
    return honest(message, context)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--engine", default="local", choices=["local", "ray"])
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--round-timeout", type=float, default=3600.0)
    given = options.parse_args()
    settings = {
        "workload": "digits", "clients": 5, "sample_rate": 0.05, "noise_multiplier": 2.0, "rounds": given.rounds,
        "engine": given.engine, "round_timeout": given.round_timeout,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="hanging-") as folder:
        plan, run = make_plan(from_mapping(settings)), create(str(Path(folder) / "run"), from_mapping(settings))
        run.write_config(plan.settings)
        began = time.monotonic()
        if given.engine == "local":
            local.run(plan, run, on_round=lambda row: None, client=app)
        else:
            from simulations.engines import ray

            ray.run(plan, run, on_round=lambda row: None, client="benchmarks.hanging:app")
        print(f"{time.monotonic() - began:.0f} s in all, with start and report")
        with run.rounds.open(newline="") as file:
            for row in csv.DictReader(file):
                print(
                    f"round {row['round']}: {float(row['seconds']):.1f} s, replied {row['answered']}, {row['reasons']}"
                )


if __name__ == "__main__":
    main()
