"""Trials: the runs of a search, as cells of a comparison; what is done is not run again."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any

from simulations.compare.cells.grid import Cell, word
from simulations.compare.cells.runner import Folder
from simulations.compare.cells.worker import Job, Outcome, Worker
from simulations.compare.collect import cell_result
from simulations.compare.lines import Line, lines
from simulations.rundir.results import Result
from simulations.tune.axes import Axis
from simulations.tune.search import Point

FIRST_SEED = 100
"""Trials have seeds of their own: those of a comparison, from 0, then see settings that were not chosen on them."""


@dataclass(frozen=True, kw_only=True)
class Trials:
    """The trials of all points of some axes, in a folder. ``given``: the settings that all of them share."""

    folder: Folder
    axes: Sequence[Axis]
    given: Mapping[str, Any]
    seeds: int

    def settings(self, point: Point) -> dict[str, Any]:
        """What is tuned, at this point."""
        return {axis.name: axis.values[at] for axis, at in zip(self.axes, point, strict=True)}

    def label(self, point: Point) -> str:
        """A name of the point: "learning_rate0.5-rank8"."""
        return "-".join(word(name, value) for name, value in self.settings(point).items())

    def cells(self, points: Sequence[Point]) -> list[Cell]:
        """One cell for each point and seed, seeds outermost."""
        return [self._cell(point, FIRST_SEED + seed) for seed in range(self.seeds) for point in points]

    def results(self, points: Sequence[Point]) -> list[Result]:
        """The state of each trial of these points."""
        record = self.folder.record()
        return [cell_result(self.folder, cell, record) for cell in self.cells(points)]

    def lines(self, points: Sequence[Point]) -> dict[Point, Line]:
        """Means over seeds, by point."""
        by_label = {line.label: line for line in lines(self.results(points))}
        return {point: by_label[self.label(point)] for point in points}

    def _cell(self, point: Point, seed: int) -> Cell:
        label = self.label(point)
        given = {**self.given, **self.settings(point), "seed": seed}
        return Cell(
            name=f"{label}-seed{seed}", label=label, method=given["method"], seed=seed, epsilon=None, rank=None,
            sparsity=None, given=given,
        )  # fmt: skip


def score(line: Line) -> float:
    """Mean accuracy, or the mean loss with its sign changed; minus infinity unless every seed is done."""
    if line.mean is None or len(line.done) < len(line.runs):
        return -inf
    return -line.mean if line.by_loss else line.mean


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
