"""The home of one Flower run, and the processes that import Flower before the run begins.

A run has a home of its own, FLWR_HOME in a temporary directory, which also marks its processes (``end_all``). Two of
them, "superlink" and "client", can start before the plan is ready: they import Flower and wait.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from simulations.engines.runtime import processes as flower_processes
from simulations.grids.import_path import with_packages

HOME_LENGTH_LIMIT = 35  # characters; Ray adds 68 for a Unix socket, and 103 is the least any system allows
ENVIRONMENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # else Flower builds an environment before every run
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_LOG_LEVEL": "INFO",  # the SuperLink's INFO line says that it listens
    "PYTHONUNBUFFERED": "1",
    "PYTHONSAFEPATH": "1",  # `python -c` and `python -m` of a child do not search the working directory
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",  # the log file keeps every line
    "RAY_COLOR_PREFIX": "0",
    "RAY_prestart_worker_first_driver": "0",  # those workers lack Flower's environment and are thrown away unused
}


@dataclass(frozen=True, kw_only=True)
class Processes:
    """The processes of one run; "superlink" and "client" import Flower and wait for ``tell``.

    ``end`` ends them all and removes ``home``.
    """

    home: Path  # FLWR_HOME
    env: dict[str, str]
    log: IO[bytes]  # their output before ``tell`` names the log
    children: list[subprocess.Popen[bytes]]
    waiting: dict[str, subprocess.Popen[bytes]]
    end: ExitStack

    def take(self, role: str) -> subprocess.Popen[bytes]:
        """The waiting process of this role, else a new one."""
        return self.waiting.pop(role, None) or self.start(role)

    def start(self, role: str) -> subprocess.Popen[bytes]:
        """A new process in this role."""
        process = flower_processes.start(role, env=self.env, log=self.log)
        self.children.append(process)
        return process


_AHEAD: list[Processes] = []


@contextmanager
def importing() -> Iterator[Processes]:
    """Processes that import Flower, in a home of their own. On exit, the processes and the home are gone."""
    children: list[subprocess.Popen[bytes]] = []
    with ExitStack() as end:
        home = end.enter_context(private_home(children))
        log = end.enter_context((home / "before.log").open("ab"))
        made = Processes(
            home=home,
            env=with_packages(environment(home), home / "code"),
            log=log,
            children=children,
            waiting={},
            end=end,
        )
        for role in ("superlink", "client"):
            made.waiting[role] = made.start(role)
        yield made


@contextmanager
def importing_ahead() -> Iterator[None]:
    """The processes of the next run import Flower while the body prepares that run.

    Nothing listens, and there is no run, before ``ready`` is entered. Guarantee: on return and on every exception,
    SIGTERM and SIGHUP included, none of them is left.
    """
    with flower_processes.sigterm_raises(), importing() as processes:
        _AHEAD.append(processes)
        try:
            yield
        finally:
            _AHEAD.clear()


@contextmanager
def ready() -> Iterator[Processes]:
    """The processes of ``importing_ahead``, else new ones. On exit, the processes and the home are gone."""
    if not _AHEAD:
        with importing() as processes:
            yield processes
        return
    processes = _AHEAD.pop()
    with processes.end:  # ``importing_ahead`` leaves it once more, which then does nothing
        yield processes


def joins_cluster() -> bool:
    """Whether the run joins an existing Ray cluster."""
    return os.environ.get("RAY_ADDRESS", "local") not in ("", "local")


def environment(home: Path) -> dict[str, str]:
    """Environment of every process of the run. Flower starts its own by name, so this Python's scripts come first."""
    scripts = [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    path = os.pathsep.join([*scripts, os.environ.get("PATH", os.defpath)])
    for name in ("flower-superexec", "flwr-simulation"):
        if shutil.which(name, path=path) is None:
            raise RuntimeError(f"expected {name} next to {sys.executable}; install flwr[simulation] there")
    env = {**os.environ, **ENVIRONMENT, "PATH": path, "FLWR_HOME": str(home)}
    if not joins_cluster():
        # Its own directory also hides a cluster of `ray start`, which Ray would join on its own.
        env["RAY_TMPDIR"] = str(home)
        # Ray's ports run anyone's code; on Linux this switch, named for other systems, keeps them on loopback.
        env["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    return env


@contextmanager
def private_home(children: list[subprocess.Popen[bytes]]) -> Iterator[Path]:
    """A new FLWR_HOME. On leaving, every process of the run in it ends, then it is removed."""
    base = tempfile.gettempdir()
    if len(base) + len("/fedlsg-12345678") > HOME_LENGTH_LIMIT and not joins_cluster():
        base = os.sep + "tmp"
    home = Path(tempfile.mkdtemp(prefix="fedlsg-", dir=base))
    try:
        yield home
    finally:
        with flower_processes.ignore_interrupts():
            flower_processes.end_all(home, children)
            shutil.rmtree(home, ignore_errors=True)
