"""The cells of a comparison are run: finished ones skipped, interrupted resumed, failures noted.

The folder of a comparison:

    grid.toml                          the grid
    cells/NAME/                        the run directory of each cell
    logs/NAME.log                      what each cell printed
    cells.json                         how cells ended
    results.csv                        one row a cell
    table.csv, table.md, report.html   the comparison

Each cell runs in a process of its own, several at a time. Cells on Ray share one Ray, and each gets
its share of the places for workers.
"""

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from fedlsg import bounded
from fedlsg.simulations.compare.grid.cell_worker import Job, Outcome, Worker, environment
from fedlsg.simulations.compare.grid.cells import Cell
from fedlsg.simulations.engines.cluster import Cluster, fitting, processors, starting
from fedlsg.simulations.planning.earlier_runs.continuity import HARMLESS
from fedlsg.simulations.planning.trust import changed_since, other_code
from fedlsg.simulations.settings.settings import RUN, as_config, code_in, parse
from fedlsg.simulations.storage.atomic_files import write_atomically
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.user_code.source_digest import source_of

CELLS = "cells"
"""The folder of run directories in that of a comparison."""
LOOK_SECONDS = 0.5
"""Seconds between two looks at the progress of running cells."""
BUDGET_OVERRUN = 0.25
"""A running cell is interrupted when the budget is exceeded by this share of it."""
NAMED = 6
"""The most cells that a refusal names."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a cell ended: its settings, its status, and the reason of a failure."""

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
        """How cells ended, by name. Raises ValueError for a damaged file."""
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
        """Record how a cell ended."""
        entries = self.record()
        entries[cell.name] = Ended(
            given=dict(cell.given), status=outcome.status, reason=outcome.reason
        )
        text = json.dumps({name: vars(entry) for name, entry in entries.items()}, indent=1)
        write_atomically(self.path / "cells.json", (text + "\n").encode())

    def status(self, cell: Cell, record: Mapping[str, Ended]) -> Outcome:
        """The state of a cell: done, failed, interrupted or not run.

        It is "done" if the run has its summary and did not diverge. Only failures are taken from
        the record.
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
        """The cells to run, to resume or to try again."""
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
            names = now.keys() | before.keys()
        else:
            # The record is gone. The run has all settings, also those that were not given: only
            # those that are given now can be compared.
            config = as_config(run.read_config())
            before = {name.replace("-", "_"): value for name, value in config.items()}
            names = set(now)
        changed = sorted(name for name in names if now.get(name) != before.get(name))
        if changed:
            words = ", ".join(
                f"{name} = {before.get(name, 'unset')} (now {now.get(name, 'unset')})"
                for name in changed
            )
            raise ValueError(
                f"{folder.path} holds cells with other settings: {cell.name} was run with {words}; "
                "give the same settings, or another --out"
            )


def check_same_code(folder: Folder, cells: Sequence[Cell]) -> None:
    """Raise ValueError, naming the files, if code of a user's own changed since cells were started.

    A mean over runs of both versions would be of neither.
    """
    read = cache(source_of)
    settings, files, changed = set[str](), set[str](), []
    for cell in cells:
        run = folder.run(cell)
        if not run.config.exists():
            continue
        now = {setting: [*map(read, own)] for setting, own in code_in(cell.given).items()}
        changed_settings, changed_files = changed_since(run.path, now)
        if changed_settings:
            changed.append(cell.name)
            settings.update(changed_settings)
            files.update(changed_files)
    if not changed:
        return
    names = changed[:NAMED]
    if len(changed) > NAMED:
        names.append(f"{len(changed) - NAMED} more")
    refusal = other_code(
        sorted(settings),
        sorted(files),
        f"give another --out, or remove the folders of these cells in {folder.path / CELLS}: "
        f"{', '.join(names)}",
    )
    raise ValueError(f"{folder.path} holds cells that other code made: {refusal}")


def _binding(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide what a run computes, typed."""
    return {name: value for name, value in parse(given).items() if name not in HARMLESS}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a comparison may use.

    jobs: cells that run at a time; None: as many as fit.
    budget_minutes: how long cells are started; None: without limit.
    yes: do not ask before a long comparison.
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
    """Run every cell that is not done, in the given order.

    jobs: cells that run at a time.
    budget: seconds after which no cell is started. A cell that runs for BUDGET_OVERRUN of it longer
        is interrupted, to be resumed.
    started, ended: are called with each cell, at the end also with its outcome.
    running: is called with the running cells, about twice a second.
    new_worker: makes a process.
    kept: processes that wait between calls; the caller closes them. None: a process without a cell
        to run is ended at once, because it may hold Ray workers that others wait for.
    Raises ValueError if a cell would be made from other rows, or another recipe, than those that
    the folder has.
    Guarantee: however this ends, no process is left but those in ``kept``, and every started cell
    can be resumed.
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
    """Processes that run cells.

    busy: processes that run a cell, each with its cell, by the channel of its answers.
    idle: processes that wait for a cell.
    The arguments are those of ``run_cells``.
    """

    def __init__(
        self,
        folder: Folder,
        new_worker: Callable[[], Any],
        ended: Callable[[Cell, Outcome], None],
        kept: list[Any] | None,
    ) -> None:
        self.folder = folder
        self.new_worker = new_worker
        self.ended = ended
        self.kept = kept
        self.idle: list[Any] = [] if kept is None else kept
        self.busy: dict[Any, tuple[Any, Cell]] = {}

    def start(self, cell: Cell) -> None:
        """Give a cell to an idle process, or to a new one."""
        worker = self.idle.pop() if self.idle else self.new_worker()
        self.busy[worker.channel] = (worker, cell)
        # noted before the start: it is true if this process is killed
        self.folder.note(cell, Outcome(status="interrupted"))
        path, log = self.folder.run(cell).path, self.folder.log(cell)
        worker.submit(Job(path=str(path), log=str(log), given=dict(cell.given)))

    def take(self, channel: Any, *, pending: int) -> None:
        """Wait for the outcome of a busy process, and note it. ``pending``: cells that wait.

        Raises ValueError if no other cell may run.
        """
        worker, cell = self.busy.pop(channel)
        outcome = worker.outcome()
        if outcome.refused:
            worker.close()
            raise ValueError(outcome.reason)
        self.folder.note(cell, outcome)
        self.ended(cell, outcome)
        is_needed = self.kept is not None or len(self.idle) < pending
        if is_needed and outcome.status == "done" and worker.alive:
            self.idle.append(worker)
        else:
            worker.close()  # after any trouble the next cell gets a fresh process

    def interrupt(self) -> None:
        """Ask all running cells to stop where they can be resumed."""
        for worker, _ in self.busy.values():
            worker.interrupt()

    def close(self) -> None:
        """End all processes but the kept ones that are idle."""
        self.interrupt()
        idle = self.idle if self.kept is None else []
        for worker in [*idle, *(worker for worker, _ in self.busy.values())]:
            worker.close()


Ray = Cluster | None
"""None if no cell uses Ray."""


@contextmanager
def one_ray(cells: Sequence[Cell]) -> Iterator[Ray]:
    """Inside, one Ray for all cells, or the cluster that RAY_ADDRESS names.

    No workers are started ahead: they would take places of the cells. At the end, and on every
    exception, nothing of Ray is left. Raises RuntimeError if no cluster listens at RAY_ADDRESS.
    """
    if not any(_uses_ray(cell) for cell in cells):
        yield None
        return
    with starting(ahead=0) as ray:
        yield ray


@contextmanager
def share_out(
    cells: Sequence[Cell], jobs: int | None, ray: Ray
) -> Iterator[tuple[Sequence[Cell], int]]:
    """Gives the cells, each with its number of workers, and how many of them run at a time.

    A place is what one worker needs in Ray. As many cells run at a time as have their places.
    Processes that are started inside join Ray.

    jobs: the most cells at a time; None: the processors of this machine, or 1 without Ray.
    """
    if ray is None:
        yield cells, jobs or 1
        return
    address = ray.address()
    on_ray = [cell for cell in cells if _uses_ray(cell)]
    places = {cell.name: _places(cell) for cell in on_ray}
    room = min(places[cell.name] // (_setting(cell, "workers") or 1) for cell in on_ray)
    jobs = max(1, min(jobs or processors(), room, len(cells)))

    def with_workers(cell: Cell) -> Cell:
        if cell.name not in places:
            return cell
        return replace(cell, given={"workers": max(1, places[cell.name] // jobs), **cell.given})

    with environment("RAY_ADDRESS", address):
        yield [with_workers(cell) for cell in cells], jobs


def _uses_ray(cell: Cell) -> bool:
    """Whether a cell runs on Ray."""
    return bool(_setting(cell, "engine") == "ray")


def _places(cell: Cell) -> int:
    """How many workers of a cell fit into Ray at once.

    At least 1: if none fits, the cell itself reports it.
    """
    cpus, gpus = _setting(cell, "client_cpus"), _setting(cell, "client_gpus")
    with_gpu = 0 if _setting(cell, "device") == "cpu" else fitting(cpus, gpus)
    return with_gpu or fitting(cpus, 0) or 1


def _setting(cell: Cell, name: str) -> Any:
    """The value of a setting in a cell: given, or by default."""
    return cell.given.get(name, RUN[name].default)
