"""What a user sees while a grid runs: a bar over all cells and a line for each running one, or
plain lines.

Only a terminal is asked before what takes long, because a log or a pipe cannot answer.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.console import Console
from rich.progress import TaskID

from fedlsg.simulations.compare.grid.cell_worker import Outcome
from fedlsg.simulations.compare.grid.cells import Cell
from fedlsg.simulations.compare.grid.runner import Folder, Limits
from fedlsg.simulations.report.terminals.progress import (
    PAUSE_SECONDS,
    announce_estimate,
    clock,
    is_live,
    live_bar,
)
from fedlsg.simulations.report.terminals.terminal import print_whole
from fedlsg.simulations.report.words import duration, percent
from fedlsg.simulations.storage.results import Result, read_run

HOUR = 3600.0
"""Seconds above which a terminal is asked."""


WORDS = {"done": "done", "failed": "FAILED", "interrupted": "interrupted"}
MIN_SHARE_DONE, MIN_ROUNDS_DONE = 0.1, 3
"""Share of a cell, or rounds of it, that must be done before the time left is estimated."""
START_SECONDS = 2.0
"""Seconds that a cell takes in addition to its rounds, until that is measured: its plan, its noise,
its files.
"""


@dataclass
class Running:
    """A running cell: its line, the rounds that an earlier process did, the share that is done."""

    task: TaskID
    before: int = 0
    share: float = 0.0


class GridDisplay:
    """Counts cells; ``started``, ``running`` and ``ended`` are the callbacks of ``run_cells``.

    known: seconds of cells that were done before, for the estimate. A terminal is asked once
    whether to go on, with the first estimate, while the first cells run: not if ``limits`` say yes,
    nor with a budget of an hour at most.
    """

    def __init__(
        self,
        console: Console,
        folder: Folder,
        cells: int,
        done: int,
        what: str = "all runs",
        *,
        known: Sequence[float] = (),
        limits: Limits,
    ) -> None:
        self.console, self.folder, self.cells = console, folder, cells
        self.most = 0.0 if limits.yes else limits.seconds
        self.finished, self.began = done, time.monotonic()
        self.estimated = False
        # seconds of all rounds of the cells seen so far
        self.whole: dict[int | str, float] = dict(enumerate(known))
        self.overheads: list[float] = []
        self.at_a_time = 1
        self.progress = live_bar(console, transient=True)
        self.overall = self.progress.add_task(
            what, total=cells, completed=done, of=f"{done}/{cells}", left="left --:--"
        )
        self.tasks: dict[str, Running] = {}

    def started(self, cell: Cell) -> None:
        """A cell begins; its rounds are known once it has planned."""
        task = self.progress.add_task(cell.name, total=1, completed=0, of="", left="starting")
        result = self._look(cell)
        self.tasks[cell.name] = Running(task, before=0 if result is None else len(result.rows))
        self.at_a_time = max(self.at_a_time, len(self.tasks))

    def running(self, cells: Sequence[Cell]) -> None:
        """Look at the running cells' rounds; in a log only until the time left is estimated."""
        if not is_live(self.console) and self.estimated:
            return
        for cell in cells:
            result = self._look(cell)
            if result is not None and result.rows:
                one = self.tasks[cell.name]
                rounds = int(result.settings["rounds"])
                done = len(result.rows)
                one.share = done / rounds
                self._time(cell, result)
                left = reached(result)
                self.progress.update(
                    one.task, total=rounds, completed=done, of=f"{done}/{rounds}", left=left
                )
        self._overall()

    def left(self) -> float | None:
        """Seconds left, from the rounds that were seen so far; None while that is too little."""
        if not self.whole:
            return None
        each = fmean(self.whole.values()) + fmean(self.overheads or [START_SECONDS])
        return (
            each
            * (self.cells - self.finished - sum(one.share for one in self.tasks.values()))
            / self.at_a_time
        )

    def _time(self, cell: Cell, result: Result) -> None:
        """Note how long all rounds of a cell take, if enough of them are done."""
        rounds, done = int(result.settings["rounds"]), len(result.rows)
        if done >= min(MIN_ROUNDS_DONE, rounds) or done >= MIN_SHARE_DONE * rounds:
            later = result.rows[1:] or result.rows  # the first round of a process takes longer
            if later[0].shows_participation:
                self.whole[cell.name] = rounds * fmean(row.seconds for row in later)

    def _overall(self, *, estimate: bool = True) -> None:
        # the time of a failed cell does not predict that of others
        seconds = self.left() if estimate else None
        done = self.finished + sum(one.share for one in self.tasks.values())
        left = "left --:--" if seconds is None else f"left {clock(seconds)}"
        self.progress.update(
            self.overall, completed=done, of=f"{self.finished}/{self.cells}", left=left
        )
        if (
            seconds is not None
            and not self.estimated
            and time.monotonic() - self.began >= PAUSE_SECONDS
        ):
            self.estimated = True
            if seconds and not is_live(self.console):
                announce_estimate(self.console, seconds)
            self._ask(seconds)

    def _ask(self, seconds: float) -> None:
        """Go on, or raise KeyboardInterrupt if the answer is no; the runs that have begun go on."""
        answers = self.console.is_terminal and sys.stdin.isatty()
        if not answers or min(seconds, self.most) <= HOUR:
            return
        self.progress.stop()
        answer = self.console.input(f"This takes about {duration(seconds)}. Go on? \\[y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            raise KeyboardInterrupt
        self.progress.start()

    def _look(self, cell: Cell) -> Result | None:
        """A cell as it is on disk; its worker reports a damaged one, which must not end the
        others.
        """
        try:
            return read_run(self.folder.run(cell).path)
        except ValueError:
            return None

    def ended(self, cell: Cell, outcome: Outcome) -> None:
        """A cell has ended: one line, and the bar."""
        one = self.tasks.pop(cell.name)
        self.progress.remove_task(one.task)
        self.finished += 1
        text = outcome.reason
        if outcome.status == "done":
            result = self._look(cell)
            text = "" if result is None else reached(result)
            if result is not None and result.rows and result.rows[0].shows_participation:
                self._time(cell, result)
                spent = sum(row.seconds for row in result.rows[one.before :])
                self.overheads.append(max(0.0, (outcome.seconds or 0.0) - spent))
        took = "" if outcome.seconds is None else f"  {outcome.seconds:.1f} s"
        line = f"[{self.finished}/{self.cells}] {cell.name}: {WORDS[outcome.status]}  {text}{took}"
        style = (
            "" if outcome.status == "done" else "red" if outcome.status == "failed" else "yellow"
        )
        print_whole(line, self.console, style)
        self._overall(estimate=outcome.status == "done")


def reached(result: Result) -> str:
    """What a run has reached: its accuracy; its loss where there is none."""
    losses = [row.loss for row in result.rows if row.loss is not None]
    if result.accuracy is not None or not losses:
        return f"accuracy {percent(result.accuracy)}"
    return f"loss {losses[-1]:.4g}"
