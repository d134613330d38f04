"""Run one Flower app through ``flwr run`` on a private SuperLink, and report how the run really ended.

``flwr run`` itself exits 0 when the run fails and leaves a detached SuperLink behind. Here every run gets a SuperLink
of its own (loopback, free port, state in memory, FLWR_HOME in a temporary directory), so that it neither needs nor
disturbs the user's, and two runs can go at once. The results are the files that the ServerApp writes.
"""

import json
import math
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simulations.engines.runtime import processes as flower_processes
from simulations.engines.runtime.home import Processes, joins_cluster, ready
from simulations.rundir.files.atomic import make_file

STARTUP_SECONDS = 120.0  # for a SuperLink to answer on a loaded machine (1.5 s on an idle one)
PORT_ATTEMPTS = 5  # a free port can be taken by another program before the SuperLink binds it
WATCH_SECONDS = 0.05
TAIL_LINES = 40


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """How the run ended, in ``flwr list``'s words (status "finished", sub-status, details), and the end of the log."""

    status: str
    sub_status: str
    details: str
    log_tail: str

    @property
    def completed(self) -> bool:
        """True only for a run that Flower reports as finished:completed."""
        return (self.status, self.sub_status) == ("finished", "completed")


@dataclass(frozen=True, kw_only=True)
class _Run:
    """The values that all steps of one run need."""

    processes: Processes
    log_file: Path
    poll: Callable[[], None]
    poll_seconds: float


def run_app(
    app: Path | Callable[[Path], Path],
    *,
    num_supernodes: int,
    log_file: Path,
    cpus_per_client: float = 1,
    gpus_per_client: float = 0,
    total_cpus: int | None = None,
    total_gpus: int | None = None,
    poll: Callable[[], None],
    poll_seconds: float = 0.25,
) -> RunOutcome:
    """Run the Flower app in a folder on Ray until it ends; ``poll`` is called every ``poll_seconds`` meanwhile.

    ``app`` is the folder, or a function that makes it inside the run's home. The home is removed with the run, by the
    run's other processes if this one is killed.
    ``total_cpus`` (default: this process's CPUs, no more than the clients can use) serve ClientApps, each taking
    ``cpus_per_client`` and ``gpus_per_client``. With RAY_ADDRESS set the run joins that cluster, which has its own
    totals; the machines of a cluster must share TMPDIR, where the app's code is unpacked. Everything that Flower and
    Ray print is appended to ``log_file``; nothing reaches the terminal.

    Guarantee: on return and on every exception (``poll``'s own, KeyboardInterrupt, and SIGTERM or SIGHUP, which become
    SystemExit) no process of this run is left (on Linux; see ``end_all``), and no temporary directory.
    Raises: ValueError for impossible resources; RuntimeError when Flower could not start or lost the run. A run that
    starts and fails is no exception: read ``RunOutcome.completed``.
    """
    config = _federation_config(num_supernodes, cpus_per_client, gpus_per_client, total_cpus, total_gpus)
    make_file(log_file)  # clients' tracebacks go there
    with flower_processes.sigterm_raises(), ready() as processes:
        run = _Run(processes=processes, log_file=log_file, poll=poll, poll_seconds=poll_seconds)
        client, listing = processes.take("client"), processes.home / "runs.json"
        superlink = _start_superlink(run)
        app_dir = app if isinstance(app, Path) else app(processes.home)
        given = {"app": str(app_dir), "federation": config, "listing": str(listing)}
        flower_processes.tell(client, **given, log=str(log_file))
        _wait(run, lambda: client.poll() is not None)
        if client.returncode != 0 or superlink.poll() is not None:
            raise RuntimeError(f"expected Flower to run {app_dir}; it did not:\n{_last_words(run)}\n(see {log_file})")
        return _outcome(listing, log_file)


