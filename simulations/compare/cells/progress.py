"""What a user sees while a grid runs: a bar over all cells and a line for each running one, or plain lines."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from simulations.compare.cells.grid import Cell
from simulations.compare.cells.runner import Folder
from simulations.compare.cells.worker import Outcome
from simulations.report.words import percent
from simulations.rundir.results import Result, read_run

WORDS = {"done": "done", "failed": "FAILED", "interrupted": "interrupted"}


class GridDisplay:
    """Counts cells; ``started``, ``running`` and ``ended`` are the callbacks of ``run_cells``."""

    def __init__(self, console: Console, folder: Folder, cells: int, done: int) -> None:
        self.console, self.folder, self.cells = console, folder, cells
        self.before, self.finished, self.began = done, done, time.monotonic()
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[status]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self.overall = self.progress.add_task("cells", total=cells, completed=done, status="left --:--")
        self.tasks: dict[str, TaskID] = {}

    def started(self, cell: Cell) -> None:
        """A cell begins; its rounds are known once it has planned."""
        self.tasks[cell.name] = self.progress.add_task(f"  {cell.name}", total=1, completed=0, status="starting")

    def running(self, cells: Sequence[Cell]) -> None:
        """Look at the running cells' rounds; on a terminal only."""
        if not self.console.is_terminal:
            return
        for cell in cells:
            result = self._look(cell)
            if result is not None and result.rows:
                self.progress.update(
                    self.tasks[cell.name],
                    total=result.settings["rounds"],
                    completed=len(result.rows),
                    status=reached(result),
                )

    def _look(self, cell: Cell) -> Result | None:
        """A cell as it is on disk; its worker reports a damaged one, which must not end the others."""
        try:
            return read_run(self.folder.run(cell).path)
        except ValueError:
            return None

    def ended(self, cell: Cell, outcome: Outcome, seconds: float) -> None:
        """A cell has ended: one line, and the bar."""
        self.progress.remove_task(self.tasks.pop(cell.name))
        self.finished += 1
        spent = time.monotonic() - self.began
        left = spent / (self.finished - self.before) * (self.cells - self.finished)
        self.progress.update(
            self.overall, completed=self.finished, status=f"left {int(left // 60):02d}:{int(left % 60):02d}"
        )
        text = outcome.reason
        if outcome.status == "done":
            result = self._look(cell)
            text = "" if result is None else reached(result)
        line = f"[{self.finished}/{self.cells}] {cell.name}: {WORDS[outcome.status]}  {text}  {seconds:.1f} s"
        style = "" if outcome.status == "done" else "red" if outcome.status == "failed" else "yellow"
        self.console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def reached(result: Result) -> str:
    """What a run has reached: its accuracy; its loss where there is none."""
    losses = [row.loss for row in result.rows if row.loss is not None]
    if result.accuracy is not None or not losses:
        return f"accuracy {percent(result.accuracy)}"
    return f"loss {losses[-1]:.4g}"
