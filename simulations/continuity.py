"""What must not change in the middle of a run, and who may write its directory.

Epsilon is a maximum over clients whose examples stay theirs, under settings that every ledger entry was made with: a
resumed run with other settings, or other data, would report a number that holds for neither.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from simulations.plan import Plan
from simulations.rundir import RunDir
from simulations.settings import as_config

try:
    import fcntl
except ImportError:  # not on Windows: there one process a run is the caller's duty
    fcntl = None  # type: ignore[assignment]

HARMLESS = frozenset({
    "engine", "device", "threads", "client-cpus", "client-gpus", "grouped", "round-timeout",
    "data-dir", "run-dir", "evaluate-every", "record-updates",
})  # fmt: skip
"""Settings that a resumed run may change: they move neither a draw nor what a ledger entry means."""


def fingerprint(plan: Plan) -> dict[str, Any]:
    """What a checkpoint keeps of the plan: settings, and a digest of who holds which example."""
    sha = hashlib.sha256()
    if plan.declared is not None:
        sha.update(repr(tuple(plan.declared)).encode())
    for part in plan.parts:
        sha.update(len(part).to_bytes(8, "little") + part.numpy().tobytes())
    return {"settings": dict(as_config(plan.settings)), "partition": sha.hexdigest()}


def check_unchanged(saved: Mapping[str, Any], plan: Plan) -> None:
    """Raise ValueError, naming the settings, if a plan differs from the one that a checkpoint was made with."""
    now = fingerprint(plan)
    before, after = saved["settings"], now["settings"]
    changed = sorted(k for k in (before.keys() | after.keys()) - HARMLESS if before.get(k) != after.get(k))
    if changed:
        words = ", ".join(f"{k} = {before.get(k, 'unset')} (now {after.get(k, 'unset')})" for k in changed)
        raise ValueError(f"a run cannot change its settings midway: restore {words} in config.toml, or start a new run")
    if saved["partition"] != now["partition"]:
        raise ValueError(
            "the data or its partition differ from those that this run began with, and the clients' ledgers would "
            "then say too little: restore the data, or start a new run"
        )


@contextmanager
def exclusive(directory: RunDir) -> Iterator[None]:
    """Hold the run directory; a second process that wants it gets a ValueError. The lock ends with its process."""
    if fcntl is None:
        yield
        return
    with (directory.path / ".lock").open("a+") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ValueError(f"{directory.path} is in use by process {file.read().strip() or 'unknown'}") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
