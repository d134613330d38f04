"""A run on Flower's deployment engine: a SuperLink and SuperNodes on loopback, each node behind a counting proxy."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.socket_proxy import CountingProxy, counting
from simulations import flower_runtime
from simulations.engines.flower import CLIENT_APP, write_app
from simulations.plan import Plan

PATIENCE = 120.0


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """How the run ended, what each node's proxy saw, and the log."""

    status: str
    proxies: tuple[CountingProxy, ...]
    log: str


def deploy(plan: Plan, folder: Path, *, nodes: int, client_app: str = CLIENT_APP) -> Deployed:
    """Run the app of ``plan`` on ``nodes`` SuperNodes; on return no process of it lives.

    The plan's run directory has to be one that the server and every node see: clients keep their ledgers in it.
    """
    children: list[subprocess.Popen[bytes]] = []
    folder.mkdir(parents=True, exist_ok=True)
    log_file = folder / "flower.log"
    app = write_app(folder / "app", plan, client_app)
    with ExitStack() as stack:
        log = stack.enter_context(log_file.open("ab"))
        port = flower_runtime._free_port()
        proxies = tuple(stack.enter_context(counting(port)) for _ in range(nodes))
        home = stack.enter_context(flower_runtime._private_home(children))
        env = flower_runtime._environment(home)

        def start(*command: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=folder
            )
            children.append(process)
            return process

        (home / "config.toml").write_text(f'[superlink.fedlsg]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
        link = start("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port))
        _wait(lambda: f"Uvicorn running on http://127.0.0.1:{port}" in log_file.read_text(), link)
        for index, proxy in enumerate(proxies):
            start(
                "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{proxy.port}",
                "--port", str(flower_runtime._free_port()),
                "--node-config", f"partition-id={index} num-partitions={nodes}",
            )  # fmt: skip
        run = start("flwr", "run", str(app), "fedlsg", "--stream")
        run.wait(timeout=4 * PATIENCE)
        status = _status(env)
    return Deployed(status=status, proxies=proxies, log=log_file.read_text())


def _wait(ready: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the SuperLink did not start")
        time.sleep(0.05)


def _status(env: Mapping[str, str]) -> str:
    """The run's status in Flower's words; ``flwr run`` itself exits 0 for a failed one, too."""
    listed = subprocess.run(
        ["flwr", "list", "fedlsg", "--format", "json"], env=dict(env), capture_output=True, check=True, cwd=os.sep
    )
    (run,) = json.loads(listed.stdout)["runs"]
    return str(run["status"])
