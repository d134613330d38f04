"""The files of a comparison, all of the same results: results.csv, table.csv, table.md, plots/ and report.html."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simulations.compare.bytes_axis import PLAIN, View, bytes_markdown
from simulations.compare.lines import lines
from simulations.compare.page import page
from simulations.compare.plots import figures
from simulations.compare.table import table_csv, table_markdown
from simulations.report.figure import png
from simulations.rundir.files.atomic import write_atomically
from simulations.rundir.results import Result, results_csv

SHARE = 0.05
"""Share of the time that drawing may take while results come in."""


def write_tables(folder: Path, results: Sequence[Result], view: View = PLAIN) -> None:
    """results.csv, table.csv and table.md, and bytes.md on the bytes axis: milliseconds."""
    table = lines(results)
    texts = {"results.csv": results_csv(results), "table.csv": table_csv(table), "table.md": table_markdown(table)}
    texts |= {"bytes.md": bytes_markdown(table)} if view.bytes else {}
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())


def write_page(
    folder: Path, title: str, results: Sequence[Result], *, command: str = "", grid: str = "", view: View = PLAIN
) -> None:
    """plots/*.png and report.html: a second or two."""
    table = lines(results)
    text = page(title, results, table, command=command, grid=grid, view=view)
    write_atomically(folder / "report.html", text.encode())
    for name, figure in figures(table, view).items():
        write_atomically(folder / "plots" / f"{name}.png", png(figure))


@dataclass(kw_only=True)
class Output:
    """Writes tables and page again while results come in.

    Guarantee: the tables follow every result. Page and plots take a twentieth of the time at most, and are written at
    the end.
    """

    folder: Path
    title: str
    results: Callable[[], Sequence[Result]]
    command: str
    grid: str
    view: View = PLAIN
    drawn: float = field(default_factory=time.monotonic)
    cost: float = 2.0

    def update(self) -> None:
        """After a cell."""
        write_tables(self.folder, self.results(), self.view)
        if time.monotonic() - self.drawn > self.cost / SHARE:
            self._draw()

    def finish(self) -> Sequence[Result]:
        """Everything, at the end; returns the results."""
        write_tables(self.folder, self.results(), self.view)
        self._draw()
        return self.results()

    def _draw(self) -> None:
        began = time.monotonic()
        write_page(self.folder, self.title, self.results(), command=self.command, grid=self.grid, view=self.view)
        self.drawn = time.monotonic()
        self.cost = self.drawn - began
