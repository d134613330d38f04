"""Settings and data that must not change within a run.

Epsilon is a maximum over clients that keep their examples and settings in the whole run. A resumed run with other
settings or data would report an epsilon that holds for neither.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from simulations.plan.plan import Plan
from simulations.rundir.rundir import RunDir
from simulations.settings.settings import as_config
from simulations.workloads.digest import data_digest

HARMLESS = frozenset({
    "engine", "device", "threads", "client-cpus", "client-gpus", "round-timeout",
    "data-dir", "run-dir", "evaluate-every", "record-updates",
})  # fmt: skip
"""Settings that a resumed run may change: they change neither a random draw nor the meaning of a ledger entry."""

MOVED = frozenset({"run-dir"})
"""Harmless settings that no message mentions: the user who resumes a run knows where its directory is."""


def fingerprint(plan: Plan) -> dict[str, Any]:
    """The part of a plan in a checkpoint: settings, owner of each example, and digests of the public test splits."""
    sha = hashlib.sha256()
    if plan.declared is not None:
        sha.update(repr(tuple(plan.declared)).encode())
    for part in plan.parts:
        sha.update(len(part).to_bytes(8, "little") + part.numpy().tobytes())
    tests = {name: data_digest(split) for name, split in plan.workload.tests.items()}
    return {"settings": dict(as_config(plan.settings)), "partition": sha.hexdigest(), "tests": tests}


def keep_data_digest(plan: Plan, run: RunDir) -> None:
    """Keep the digest of all training rows, for ``check_unchanged`` in a resumed run."""
    run.write_data_digest(data_digest(plan.workload.train))


def check_unchanged(saved: Mapping[str, Any], plan: Plan, run: RunDir) -> list[str]:
    """Raise ValueError, naming the difference, if settings or data are not those of the checkpoint.

    Returns the settings that may change and have changed, as "threads = 2 (was 1)".
    """
    now = fingerprint(plan)
    before, after = saved["settings"], now["settings"]
    changed = sorted(k for k in (before.keys() | after.keys()) - MOVED if before.get(k) != after.get(k))
    refused = [k for k in changed if k not in HARMLESS]
    if refused:
        words = ", ".join(f"{k} = {before.get(k, 'unset')} (now {after.get(k, 'unset')})" for k in refused)
        raise ValueError(f"a run cannot change its settings midway: restore {words} in config.toml, or start a new run")
    if saved["partition"] != now["partition"] or run.read_data_digest() != data_digest(plan.workload.train):
        raise ValueError(
            "the data or its partition differ from those that this run began with, and the clients' ledgers would "
            "then say too little: restore the data, or start a new run"
        )
    if saved["tests"] != now["tests"]:
        raise ValueError(
            "the test data differ from those that this run began with, and its accuracies could not be compared: "
            "restore the data, or start a new run"
        )
    return [f"{k} = {after.get(k, 'unset')} (was {before.get(k, 'unset')})" for k in changed]
