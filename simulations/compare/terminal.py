"""Tables on a terminal: the lines of a comparison, and the panels of its bytes axis."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from simulations.compare import bytes_axis
from simulations.compare.table import COLUMNS, Line, shown


def terminal_table(table: Sequence[Line], width: int) -> Table:
    """For a terminal of ``width`` columns; a narrow one goes without the standard error and the seconds."""
    rows = shown(table)
    keys = [key for key in (rows[0] if rows else COLUMNS) if width >= 100 or key not in ("error", "seconds")]
    view = Table(box=None, padding=(0, 2 if width >= 100 else 1, 0, 0), header_style="bold", pad_edge=False)
    for key in keys:
        view.add_column(COLUMNS[key], justify="left" if key == "method" else "right", no_wrap=key != "method")
    before: float | None = None
    for position, (line, row) in enumerate(zip(table, rows, strict=True)):
        if position and line.epsilon_target != before:
            view.add_section()
        before = line.epsilon_target
        view.add_row(*(row[key] for key in keys), style="" if line.private is not False else "yellow")
    return view


def print_panels(table: Sequence[Line], console: Console) -> None:
    """The panels on a terminal."""
    for panel in bytes_axis.panels(table):
        rows = bytes_axis.cells(panel)
        view = Table(title=panel.title, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="bold")
        keys = [key for key in rows[0] if console.width >= 100 or not key.endswith("_saved")]
        for key in keys:
            view.add_column(
                bytes_axis.COLUMNS[key], justify="left" if key == "method" else "right", no_wrap=key != "method"
            )
        for line, row in zip(panel.lines, rows, strict=True):
            view.add_row(*(row[key] for key in keys), style="" if line.private else "yellow")
        console.print(view)
    console.print(bytes_axis.NOTE, style="dim", markup=False, highlight=False)
