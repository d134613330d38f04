"""Flower itself, for measuring and testing it: an app on a private SuperLink, on Flower's
simulation or on SuperNodes.

``flwr run`` exits 0 when the run fails, and leaves a detached SuperLink behind. Here every run has
a SuperLink of its own (loopback, free port, state in memory, FLWR_HOME in a temporary directory),
and its status is read afterwards.
"""

import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import rmtree

import tomli_w

from benchmarks.flower.flower_processes import end_all
from fedlsg.simulations.engines.cluster import short_base
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.settings.settings import as_config

SERVER_APP = "fedlsg.simulations.server.server_app:app"
CLIENT_APP = "fedlsg.simulations.client.client_app:app"
PATIENCE = 120.0
ENVIRONMENT = {
    # else Flower builds an environment before every run
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_LOG_LEVEL": "INFO",  # the SuperLink's INFO line says that it listens
    "PYTHONUNBUFFERED": "1",
    # `python -c` and `python -m` of a child do not search the working directory
    "PYTHONSAFEPATH": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",  # the log file keeps every line
    # on Linux this switch, named for other systems, keeps Ray on loopback
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


@dataclass(frozen=True, kw_only=True)
class Flower:
    """A SuperLink that listens, and what it was started with."""

    home: Path
    folder: Path
    env: dict[str, str]
    port: int = field(default_factory=lambda: free_port())
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def log_file(self) -> Path:
        """What all processes print."""
        return self.folder / "flower.log"

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a command of Flower."""
        with self.log_file.open("ab") as log:
            process = subprocess.Popen(
                command,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
            )
        self.children.append(process)
        return process

    def run(self, app: Path, *options: str, patience: float = 4 * PATIENCE) -> str:
        """Run an app to its end; returns its status, such as ``finished:completed``."""
        self.start("flwr", "run", str(app), "fedlsg", "--stream", *options).wait(timeout=patience)
        listed = subprocess.run(
            ["flwr", "list", "fedlsg", "--format", "json"],
            env=self.env,
            capture_output=True,
            check=True,
            cwd=os.sep,
        )
        (run,) = json.loads(listed.stdout)["runs"]
        return str(run["status"])


@contextmanager
def private_flower(folder: Path, *options: str) -> Iterator[Flower]:
    """A SuperLink with these options of flower-superlink; its log is in ``folder``.

    Guarantee: on return and on every exception no process of the run is left (as ``end_all`` says),
    and the user's own FLWR_HOME was not touched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="fedlsg-", dir=short_base()))
    made = Flower(home=home, folder=folder, env=environment(home))
    try:
        (home / "config.toml").write_text(
            f'[superlink.fedlsg]\naddress = "127.0.0.1:{made.port}"\ninsecure = true\n'
        )
        link = made.start(
            "flower-superlink",
            "--insecure",
            "--host",
            "127.0.0.1",
            "--port",
            str(made.port),
            *options,
        )
        wait(
            lambda: f"Uvicorn running on http://127.0.0.1:{made.port}" in made.log_file.read_text(),
            link,
        )
        yield made
    finally:
        end_all(home, made.children)
        rmtree(home, ignore_errors=True)


def simulate(app: Path, folder: Path, *, nodes: int) -> str:
    """``flwr run`` an app on Flower's own simulation; returns its status, the log is
    ``folder/flower.log``.
    """
    config = (
        f"num-supernodes={nodes} client-resources-num-cpus=1 "
        f"init-args-num-cpus={len(os.sched_getaffinity(0))}"
    )
    with private_flower(folder, "--simulation", "--isolation", "subprocess") as flower:
        return flower.run(app, "--federation-config", config)


def write_app(
    folder: Path, plan: Plan, server_app: str = SERVER_APP, client_app: str = CLIENT_APP
) -> Path:
    """A Flower app whose run config is the settings of a plan; the installed packages run."""
    settings = replace(plan.settings, engine="flower")
    return write_project(folder, as_config(settings), server_app, client_app)


def write_project(
    folder: Path, config: dict[str, str | int | float | bool], server_app: str, client_app: str
) -> Path:
    """A Flower app: a folder with a pyproject.toml and nothing else."""
    app = {
        "publisher": "fedlsg",
        "components": {"serverapp": server_app, "clientapp": client_app},
        "config": config,
    }
    project = {
        "name": "fedlsg-run",
        "version": "1.0.0",
        "license": "Apache-2.0",
        "dependencies": [],
    }
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}})
    )
    return folder


def environment(home: Path) -> dict[str, str]:
    """Environment of every process of a run. Flower starts its own by name, so this Python's
    scripts come first.
    """
    scripts = [str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    path = os.pathsep.join([*scripts, os.environ.get("PATH", os.defpath)])
    return {
        **os.environ,
        **ENVIRONMENT,
        "PATH": path,
        "FLWR_HOME": str(home),
        "RAY_TMPDIR": str(home),
    }


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait(ready: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    """Wait until Flower is up. Raises RuntimeError if its process ends before, or after two
    minutes.
    """
    deadline = time.monotonic() + PATIENCE
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the SuperLink did not start")
        time.sleep(0.05)
