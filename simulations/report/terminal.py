"""What a user sees on a terminal: the tables and notes of a page, progress bars, and the display of a run."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rich.console import Console, Group
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as View
from rich.text import Text

from fedlsg.carriers import LayerRow, group_layers, totals
from simulations.report.page import Table
from simulations.report.words import human_bytes, outcome, percent
from simulations.rundir.tables import Row

STYLES = {"": "", "reference": "", "own": "bold", "no-epsilon": "yellow", "dim": "dim", "alert": "bold red"}
WIDE, NARROW = 2, 1
"""Spaces between columns."""
Tick = Callable[[float, str], None]
"""Called with the share that is done, and what is done next."""
WIDTH_FOR_BAR = 110
"""Terminals with fewer columns than this have no room for a bar."""


def terminal_table(table: Table, width: int) -> Group:
    """For a terminal of ``width`` columns.

    Optional columns are left out until the table fits. If it never does, intervals go to a second line and names fold.
    """
    title = [Text(table.title, style="bold")] if table.title else []
    hidden = (table.optional[:count] for count in range(len(table.optional) + 1))
    views = (_view(table, some, space) for some in hidden for space in (WIDE, NARROW))
    return Group(*title, next((view for view in views if _width(view) <= width), _narrowest(table)))


def print_table(table: Table, console: Console) -> None:
    """The table, and its note below. A table with a title has an empty line before it."""
    if table.title:
        console.print()
    console.print(terminal_table(table, console.width), highlight=False)
    if table.note:
        print_note(table.note, console)


def print_note(words: str, console: Console, style: str = "dim") -> None:
    """Text as it is: no markup in it is obeyed."""
    console.print(words, style=style, markup=False, highlight=False)


def _narrowest(table: Table) -> View:
    rows = tuple(replace(row, cells=tuple(cell.replace(" [", "\n[") for cell in row.cells)) for row in table.rows)
    return _view(replace(table, rows=rows), table.optional, NARROW)


def _view(table: Table, hidden: tuple[int, ...], space: int) -> View:
    view = View(box=None, padding=(0, space, 0, 0), header_style="bold", pad_edge=False)
    kept = [position for position in range(len(table.columns)) if position not in hidden]
    for position in kept:
        words = position in table.left
        view.add_column(
            Text(table.columns[position]), justify="left" if words else "right", no_wrap=not words, overflow="fold"
        )
    before = None
    for row in table.rows:
        if before is not None and row.group != before:
            view.add_row()
        before = row.group
        view.add_row(*(Text(row.cells[position]) for position in kept), style=STYLES[row.style])
    return view


def fits(table: Table, width: int) -> bool:
    """Whether all columns of the table fit on a terminal of ``width`` columns."""
    return _width(_view(table, (), WIDE)) <= width


def _width(view: View) -> int:
    console = Console(width=1000)
    return Measurement.get(console, console.options, view).maximum


@contextmanager
def bar(console: Console) -> Iterator[Tick]:
    """A bar for the share that is done."""
    columns = (BarColumn(bar_width=24), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn())
    text = TextColumn("{task.description}")
    with Progress(*columns, TimeRemainingColumn(), text, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda share, words: progress.update(task, completed=share, description=words)


@contextmanager
def count_bar(console: Console, what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar for ``total`` steps; gives the function that advances it by one."""
    text = TextColumn(what + " {task.completed:.0f}/{task.total:.0f}")
    columns = (text, BarColumn(bar_width=24), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


class TimeLeft(ProgressColumn):
    """Seconds left, from the mean duration of the rounds of this process."""

    def render(self, task: Task) -> Text:
        """As minutes and seconds; dashes before the first round has ended."""
        done = task.completed - task.fields["first"]
        if done <= 0 or task.fields["began"] is None or task.total is None:
            return Text("left --:--", style="dim")
        left = (task.total - task.completed) * (task.fields["last"] - task.fields["began"]) / done
        return Text(f"left {int(left // 60):02d}:{int(left % 60):02d}", style="dim")


class RoundDisplay:
    """Shows each row when its round ends: a bar on a terminal, about twenty plain lines elsewhere."""

    def __init__(self, console: Console, rounds: int, first: int) -> None:
        self.console, self.rounds, self.first = console, rounds, first
        self.up = self.down = 0
        self.accuracy: float | None = None
        self.loss: float | None = None
        bar = [BarColumn(bar_width=24)] if console.width >= WIDTH_FOR_BAR else []
        self.progress = Progress(
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            *bar,
            TextColumn("{task.fields[status]}"),
            TimeLeft(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task(
            "", total=rounds, completed=first, status="starting", first=first, began=None, last=0.0
        )

    def count(self, row: Row) -> None:
        """Add a row to the totals. Rows of an earlier process are only counted."""
        self.up, self.down = self.up + row.uplink_bytes, self.down + row.downlink_bytes
        self.accuracy = row.accuracy if row.accuracy is not None else self.accuracy
        self.loss = row.loss if row.loss is not None else self.loss

    def on_round(self, row: Row) -> None:
        """Show one finished round."""
        now = time.monotonic()
        task = self.progress.tasks[0]
        self.count(row)
        known = self.accuracy is not None or self.loss is None
        reached = f"accuracy {percent(self.accuracy)}" if known else f"loss {self.loss:.4g}"
        status = f"{reached}  epsilon {row.epsilon_max:.2f}  up {human_bytes(self.up)}  down {human_bytes(self.down)}"
        began = task.fields["began"] or now - row.seconds
        short = " ".join(status.split())
        self.progress.update(self.task, completed=row.round, status=short, began=began, last=now)
        if row.rejected:
            self.console.print(
                f"round {row.round}: client {row.reasons}", style="yellow", highlight=False, markup=False
            )
        stride = max(1, self.rounds // 20)
        if not self.console.is_terminal and (row.round % stride == 0 or row.round == self.rounds):
            self.console.print(f"round {row.round:>4}/{self.rounds}  {status}", highlight=False)


@contextmanager
def showing(console: Console, rounds: int, first: int) -> Iterator[RoundDisplay]:
    """A live display of rounds ``first + 1`` to ``rounds``."""
    display = RoundDisplay(console, rounds, first)
    with display.progress:
        yield display


def layers_shown(layers: Sequence[LayerRow]) -> Group:
    """Which parameters are carried, dense and frozen. Layers that differ in their number only share one line.

    A name that is too long for the terminal continues on the next line: names often differ at their end only.
    """
    table = View(box=None, padding=(0, 2, 0, 0))
    table.add_column("parameter", overflow="fold")
    for column in ("shape", "travels"):
        table.add_column(column, no_wrap=True)
    table.add_column("values sent", justify="right", no_wrap=True)
    for row in group_layers(layers):
        times = f"{row.count} x " if row.count > 1 else ""
        sent = f"{times}{row.values:,}" if row.values else "-"
        table.add_row(row.name, f"{times}{' x '.join(map(str, row.shape))}", row.travel, sent)
    sums = totals(layers)
    total = sum(values for _, _, values in sums.values())
    parts = ", ".join(f"{tensors} {travel}" for travel, (tensors, _, _) in sums.items() if tensors)
    return Group(table, Text(f"total before the mask: {parts}; {total:,} values sent", style="bold"))


def summary_table(summary: Mapping[str, Any]) -> View:
    """The result of a run as a table of two columns."""
    table = View(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    rows = {
        "workload": f"{summary['workload']}, model {summary['model']}",
        "federation": f"{summary['clients']} clients, {summary['rounds']} rounds, engine {summary['engine']}",
        "method": str(summary["method"]),
        **outcome(summary),
    }
    for name, words in rows.items():
        table.add_row(name, Text(words))
    return table
