"""What a user sees while a grid runs: a bar over all cells and a line for each running one, or plain lines."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import TaskID

from simulations.compare.cells.grid import Cell
from simulations.compare.cells.runner import Folder
from simulations.compare.cells.worker import Outcome
from simulations.report.progress import PAUSE_SECONDS, announce_estimate, clock, is_live, live_bar
from simulations.report.words import percent
from simulations.rundir.results import Result, read_run

WORDS = {"done": "done", "failed": "FAILED", "interrupted": "interrupted"}
ENOUGH = 0.1
"""Share of a cell that must be done before the time left is estimated."""


@dataclass
class Running:
    """A running cell: its line, the share that was done when it was first seen (None: not seen), the share now."""

    task: TaskID
    before: float | None = None
    share: float = 0.0


class GridDisplay:
    """Counts cells; ``started``, ``running`` and ``ended`` are the callbacks of ``run_cells``."""

    def __init__(self, console: Console, folder: Folder, cells: int, done: int) -> None:
        self.console, self.folder, self.cells = console, folder, cells
        self.before, self.finished, self.began = done, done, time.monotonic()
        self.estimated = False
        self.progress = live_bar(console)
        self.overall = self.progress.add_task(
            "all runs", total=cells, completed=done, of=f"{done}/{cells}", left="left --:--"
        )
        self.tasks: dict[str, Running] = {}

    def started(self, cell: Cell) -> None:
        """A cell begins; its rounds are known once it has planned."""
        task = self.progress.add_task(cell.name, total=1, completed=0, of="", left="starting")
        self.tasks[cell.name] = Running(task)

    def running(self, cells: Sequence[Cell]) -> None:
        """Look at the running cells' rounds; in a log only until the time left is estimated."""
        if not is_live(self.console) and self.estimated:
            return
        for cell in cells:
            result = self._look(cell)
            if result is not None and result.rows:
                one, rounds, done = self.tasks[cell.name], int(result.settings["rounds"]), len(result.rows)
                one.share = done / rounds
                one.before = one.share if one.before is None else one.before
                left = reached(result)
                self.progress.update(one.task, total=rounds, completed=done, of=f"{done}/{rounds}", left=left)
        self._overall()

    def left(self) -> float | None:
        """Seconds left, from the cells and the rounds that this process has seen; None while that is too little."""
        shares = [one.share for one in self.tasks.values()]
        seen = self.finished - self.before + sum(shares) - sum(one.before or 0.0 for one in self.tasks.values())
        if seen < ENOUGH:
            return None
        return (time.monotonic() - self.began) / seen * (self.cells - self.finished - sum(shares))

    def _overall(self, *, estimate: bool = True) -> None:
        seconds = self.left() if estimate else None  # a cell that failed says nothing about the others
        done = self.finished + sum(one.share for one in self.tasks.values())
        left = "left --:--" if seconds is None else f"left {clock(seconds)}"
        self.progress.update(self.overall, completed=done, of=f"{self.finished}/{self.cells}", left=left)
        if seconds is not None and not self.estimated and time.monotonic() - self.began >= PAUSE_SECONDS:
            self.estimated = True
            if seconds and not is_live(self.console):
                announce_estimate(self.console, seconds)

    def _look(self, cell: Cell) -> Result | None:
        """A cell as it is on disk; its worker reports a damaged one, which must not end the others."""
        try:
            return read_run(self.folder.run(cell).path)
        except ValueError:
            return None

    def ended(self, cell: Cell, outcome: Outcome, seconds: float) -> None:
        """A cell has ended: one line, and the bar."""
        self.progress.remove_task(self.tasks.pop(cell.name).task)
        self.finished += 1
        text = outcome.reason
        if outcome.status == "done":
            result = self._look(cell)
            text = "" if result is None else reached(result)
        line = f"[{self.finished}/{self.cells}] {cell.name}: {WORDS[outcome.status]}  {text}  {seconds:.1f} s"
        style = "" if outcome.status == "done" else "red" if outcome.status == "failed" else "yellow"
        self.console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
        self._overall(estimate=outcome.status == "done")


def reached(result: Result) -> str:
    """What a run has reached: its accuracy; its loss where there is none."""
    losses = [row.loss for row in result.rows if row.loss is not None]
    if result.accuracy is not None or not losses:
        return f"accuracy {percent(result.accuracy)}"
    return f"loss {losses[-1]:.4g}"
