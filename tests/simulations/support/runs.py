"""Small runs on the local engine: digits, a given noise multiplier (nothing to calibrate), a few
rounds.
"""

import contextlib
import csv
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from torch import Tensor

from fedlsg.privacy import SERVER, Entry
from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.client.virtual import ClientFunction
from fedlsg.simulations.engines import local
from fedlsg.simulations.planning.base.disclosure import is_covered
from fedlsg.simulations.planning.plan import Plan, make_plan
from fedlsg.simulations.report.page_of_run import run_page
from fedlsg.simulations.report.page_of_run.run_page import write_run_page
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage.lock import create
from fedlsg.simulations.storage.round_tables import Row
from fedlsg.simulations.storage.run_directory import RunDir

SMALL: dict[str, Any] = {
    "engine": "local",
    "clients": 2,
    "rounds": 2,
    "sample_rate": 0.05,
    "noise_multiplier": 2.0,
    "reproducible": True,
}


@dataclass(frozen=True)
class Run:
    """A run directory, and what can be read from it."""

    path: Path
    plan: Plan | None = None
    summary: dict[str, Any] | None = None

    @property
    def directory(self) -> RunDir:
        return RunDir(self.path)

    @property
    def rows(self) -> list[Row]:
        with self.directory.rounds.open(newline="") as file:
            return [Row.parse(row) for row in csv.DictReader(file)]

    @property
    def log(self) -> str:
        return self.directory.log.read_text()

    @cached_property
    def checkpoint(self) -> dict[str, Any]:
        return self.directory.load_checkpoint()

    @property
    def model(self) -> dict[str, Tensor]:
        return self.checkpoint["server"]["model"]

    @property
    def weights(self) -> Tensor:
        """Final weights, one flat vector."""
        return torch.cat([w.flatten() for w in self.model.values()])

    @property
    def model_file(self) -> bytes:
        """What a finished run leaves for plain torch."""
        return (self.path / "model.safetensors").read_bytes()

    @property
    def config(self) -> dict[str, Any]:
        return tomllib.loads(self.directory.config.read_text())

    def entries(self, client: int) -> tuple[Entry, ...]:
        return tuple(self.directory.charges.of(client).entries)

    @property
    def ledgers(self) -> dict[int, tuple[Entry, ...]]:
        """The entries of all clients, and of the server."""
        return {
            client: self.entries(client) for client in [*self.directory.charges.clients(), SERVER]
        }

    @property
    def payloads(self) -> dict[str, bytes]:
        """What was sent, with record_updates."""
        updates = self.path / "updates"
        return {
            str(path.relative_to(updates)): path.read_bytes()
            for path in sorted(updates.rglob("*.bin"))
        }


def plan_at(out: Path, **settings: Any) -> tuple[Plan, RunDir]:
    """A plan of the small settings with changes, and its new run directory, as ``fedlsg run`` makes
    them.
    """
    plan = make_plan(from_mapping(SMALL | settings))
    directory = create(str(out), plan.settings, private=not is_covered(plan))
    plan = replace(plan, settings=replace(plan.settings, run_dir=str(directory.path)))
    directory.write_config(plan.settings)
    return plan, directory


def run_local(out: Path, *, client: ClientFunction = app, **settings: Any) -> Run:
    """Run the small settings with changes; ``client`` stands in for the ClientApp."""
    plan, directory = plan_at(out, **settings)
    return Run(directory.path, plan, local.run(plan, directory, on_round=ignore, client=client))


def resume_local(out: Path, *, client: ClientFunction = app) -> Run:
    """Continue a run directory, as ``fedlsg resume`` does."""
    directory = RunDir.open(str(out))
    plan = make_plan(replace(directory.read_config(), run_dir=str(directory.path)))
    return Run(directory.path, plan, local.run(plan, directory, on_round=ignore, client=client))


def ignore(row: Row) -> None:
    """An on_round callback that shows nothing."""


def stopped_after(round: int, out: Path, *, client: ClientFunction = app, **settings: Any) -> Run:
    """A run that was interrupted after a round."""
    plan, directory = plan_at(out, **settings)

    def stop(row: Row) -> None:
        if row.round == round:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        local.run(plan, directory, on_round=stop, client=client)
    return Run(directory.path, plan)


@contextlib.contextmanager
def pages(*, written: bool) -> Iterator[None]:
    """Runs inside write report.html, or leave it out: it takes three times as long as a small run
    itself.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_page, "write_run_page", write_run_page if written else lambda run: None)
        yield


def reconfigure(run: Run, **changes: Any) -> None:
    """Edit the config.toml of a run, which has no manifest then: it would find the edit."""
    edit(run, **changes)
    without_manifest(run.path)


def edit(run: Run, **changes: Any) -> None:
    """Edit the config.toml of a run."""
    run.directory.config.write_text(tomli_w.dumps(run.config | changes))


def without_manifest(folder: Path) -> None:
    """As a run of an older version."""
    for path in (*folder.glob("manifest.json*"), *folder.glob("clients/manifest.json*")):
        path.unlink()
