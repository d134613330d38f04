"""Engine ``flower``: Flower on Ray, through ``flwr run``.

The app is a directory of its own with one generated pyproject.toml, whose run config is the resolved settings. The
installed packages run; nothing is reinstalled.
"""

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from simulations.engines.runtime.superlink import run_app
from simulations.plan.plan import Plan
from simulations.rundir.rundir import RunDir
from simulations.rundir.tables import Row
from simulations.settings.settings import as_config

SERVER_APP, CLIENT_APP = "simulations.server.app:app", "simulations.engines.runtime.deferred_client:app"


class FlowerRunError(RuntimeError):
    """The run ended without success; the text holds Flower's status and the last lines of its log."""


def run(
    plan: Plan,
    directory: RunDir,
    *,
    on_round: Callable[[Row], None],
    server_app: str = SERVER_APP,
    client_app: str = CLIENT_APP,
) -> dict[str, Any]:
    """Run a plan on Flower and Ray; returns the summary that the ServerApp wrote.

    Tests of bad clients and benchmarks give other apps, as ``module:attribute``. Raises FlowerRunError if the run did
    not complete.
    """
    plan = replace(plan, settings=replace(plan.settings, run_dir=str(directory.path)))
    s = plan.settings
    follow = Follower(directory, on_round)
    try:
        outcome = run_app(
            lambda home: write_app(home / "fedlsg-run", plan, server_app, client_app),
            num_supernodes=s.clients_per_round if s.grouped else len(plan.terms),
            log_file=directory.log,
            cpus_per_client=s.client_cpus,
            gpus_per_client=s.client_gpus if s.device == "cuda" else 0,
            poll=follow.poll,
        )
    except RuntimeError as error:
        raise FlowerRunError(f"Flower could not run the app; its last words are in {directory.log}") from error
    follow.poll()
    if not outcome.completed or not directory.summary.exists():
        ended = f"the Flower run ended as {outcome.status}:{outcome.sub_status} {outcome.details}".strip()
        raise FlowerRunError(f"{ended}; see {directory.log}")
    return directory.read_summary()


def write_app(folder: Path, plan: Plan, server_app: str = SERVER_APP, client_app: str = CLIENT_APP) -> Path:
    """Write a Flower app directory with a pyproject.toml and nothing else."""
    folder.mkdir(parents=True)
    app = {
        "publisher": "fedlsg",
        "components": {"serverapp": server_app, "clientapp": client_app},
        "config": as_config(plan.settings),
    }
    project = {
        "name": "fedlsg-run",
        "version": "1.0.0",
        "description": f"{plan.settings.workload} with {plan.settings.method}",
        "license": "Apache-2.0",
        "dependencies": [],
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}}))
    return folder


class Follower:
    """Reads new rows of rounds.csv while another process writes them."""

    def __init__(self, directory: RunDir, on_round: Callable[[Row], None]) -> None:
        self.directory, self.on_round = directory, on_round
        self.seen = directory.last_round()

    def poll(self) -> None:
        """Report rows that have appeared since the last call; a half-written last line waits."""
        if not self.directory.rounds.exists():
            return
        text = self.directory.rounds.read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()
        for row in csv.DictReader(lines):
            if int(row["round"]) > self.seen:
                self.seen = int(row["round"])
                self.on_round(Row.parse(row))