def _federation_config(
    num_supernodes: int, cpus: float, gpus: float, total_cpus: int | None, total_gpus: int | None
) -> str:
    """Value of ``flwr run --federation-config``. Checked here, because Ray waits for ever for missing resources."""
    if num_supernodes < 1:
        raise ValueError(f"expected {num_supernodes=} >= 1")
    if cpus <= 0 or gpus < 0:
        raise ValueError(f"expected cpus_per_client={cpus} > 0 and gpus_per_client={gpus} >= 0")
    config = {
        "num-supernodes": num_supernodes,
        "client-resources-num-cpus": cpus,
        "client-resources-num-gpus": float(gpus),
        "init-args-log-to-driver": "true",  # what a ClientApp prints or raises reaches the log file
    }
    if not joins_cluster():  # an existing cluster refuses totals
        if total_cpus is None:
            total_cpus = max(math.ceil(cpus), min(_cpu_count(), math.ceil(num_supernodes * cpus)))
        if total_cpus < cpus or (total_gpus is not None and total_gpus < gpus):
            raise ValueError(
                f"expected {total_cpus=} >= cpus_per_client={cpus} and {total_gpus=} >= gpus_per_client={gpus}"
            )
        config["init-args-num-cpus"] = total_cpus
        if total_gpus is not None:
            config["init-args-num-gpus"] = total_gpus
    return " ".join(f"{key}={value}" for key, value in config.items())


def _cpu_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_superlink(run: _Run) -> subprocess.Popen[bytes]:
    for _ in range(PORT_ATTEMPTS):
        begin = run.log_file.stat().st_size
        superlink = _try_superlink(run, free_port(), begin)
        if superlink is not None:
            return superlink
        if "address already in use" not in _read(run.log_file, begin):
            break
    raise RuntimeError(f"expected a Flower SuperLink to start; it did not:\n{_last_words(run)}\n(see {run.log_file})")


def _try_superlink(run: _Run, port: int, begin: int) -> subprocess.Popen[bytes] | None:
    """A SuperLink that listens on ``port``, or None; ``begin`` is where its own output begins in the log."""
    connection = f'[superlink.fedlsg]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (run.processes.home / "config.toml").write_text(connection)
    superlink = run.processes.take("superlink")
    flower_processes.tell(superlink, port=str(port), log=str(run.log_file))
    deadline = time.monotonic() + STARTUP_SECONDS

    def settled() -> bool:
        return _answers(run.log_file, begin, port) or superlink.poll() is not None or time.monotonic() > deadline

    _wait(run, settled)
    return superlink if superlink.poll() is None and _answers(run.log_file, begin, port) else None


def _answers(log_file: Path, begin: int, port: int) -> bool:
    """Whether the SuperLink itself reports that it listens: another program may have taken the port first."""
    return f"Uvicorn running on http://127.0.0.1:{port}" in _read(log_file, begin)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(run: _Run, done: Callable[[], bool]) -> None:
    due = 0.0
    while not done():
        if time.monotonic() >= due:
            run.poll()
            due = time.monotonic() + run.poll_seconds
        time.sleep(min(WATCH_SECONDS, run.poll_seconds))
    run.poll()


def _outcome(listing: Path, log_file: Path) -> RunOutcome:
    (run,) = json.loads(listing.read_text())["runs"]
    status, _, sub_status = run["status"].partition(":")
    details = "" if run["status-details"] == "N/A" else run["status-details"]
    return RunOutcome(status=status, sub_status=sub_status, details=details, log_tail=_tail(log_file))


def _read(log_file: Path, begin: int = 0) -> str:
    with log_file.open("rb") as log:
        log.seek(begin)
        return log.read().decode(errors="replace")


def _last_words(run: _Run) -> str:
    """The end of the log, with the earlier output added: of a process that could not import Flower."""
    with run.log_file.open("a") as log:
        log.write(_read(run.processes.home / "before.log"))
    return _tail(run.log_file)


def _tail(log_file: Path) -> str:
    """The last lines of the log without colours and without the SuperLink's own access log."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", _read(log_file))
    return "\n".join([line for line in plain.splitlines() if "[uvicorn." not in line][-TAIL_LINES:])
