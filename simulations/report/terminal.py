"""What a user of ``fedlsg run`` sees: one line of progress during the run, and a table at its end."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from fedlsg.carriers import LayerRow, group_layers, totals
from simulations.report.words import human_bytes, outcome, percent
from simulations.rundir.tables import Row

WIDTH_FOR_BAR = 110
"""Terminals with fewer columns than this have no room for a bar."""


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

    def on_round(self, row: Row) -> None:
        """Show one finished round."""
        now = time.monotonic()
        task = self.progress.tasks[0]
        self.count(row)
        status = (
            f"accuracy {percent(self.accuracy)}  epsilon {row.epsilon_max:.2f}  "
            f"up {human_bytes(self.up)}  down {human_bytes(self.down)}"
        )
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
    table = Table(box=None, padding=(0, 2, 0, 0))
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


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The result of a run as a table of two columns."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
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
