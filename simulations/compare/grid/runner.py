"""Run the cells of a grid: skip finished cells, resume interrupted ones, write down why others
failed.

The folder of a comparison:

    grid.toml      the grid          results.csv  one row a cell       cells/NAME/     run
                   directories
    cells.json     how cells ended   table.csv, table.md, report.html  logs/NAME.log   what each
                   cell printed

Cells on Ray share one Ray, and each has its share of the places.
"""

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from fedlsg import bounded
from fedlsg.simulations.compare.grid.cell_worker import Job, Outcome, Worker, environment
from fedlsg.simulations.compare.grid.cells import Cell
from fedlsg.simulations.engines.cluster import Cluster, fitting, processors, starting
from fedlsg.simulations.planning.earlier_runs.continuity import HARMLESS
from fedlsg.simulations.settings.settings import RUN, as_config, parse
from fedlsg.simulations.storage.atomic_files import write_atomically
from fedlsg.simulations.storage.run_directory import RunDir

CELLS = "cells"
"""The folder of run directories in that of a comparison."""
LOOK_SECONDS = 0.5  # between two looks at the progress of running cells
# a cell may run this share of the budget longer than the budget before it is interrupted
BUDGET_OVERRUN = 0.25


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a cell was left: the given settings, its status, the reason of a failure."""

    given: Mapping[str, Any]
    status: str
    reason: str = ""


class Folder:
    """The folder of a comparison, and its record of how cells ended."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, cell: Cell) -> RunDir:
        """A cell's run directory."""
        return RunDir(self.path / CELLS / cell.name)

    def log(self, cell: Cell) -> Path:
        """What a cell printed."""
        return self.path / "logs" / f"{cell.name}.log"

    def record(self) -> dict[str, Ended]:
        """By cell name. Raises ValueError for a damaged file."""
        file = self.path / "cells.json"
        try:
            return {name: Ended(**entry) for name, entry in bounded.read_json(file).items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError):
            raise ValueError(
                f"{file} is damaged: restore it, or remove it (no run is lost)"
            ) from None

    def note(self, cell: Cell, outcome: Outcome) -> None:
        """Write down how a cell ended."""
        entries = self.record()
        entries[cell.name] = Ended(
            given=dict(cell.given), status=outcome.status, reason=outcome.reason
        )
        text = json.dumps({name: vars(entry) for name, entry in entries.items()}, indent=1)
        write_atomically(self.path / "cells.json", (text + "\n").encode())

    def status(self, cell: Cell, record: Mapping[str, Ended]) -> Outcome:
        """State of a cell: "done" where it has its summary and did not diverge, else what the
        record says.
        """
        if self.run(cell).summary.exists():
            with suppress(ValueError):  # the readers of its numbers report the damage
                summary = self.run(cell).read_summary()
                if summary.get("diverged"):
                    return Outcome(status="failed", reason=str(summary["stopped"]))
            return Outcome(status="done")
        ended = record.get(cell.name)
        if ended is not None and ended.status == "failed":
            return Outcome(status="failed", reason=ended.reason)
        return Outcome(status="interrupted" if self.run(cell).config.exists() else "not run")

    def unfinished(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells that are to be run, resumed or tried again."""
        return [cell for cell in cells if self.status(cell, {}).status != "done"]


def check_same_settings(folder: Folder, cells: Sequence[Cell]) -> None:
    """Raise ValueError, naming the settings, if a cell was started with other settings than now."""
    record = folder.record()
    for cell in cells:
        run = folder.run(cell)
        if not run.config.exists():
            continue
        now = _binding(cell.given)
        if cell.name in record:
            before = _binding(record[cell.name].given)
            changed = sorted(k for k in now.keys() | before.keys() if now.get(k) != before.get(k))
        # the record is gone: compare with the resolved settings, which cannot tell what was left
        # open
        else:
            before = {
                name.replace("-", "_"): value
                for name, value in as_config(run.read_config()).items()
            }
            changed = sorted(k for k in now if now[k] != before.get(k))
        if changed:
            words = ", ".join(
                f"{k} = {before.get(k, 'unset')} (now {now.get(k, 'unset')})" for k in changed
            )
            raise ValueError(
                f"{folder.path} holds cells with other settings: {cell.name} was run with {words}; "
                "give the same settings, or another --out"
            )


def _binding(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide what a run computes, typed."""
    return {name: value for name, value in parse(given).items() if name not in HARMLESS}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many cells run at a time, and for how long cells are started. ``yes``: nobody is asked.

    Raises ValueError, naming the option, for limits out of range.
    """

    jobs: int | None = None
    budget_minutes: float | None = None
    yes: bool = False

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"expected --jobs {self.jobs} >= 1")
        if self.budget_minutes is not None and not self.budget_minutes > 0:
            raise ValueError(f"expected --budget-minutes {self.budget_minutes} > 0")

    @property
    def seconds(self) -> float:
        """The budget; infinite without one."""
        return math.inf if self.budget_minutes is None else 60 * self.budget_minutes


def run_cells(
    cells: Sequence[Cell],
    folder: Folder,
    *,
    jobs: int = 1,
    budget: float = math.inf,
    started: Callable[[Cell], None],
    running: Callable[[Sequence[Cell]], None],
    ended: Callable[[Cell, Outcome], None],
    new_worker: Callable[[], Any] = Worker,
    kept: list[Any] | None = None,
) -> None:
    """Run every cell that is not done, ``jobs`` at a time, in the given order.

    A process that has no cell left to run is ended at once: it may hold Ray workers that others
    wait for. Given ``kept``, the processes that wait are in it, for the next call; the caller
    closes them. Once ``budget`` seconds have passed no cell is started; one that is still running
    after a quarter more is interrupted, to be resumed. ``started``, ``running`` (about twice a
    second) and ``ended(cell, outcome)`` report the progress. However this ends, no process is left
    and every started cell can be resumed.
    """
    pending = deque(folder.unfinished(cells))
    began = time.monotonic()
    with closing(_Workers(folder, new_worker, ended, kept)) as workers:
        while workers.busy or pending:
            spent = time.monotonic() - began
            if spent >= budget and not workers.busy:
                return
            while pending and spent < budget and len(workers.busy) < jobs:
                started(pending[0])
                workers.start(pending.popleft())
            for channel in wait(list(workers.busy), timeout=LOOK_SECONDS):
                workers.take(channel, pending=len(pending))
            running([cell for _, cell in workers.busy.values()])
            if spent >= budget * (1 + BUDGET_OVERRUN):
                workers.interrupt()
                for channel in list(workers.busy):
                    workers.take(channel, pending=0)


class _Workers:
    """Processes that run cells: busy ones by their channel, with their cell, and idle ones."""

    def __init__(
        self,
        folder: Folder,
        new_worker: Callable[[], Any],
        ended: Callable[[Cell, Outcome], None],
        kept: list[Any] | None,
    ) -> None:
        self.folder, self.new_worker, self.ended, self.kept = folder, new_worker, ended, kept
        self.idle: list[Any] = [] if kept is None else kept
        self.busy: dict[Any, tuple[Any, Cell]] = {}

    def start(self, cell: Cell) -> None:
        worker = self.idle.pop() if self.idle else self.new_worker()
        self.busy[worker.channel] = (worker, cell)
        # what is true should we be killed from here on
        self.folder.note(cell, Outcome(status="interrupted"))
        path, log = self.folder.run(cell).path, self.folder.log(cell)
        worker.submit(Job(path=str(path), log=str(log), given=dict(cell.given)))

    def take(self, channel: Any, *, pending: int) -> None:
        """Wait for the outcome of a busy worker, and write it down."""
        worker, cell = self.busy.pop(channel)
        outcome = worker.outcome()
        self.folder.note(cell, outcome)
        self.ended(cell, outcome)
        if (
            outcome.status == "done"
            and worker.alive
            and (self.kept is not None or len(self.idle) < pending)
        ):
            self.idle.append(worker)
        else:
            worker.close()  # a fresh process after any trouble

    def interrupt(self) -> None:
        for worker, _ in self.busy.values():
            worker.interrupt()

    def close(self) -> None:
        self.interrupt()
        idle = self.idle if self.kept is None else []
        for worker in [*idle, *(worker for worker, _ in self.busy.values())]:
            worker.close()


Ray = Cluster | None
"""None where no cell uses Ray."""


@contextmanager
def one_ray(cells: Sequence[Cell]) -> Iterator[Ray]:
    """Ray for these cells, about to start, or the cluster that RAY_ADDRESS names; without workers,
    which take places.

    On exit and on every exception nothing of it is left. Raises RuntimeError if no cluster listens
    there.
    """
    if not any(map(_on_ray, cells)):
        yield None
        return
    with starting(ahead=0) as ray:
        yield ray


@contextmanager
def share_out(
    cells: Sequence[Cell], jobs: int | None, ray: Ray
) -> Iterator[tuple[Sequence[Cell], int]]:
    """The cells, each with its number of workers, and how many of them run at a time: at most
    ``jobs``.

    A place is what one worker needs. All cells that run at a time have places. Without ``jobs``
    they are as many as have places, at most the processors of this machine, where the drivers run;
    without Ray one. Processes that are started inside join Ray.
    """
    if ray is None:
        yield cells, jobs or 1
        return
    address = ray.address()
    places = {cell.name: _places(cell) for cell in cells if _on_ray(cell)}
    room = min(
        places[cell.name] // (_said(cell, "workers") or 1) for cell in cells if cell.name in places
    )
    jobs = max(1, min(jobs or processors(), room, len(cells)))
    shared = [
        replace(cell, given={"workers": max(1, places[cell.name] // jobs), **cell.given})
        if cell.name in places
        else cell
        for cell in cells
    ]
    with environment("RAY_ADDRESS", address):
        yield shared, jobs


def _on_ray(cell: Cell) -> bool:
    return bool(_said(cell, "engine") == "ray")


def _places(cell: Cell) -> int:
    """How many workers of a cell fit into Ray at once; at least 1, because the cell itself reports
    that none fits.
    """
    cpus, gpus = _said(cell, "client_cpus"), _said(cell, "client_gpus")
    with_gpu = 0 if _said(cell, "device") == "cpu" else fitting(cpus, gpus)
    return with_gpu or fitting(cpus, 0) or 1


def _said(cell: Cell, setting: str) -> Any:
    return cell.given.get(setting, RUN[setting].default)
