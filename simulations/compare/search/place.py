"""Where a search runs: its folder, locked, one Ray for all trials, and the processes that run them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedlsg.owner_only import make_parents
from simulations.compare.cells.grid import Cell
from simulations.compare.cells.places import Ray, one_ray
from simulations.compare.cells.worker import Job, Outcome, Worker
from simulations.engines.signals import sigterm_raises
from simulations.rundir.files.atomic import writing_to
from simulations.rundir.lock import exclusive
from simulations.rundir.rundir import RunDir


class Place(NamedTuple):
    """What the trials of a search run with. ``budget_seconds``: for all of them; None without a limit."""

    ray: Ray
    new_worker: Callable[[], Any]
    budget_seconds: float | None


@contextmanager
def searching(path: Path, cells: Sequence[Cell], *, jobs: int | None, budget_minutes: float | None) -> Iterator[Place]:
    """Inside, the folder of a search is there and locked, Ray runs if one of the ``cells`` uses it, and SIGTERM raises.

    A new folder of trials on held-out rows is its owner's alone: no epsilon covers their accuracies.

    Raises ValueError, naming the option, for ``jobs`` or a budget out of range, and for a folder that cannot be written
    to or that another process searches in.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"expected --jobs {jobs} >= 1")
    if budget_minutes is not None and not budget_minutes > 0:
        raise ValueError(f"expected --budget-minutes {budget_minutes} > 0")
    with ExitStack() as stack:
        ray = stack.enter_context(one_ray(cells))
        with writing_to(path):
            make_parents(path, private=any(_is_held_out(cell.given) for cell in cells))
        stack.enter_context(exclusive(RunDir(path)))
        stack.enter_context(sigterm_raises())
        new_worker = Worker if ray is not None else stack.enter_context(kept_process())
        yield Place(ray, new_worker, None if budget_minutes is None else 60 * budget_minutes)


def _is_held_out(given: Mapping[str, Any]) -> bool:
    return given.get("holdout") is not None and given.get("public_rows") is None


@contextmanager
def kept_process() -> Iterator[Callable[[], Any]]:
    """For ``new_worker`` of ``run_cells``: processes that stay for the next batch of trials; they end here.

    A start takes seconds, and noise that a process has calibrated is not calibrated again. Not for Ray: an idle process
    would keep Ray workers that others wait for.
    """
    idle: list[Worker] = []
    try:
        yield lambda: _Lent(idle)
    finally:
        for worker in idle:
            worker.close()


class _Lent:
    """A worker that goes back to the idle ones when it is closed, unless it is at work or in any trouble."""

    def __init__(self, idle: list[Worker]) -> None:
        self._idle = idle
        self._worker = idle.pop() if idle else Worker()
        self._fit = True
        self.channel = self._worker.channel

    @property
    def alive(self) -> bool:
        return self._worker.alive

    def submit(self, job: Job) -> None:
        self._fit = False
        self._worker.submit(job)

    def outcome(self) -> Outcome:
        found = self._worker.outcome()
        self._fit = found.status == "done"
        return found

    def interrupt(self) -> None:
        self._worker.interrupt()

    def close(self) -> None:
        if self._fit and self._worker.alive:
            self._idle.append(self._worker)
        else:
            self._worker.close()
