"""Tables, notes, layers of a model and results of runs are printed on a terminal or in a notebook.

A notebook's cell shows a bar while a run goes on, and figures. That needs no widgets, only IPython
itself.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as View
from rich.text import Text

from fedlsg.carriers import LayerRow, group_layers, totals
from fedlsg.owner_only import make_parents
from fedlsg.simulations.report.pages.page import Facts, Part, Table
from fedlsg.simulations.report.pages.page import Text as Paragraph
from fedlsg.simulations.report.words import outcome
from fedlsg.simulations.storage.atomic_files import write_atomically, writing_to
from fedlsg.simulations.storage.examined import open_run
from fedlsg.simulations.storage.results import Summary
from fedlsg.simulations.storage.run_directory import RunDir

if TYPE_CHECKING:
    from matplotlib.figure import Figure


STYLES = {
    "": "",
    "reference": "",
    "own": "bold",
    "no-epsilon": "yellow",
    "dim": "dim",
    "alert": "bold red",
}
WIDE_SPACES, NARROW_SPACES = 2, 1
"""Spaces between columns."""
LEFT_OUT = "left out at this width"
FROZEN_LINES = 4
"""Lines that frozen parameters may take in a list of layers."""


def terminal_table(table: Table, width: int) -> Group:
    """A table for a terminal of ``width`` columns.

    As few optional columns as possible are left out so that it fits, and a line names them. If it
    never fits, intervals go to a second line and names fold.
    """
    title = [Text(table.title, style="bold")] if table.title else []
    hidden = _left_out(table, width)
    spaces = (WIDE_SPACES, NARROW_SPACES)
    fitting = (view for space in spaces if _width(view := _view(table, hidden, space)) <= width)
    names = ", ".join(table.columns[position].split(",")[0] for position in sorted(hidden))
    note = [Text(f"{LEFT_OUT}: {names}", style="dim")] if names else []
    return Group(*title, next(fitting, _narrowest(table)), *note)


def _left_out(table: Table, width: int) -> tuple[int, ...]:
    """The positions of the optional columns that do not fit on a terminal of ``width`` columns.

    Columns are hidden in their order until the table fits. Then those are shown again that fit
    without the others.
    """

    def is_wide(hidden: tuple[int, ...]) -> bool:
        return _width(_view(table, hidden, NARROW_SPACES)) > width

    hidden: tuple[int, ...] = ()
    for position in table.optional:
        if not is_wide(hidden):
            break
        hidden = (*hidden, position)
    for position in hidden[::-1]:
        fewer = tuple(other for other in hidden if other != position)
        if not is_wide(fewer):
            hidden = fewer
    return hidden


def print_table(table: Table, console: Console) -> None:
    """The table, and its note below. A table with a title has an empty line before it."""
    if table.title:
        console.print()
    console.print(terminal_table(table, console.width), highlight=False)
    if table.note:
        print_note(table.note, console)


def print_parts(parts: Iterable[Part], console: Console) -> None:
    """Tables, paragraphs and facts of a page."""
    for part in parts:
        if isinstance(part, Table):
            print_table(part, console)
        elif isinstance(part, Facts):
            for name, words in part.rows:
                print_note(f"{name}: {words}", console)
        elif isinstance(part, Paragraph):
            print_note(part.words, console)


def print_note(words: str, console: Console, style: str = "dim") -> None:
    """Print text as it is, without markup."""
    console.print(words, style=style, markup=False, highlight=False)


def print_line(words: str, console: Console, style: str = "") -> None:
    """Print text as it is, broken between words on a terminal.

    In a log or a pipe it is one line, for programs that read it.
    """
    console.print(
        words, style=style, markup=False, highlight=False, soft_wrap=not console.is_terminal
    )


def print_whole(words: str, console: Console, style: str | None = None) -> None:
    """Print text as it is, not broken: paths and commands to copy, and lines for programs."""
    console.print(words, style=style, markup=False, highlight=False, soft_wrap=True)


def write_private(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files made of clients' examples, each replaced whole, for their owner alone."""
    with writing_to(folder):
        make_parents(folder, private=True)
        for name, content in files.items():
            write_atomically(folder / name, content, private=True)


def print_written(folder: Path, names: Iterable[str], console: Console) -> None:
    """Print where files were written."""
    console.print(
        f"[bold]written[/bold]  {escape(f'{folder}/')}{', '.join(names)}",
        highlight=False,
        soft_wrap=True,
    )


def checked(path: str, reads: Sequence[str], console: Console) -> RunDir:
    """The run directory that a command reads, checked by ``open_run``, which prints its notes."""
    return open_run(path, reads, lambda line: print_line(line, console, "yellow"))


def _narrowest(table: Table) -> View:
    """The table without optional columns, with intervals on a second line."""
    rows = tuple(
        replace(row, cells=tuple(cell.replace(" [", "\n[") for cell in row.cells))
        for row in table.rows
    )
    return _view(replace(table, rows=rows), table.optional, NARROW_SPACES)


