"""``fedlsg runs``, without the parsing of its options."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from simulations.compare.runs import (
    COLUMNS,
    Listed,
    chosen,
    compare_table,
    in_order,
    list_table,
    printable,
    read_all,
)
from simulations.live.browser import open_file
from simulations.report.page import Page, Section, Text, json_text
from simulations.report.render import render
from simulations.report.table import records
from simulations.report.terminal import print_line, print_note, print_table, print_whole
from simulations.rundir.files.atomic import write_atomically, writing_to

PAGE = "runs.html"
NO_RUNS = "no runs in {}: start one with fedlsg run, or name another folder"
TICKS = 100
"""So many runs of a page, the first ones, can be ticked."""
COMPARED = "The runs whose boxes are ticked above, and every setting in which runs of this page differ."
WHAT = (
    "Epsilon is the largest over the clients of a run, against the readers named next to it. It covers that run "
    "only: it costs more privacy to choose the best of several runs. Bytes are payloads, up and down."
)


def runs_command(
    folder: str, console: Console, *, sort: str, reverse: bool, json: bool, compare: Sequence[str], html: str | None,
    opens: bool,
) -> None:  # fmt: skip
    """List the runs of a folder, or compare chosen ones. Raises ValueError for a folder or run that is none."""
    place, left_out = Path(folder).expanduser(), list[str]()
    ticked = chosen(place, compare, left_out.append)
    listed = [] if ticked and not (html or opens) else read_all(place, left_out.append)
    runs = in_order(listed, sort, reverse=reverse)
    if json:
        console.out(json_text(records(COLUMNS, ticked or runs)).decode(), end="", highlight=False)
    elif ticked:
        print_table(compare_table(ticked), console)
    elif runs:
        print_table(list_table(runs), console)
    else:
        print_line(NO_RUNS.format(printable(place)), console)
    for line in left_out:
        print_line(line, Console(stderr=True) if json else console, "yellow")
    if html or opens:
        file = Path(html).expanduser() if html else place / PAGE
        with writing_to(file.parent):
            named = printable(place if place.name else place.resolve().name)
            write_atomically(file, runs_page(named, runs, ticked, left_out).encode())
        print_whole(f"page  {printable(file)}", console)
        if opens and not open_file(file):
            print_note("no browser was found: open this file in one", console)


def runs_page(place: str, runs: Sequence[Listed], ticked: Sequence[Listed], left_out: Sequence[str]) -> str:
    """The list as a page; its ticked runs are side by side."""
    every = [*ticked, *(run for run in runs if run.path not in {one.path for one in ticked})]
    table, some = list_table(every), every[:TICKS]
    rows = [replace(row, ticked=at < len(ticked)) for at, row in enumerate(table.rows[:TICKS])]
    table = replace(table, rows=(*rows, *table.rows[TICKS:]))
    compared = replace(compare_table(some), chosen=True)
    return render(
        Page(
            kind="fedlsg runs",
            title=f"Runs in {place}",
            lead=f"{len(every)} runs. Tick two or more to see them side by side.",
            advice=tuple(left_out),
            sections=(
                Section(title="Runs", parts=(table, Text(words=WHAT, style="note"))),
                Section(title="Side by side", parts=(compared, Text(words=COMPARED, style="note"))),
            ),
        )
    )
