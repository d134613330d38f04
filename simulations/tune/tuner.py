"""Runs the trials that a search asks for, and reports as it goes: a line for each trial, a table, the time left."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from rich.console import Console

from simulations.compare.cells.grid import Cell
from simulations.compare.cells.places import Ray, share_out
from simulations.compare.cells.progress import GridDisplay
from simulations.compare.cells.runner import check_same_settings, run_cells
from simulations.report.terminal import print_note, print_table
from simulations.report.words import duration
from simulations.tune import output
from simulations.tune.privacy import epsilon_of, read_trials
from simulations.tune.search import Point, fewest_points, start_of
from simulations.tune.trials import Trials, score


class UnfinishedError(Exception):
    """The time is over, or a trial was interrupted, before the search ended."""


@dataclass(kw_only=True)
class Tuner:
    """``measure`` is what a search asks. ``state`` describes the search so far, for the table.

    delta: where choosing costs privacy, the delta at which that is printed; else None.
    """

    trials: Trials
    console: Console
    state: Callable[[], output.Search]
    jobs: int | None
    ray: Ray
    budget_seconds: float
    delta: float | None
    new_worker: Callable[[], Any]
    points: list[Point] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    announced: bool = False

    def measure(self, points: Sequence[Point]) -> Mapping[Point, float]:
        """Scores of new points: run what is not done, print the table. Raises UnfinishedError out of time."""
        check_same_settings(self.trials.folder, self.trials.cells(points))
        self.points += points
        if not self.announced:
            self._first()
        new = bool(self.trials.folder.unfinished(self.trials.cells(points)))
        self._run(self.trials.cells(points))
        lines = self.trials.lines(points)
        if any(run.status in ("not run", "interrupted") for line in lines.values() for run in line.runs):
            raise UnfinishedError
        found = self.state()
        output.write_tables(self.trials.folder.path, found)
        if new:
            print_table(output.table(found, points), self.console)
        return {point: score(line) for point, line in lines.items()}

    def _first(self) -> None:
        """Run one trial alone, and say how long all will take. Raises RuntimeError if it fails with an error."""
        start = start_of(self.trials.axes)
        cell = self.trials.cells([start])[0]
        at_a_time = self._run([cell])
        result = self.trials.results([start])[0]
        if result.status == "failed" and not result.summary:
            raise RuntimeError(f"the first trial failed: {result.reason} (its log: {self.trials.folder.log(cell)})")
        if not result.summary:
            raise UnfinishedError
        self.announced = True
        fewest = fewest_points(self.trials.axes) * self.trials.seeds
        seconds = float(result.summary["wall_seconds"])
        left = fewest - sum(run.done for run in self.trials.results(self.points))
        print_note(
            f"one trial takes {duration(seconds)}: at least {fewest} trials, "
            f"about {duration(left * seconds / at_a_time)} from here; a grid grows by {self.trials.seeds} at a time",
            self.console,
        )
        if self.delta is not None:
            first = read_trials(self.trials.folder.path / "cells")[:1]
            least = epsilon_of(first * fewest, delta=self.delta)
            print_note(
                f"the epsilon of choosing among {fewest} trials like this one: at least {least:.3f} at delta "
                f"{self.delta:g}; more if they need more trials, or if a seed gives rows to clients of other sizes",
                self.console,
            )

    def _run(self, cells: Sequence[Cell]) -> int:
        """Run the cells that are not done; returns how many run at a time."""
        folder = self.trials.folder
        left, done = folder.unfinished(cells), len(self.points) * self.trials.seeds
        if not left:
            return self.jobs or 1
        display = GridDisplay(self.console, folder, done, done - len(left), what="trials asked for")
        with display.progress, share_out(left, self.jobs, self.ray) as (shared, at_a_time):
            run_cells(
                shared, folder, jobs=at_a_time,
                budget_seconds=None if self.budget_seconds == inf else max(
                    self.budget_seconds - (time.monotonic() - self.began), 1e-9
                ),
                started=display.started, running=display.running, ended=display.ended, new_worker=self.new_worker,
            )  # fmt: skip
        return at_a_time