def _view(table: Table, hidden: tuple[int, ...], space: int) -> View:
    """The table for rich, without hidden columns, with ``space`` spaces between columns."""
    view = View(box=None, padding=(0, space, 0, 0), header_style="bold", pad_edge=False)
    kept = [position for position in range(len(table.columns)) if position not in hidden]
    for position in kept:
        words = position in table.left
        view.add_column(
            Text(table.columns[position]),
            justify="left" if words else "right",
            no_wrap=not words,
            overflow="fold",
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
    return _width(_view(table, (), WIDE_SPACES)) <= width


def _width(view: View) -> int:
    """The columns that a table needs."""
    console = Console(width=1000)
    return Measurement.get(console, console.options, view).maximum


def layers_shown(layers: Sequence[LayerRow]) -> Group:
    """A list of carried, dense and frozen parameters, with the values that an update sends of each.

    Layers that differ in their number only share one line. If their masks keep different numbers of
    values, it has their sum.

    Frozen parameters are one line together if they would be more than FROZEN_LINES: a pretrained
    model under LoRA has dozens of them. A name that is too long for the terminal continues on the
    next line: names often differ at their end only.
    """
    table = View(box=None, padding=(0, 2, 0, 0))
    table.add_column("parameter", overflow="fold")
    for column in ("shape", "travels"):
        table.add_column(column, no_wrap=True)
    table.add_column("values sent", justify="right", no_wrap=True)
    rows = group_layers(layers)
    frozen = [row for row in rows if row.travel == "frozen"]
    folded = len(frozen) > FROZEN_LINES
    for row in rows:
        if folded and row.travel == "frozen":
            continue
        times = f"{row.count} x " if row.count > 1 else ""
        sent = _values_sent(row)
        table.add_row(row.name, f"{times}{' x '.join(map(str, row.shape))}", row.travel, sent)
    if folded:
        tensors, entries, _ = totals(frozen)["frozen"]
        table.add_row(f"{tensors} parameters", f"{entries:,} values", "frozen", "-")
    sums = totals(layers)
    before = sum(values for _, _, values in sums.values())
    after = sum(row.count * row.values if row.sent is None else row.sent for row in layers)
    parts = ", ".join(f"{tensors} {travel}" for travel, (tensors, _, _) in sums.items() if tensors)
    mask = "" if after == before else f" ({before:,} before the mask)"
    return Group(table, Text(f"total: {parts}; {after:,} values sent{mask}", style="bold"))


def _values_sent(row: LayerRow) -> str:
    """The values that a row's parameters send: "12 x 512" if all send alike, else the sum."""
    if not row.values:
        return "-"
    if row.sent is None:
        each, rest = row.values, 0
    else:
        each, rest = divmod(row.sent, row.count)
    if rest:
        return f"{row.sent:,} in all"
    return f"{row.count} x {each:,}" if row.count > 1 else f"{each:,}"


def facts_shown(facts: Mapping[str, str]) -> View:
    """A list of facts: names, and what is true of them."""
    table = View(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, words in facts.items():
        table.add_row(name, Text(words))
    return table


def summary_table(summary: Summary) -> View:
    """The result of a run as a table of two columns."""
    rows = {
        "workload": f"{summary['workload']}, model {summary['model']}",
        "federation": f"{summary['clients']} clients, {summary['rounds']} rounds, engine "
        f"{summary['engine']}",
        "method": str(summary["method"]),
        **outcome(summary),
    }
    return facts_shown(rows)


def shell() -> Any:
    """IPython's shell if the output goes into cells of a notebook; else None."""
    ipython = sys.modules.get("IPython")
    current = None if ipython is None else ipython.get_ipython()
    return current if getattr(current, "kernel", None) is not None else None


class CellBar:
    """One line in a notebook cell, a bar with words behind it, which is written again and again."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, share: float, words: Sequence[str]) -> None:
        """Show that this share is done."""
        from IPython.display import HTML, display
        from markupsafe import Markup

        bar = Markup('<progress value="{:.4f}" max="1"></progress> {}').format(
            share, "  ".join(words)
        )
        line = {"text/html": HTML(str(bar)).data, "text/plain": "  ".join(words)}
        if self._handle is None:
            self._handle = display(line, raw=True, display_id=True)
        else:
            self._handle.update(line, raw=True)


def shown(figure: "Figure") -> "Figure":
    """The figure; a notebook's cell shows it once, even if it is not the cell's last value."""
    if shell() is not None:
        _display(figure)
        figure.__dict__["_ipython_display_"] = partial(
            _display_elsewhere, figure, shell().execution_count
        )
    return figure


def _display_elsewhere(figure: "Figure", cell: int) -> None:
    """Show the figure, except in the cell that has shown it already."""
    if shell() is None or shell().execution_count != cell:
        _display(figure)


def _display(figure: "Figure") -> None:
    """Show the figure as an image in the cell."""
    from IPython.display import Image, display

    from fedlsg.simulations.report.pages.figure import png

    display(Image(png(figure), width=round(figure.get_figwidth() * 100)))
