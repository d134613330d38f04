"""What a user sees: one line of progress while a run goes on, and a table at its end."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from fedlsg.carriers import LayerRow, grouped, totals
from simulations.rundir.links import LINKS
from simulations.rundir.row import Row

WIDTH_FOR_BAR = 110
"""Columns of a terminal below which the numbers need the bar's room."""


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
    """Shows rows as they come: a bar on a terminal, about twenty plain lines elsewhere."""

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
        """Add a row to the totals; on its own for the rows of an earlier process."""
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
    """Which parameters are carried, dense and frozen, layers that differ in their number alone on one line.

    A name too long for the terminal goes on in the next line: layers often differ in the end of their names only.
    """
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("parameter", overflow="fold")
    for column in ("shape", "travels"):
        table.add_column(column, no_wrap=True)
    table.add_column("values sent", justify="right", no_wrap=True)
    for row in grouped(layers):
        times = f"{row.count} x " if row.count > 1 else ""
        sent = f"{times}{row.values:,}" if row.values else "-"
        table.add_row(row.name, f"{times}{' x '.join(map(str, row.shape))}", row.travel, sent)
    sums = totals(layers)
    total = sum(values for _, _, values in sums.values())
    parts = ", ".join(f"{tensors} {travel}" for travel, (tensors, _, _) in sums.items() if tensors)
    return Group(table, Text(f"in all, before the mask: {parts}; {total:,} values sent", style="bold"))


def summary_table(summary: dict[str, Any]) -> Table:
    """The result of a run as a table of two columns."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    dense = summary["uplink_bytes_dense"]
    saved = f" ({dense / summary['uplink_bytes']:.1f}x)" if summary["uplink_bytes"] else ""
    rows = {
        "workload": f"{summary['workload']} ({summary['model']})",
        "federation": f"{summary['clients']} clients, {summary['rounds']} rounds, engine {summary['engine']}",
        "method": summary["method"],
        "test accuracy": percent(summary["accuracy"]) + f"  (loss {float(summary['loss']):.3f})",
        "privacy": privacy_line(summary),
        "uplink": f"{human_bytes(summary['uplink_bytes'])} payload, {human_bytes(summary['uplink_bytes_wire'])} on the "
        f"wire; dense {human_bytes(dense)}{saved}",
        "downlink": f"{human_bytes(summary['downlink_bytes'])}, "
        f"{human_bytes(summary['downlink_bytes_wire'])} on the wire",
        "transfer": transfer_line(summary),
        "empty rounds": empty_line(summary),
        "time": f"{summary['wall_seconds']:.1f} s on {summary['device']}",
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, value)
    return table


def empty_line(summary: Mapping[str, Any]) -> str:
    """How many rounds brought no update; empty where there were none, or nobody counted."""
    count = summary.get("empty_rounds", 0)
    return f"{count} of {summary['rounds']} brought no update" if count else ""


def transfer_line(summary: Mapping[str, Any]) -> str:
    """Seconds that the messages would take on each named link; empty for runs that did not count them."""
    seconds: Mapping[str, float] = summary.get("transfer_seconds", {})
    return ", ".join(f"{value:.3g} s on {LINKS[name].short}" for name, value in seconds.items() if name in LINKS)


def privacy_line(summary: dict[str, Any]) -> str:
    """Epsilon and what it rests on; NOT PRIVATE where it claims nothing."""
    epsilon = float(summary["epsilon_max"])
    if not summary["private"]:
        why = "the noise is reproducible" if summary["reproducible"] else "no clipped and noised mechanism"
        return f"NOT PRIVATE ({why})" + (f"; the ledger would say {epsilon:.3f}" if epsilon < float("inf") else "")
    line = (
        f"epsilon {epsilon:.3f} at delta {summary['delta']:g} (largest of {summary['clients']} clients, "
        f"median {float(summary['epsilon_median']):.3f}; sigma {summary['noise_multiplier']:.4g})"
    )
    if summary["trust"] == "aggregate":
        line += "; only the sum is private: an ideal secure aggregation is assumed and not provided"
    return line


def percent(share: float | None) -> str:
    """A share as a percentage."""
    return "--" if share is None else f"{100 * share:.2f} %"


def human_bytes(count: float) -> str:
    """Bytes with a decimal unit (1 kB = 1,000 B)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
