"""What must not change in the middle of a run, and who may write its directory.

Epsilon is a maximum over clients whose examples stay theirs, under settings that every ledger entry was made with: a
resumed run with other settings, or other data, would report an epsilon that holds for neither.
"""

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from simulations.plan.plan import Plan
from simulations.rundir.files.atomic import write_atomically
from simulations.rundir.files.sealed import seal, unseal
from simulations.rundir.rundir import RunDir
from simulations.settings.settings import as_config
from simulations.workloads.digest import data_digest

try:
    import fcntl
except ImportError:  # not on Windows: there one process a run is the caller's duty
    fcntl = None  # type: ignore[assignment]

HARMLESS = frozenset({
    "engine", "device", "threads", "client-cpus", "client-gpus", "grouped", "round-timeout",
    "data-dir", "run-dir", "evaluate-every", "record-updates",
})  # fmt: skip
"""Settings that a resumed run may change: they move neither a draw nor what a ledger entry means."""


MOVED = frozenset({"run-dir"})
"""Harmless settings that no message mentions: the user who resumes a run knows where its directory is."""


def fingerprint(plan: Plan) -> dict[str, Any]:
    """What a checkpoint keeps of the plan: settings, who holds which example, and digests of the public test splits."""
    sha = hashlib.sha256()
    if plan.declared is not None:
        sha.update(repr(tuple(plan.declared)).encode())
    for part in plan.parts:
        sha.update(len(part).to_bytes(8, "little") + part.numpy().tobytes())
    tests = {name: data_digest(split) for name, split in plan.workload.tests.items()}
    return {"settings": dict(as_config(plan.settings)), "partition": sha.hexdigest(), "tests": tests}


def keep_data_digest(plan: Plan, run: RunDir) -> None:
    """Write the digest of all training rows, readable by its owner alone: it is as secret as the rows."""
    write_atomically(run.data_digest, seal({"rows": data_digest(plan.workload.train)}), private=True)


def check_unchanged(saved: Mapping[str, Any], plan: Plan, run: RunDir) -> list[str]:
    """Raise ValueError, naming what, if settings or data differ from those that a checkpoint was made with.

    Returns the settings that may change and did, as "threads = 2 (was 1)".
    """
    now = fingerprint(plan)
    before, after = saved["settings"], now["settings"]
    changed = sorted(k for k in (before.keys() | after.keys()) - MOVED if before.get(k) != after.get(k))
    refused = [k for k in changed if k not in HARMLESS]
    if refused:
        words = ", ".join(f"{k} = {before.get(k, 'unset')} (now {after.get(k, 'unset')})" for k in refused)
        raise ValueError(f"a run cannot change its settings midway: restore {words} in config.toml, or start a new run")
    if saved["partition"] != now["partition"] or _known_digest(run) != data_digest(plan.workload.train):
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


def _known_digest(run: RunDir) -> str:
    otherwise = "the data cannot be compared with those before; restore it from a copy, or start a new run"
    try:
        return str(unseal(run.data_digest, otherwise=otherwise)["rows"])
    except FileNotFoundError:
        raise ValueError(f"{run.data_digest} is missing: {otherwise}") from None


def _lock_file(directory: RunDir) -> IO[str]:
    try:
        return (directory.path / ".lock").open("a+")
    except OSError as error:
        if error.errno not in {errno.EROFS, errno.EACCES, errno.EPERM}:
            raise
        raise ValueError(
            f"cannot write to {directory.path}: {error.strerror}; make it writable, or continue a copy of it"
        ) from None


@contextmanager
def exclusive(directory: RunDir) -> Iterator[None]:
    """Hold the run directory; a second process that wants it gets a ValueError. The lock ends with its process."""
    if fcntl is None:
        yield
        return
    with _lock_file(directory) as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()  # empty for the moment before it writes its id
            who = f"process {holder}" if holder else "another process"
            raise ValueError(f"{directory.path} is in use by {who}: wait for its end, or stop it") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
