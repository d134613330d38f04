"""Trials of a search that run nothing: an accuracy that depends on the settings, and a ledger."""

from pathlib import Path
from typing import Any

import tomli_w

from fedlsg.privacy import Entry, Ledger
from fedlsg.simulations.compare.grid.cell_worker import Job, Outcome
from fedlsg.simulations.storage.run_directory import RunDir
from tests.simulations.support.compare_cases import CHANCE

SPENT = {"steps": 2, "sample_rate": 0.05, "noise_multiplier": 2.0}
"""What each client of a trial spends."""


def accuracy_of(given: dict[str, Any]) -> float:
    """Best at a learning rate of 1; rank adds a little."""
    return 0.9 - 0.05 * abs(given["learning_rate"] - 1) + 0.001 * given.get("rank", 0)


def finish(job: Job, *, diverged: bool = False, worse: bool = False) -> Outcome:
    """A trial that leaves a config, a summary and a ledger of one client."""
    run, given = RunDir(Path(job.path)), job.given
    run.ledgers.mkdir(parents=True)
    run.config.write_text(
        tomli_w.dumps({name.replace("_", "-"): value for name, value in given.items()})
    )
    accuracy = accuracy_of(given) - 0.5 * worse
    summary = {
        "workload": "digits",
        "accuracy": accuracy,
        "loss": 1 - accuracy,
        "epsilon_max": 1.0,
        "private": True,
        "uplink_bytes": 10,
        "uplink_bytes_dense": 40,
        "downlink_bytes": 40,
        "wall_seconds": 3.0,
        "chance": CHANCE,
        "delta": 1e-5,
        "versions": {},
        "diverged": diverged,
        "stopped": "the loss is nan" if diverged else None,
    }
    run.write_summary(summary)
    Ledger(run.ledger(0), client=0).charge(
        Entry(
            client=0, round=1, attempt=0, mechanism="dp", clip_norm=1.0, num_examples=100, **SPENT
        )
    )
    return Outcome(status="done")
