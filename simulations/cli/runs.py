"""``fedlsg runs``: the runs of a folder as a list, and chosen ones side by side, in the terminal
and as a page.

The folders may come from anybody. They are read as ``fedlsg report`` reads them: no code of a run
is run, no link is followed out of one, and what cannot be read is named and left out.
"""

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from fedlsg.config.choices import choose
from fedlsg.config.directions import higher_is_better
from fedlsg.config.units import unit_in
from fedlsg.simulations.compare.grid.runner import CELLS
from fedlsg.simulations.report.page_of_run.run_page import PLACES
from fedlsg.simulations.report.pages.page import Page, Row, Section, Table, Text, json_text
from fedlsg.simulations.report.pages.table import Column, make_table, records
from fedlsg.simulations.report.pages.template import render
from fedlsg.simulations.report.terminals.terminal import (
    print_line,
    print_note,
    print_table,
    print_whole,
)
from fedlsg.simulations.report.words import (
    NOT_PRIVATE,
    duration,
    epsilon_words,
    human_bytes,
    percent,
    printable,
    strongest,
)
from fedlsg.simulations.run.live_page import open_file
from fedlsg.simulations.storage.atomic_files import write_atomically, writing_to
from fedlsg.simulations.storage.examined import RESULTS, Say, open_run
from fedlsg.simulations.storage.lock import is_held
from fedlsg.simulations.storage.results import Result, read_run
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.tensorboard_events import EVENTS
from fedlsg.user_code import shown

DEPTH = 3
"""Folders inside folders are searched so far: runs, comparisons in them, and their cells."""
READERS = {
    "client": "everybody",
    "secure": "the sum's readers",
    "aggregate": "the sum's readers",
    "server": "outside",
}
"""Against whom epsilon holds, by ``trust``; of a finished secure sum the summary knows more."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One run of a list. ``name``: its path below the folder. ``began``: seconds since 1970; None:
    it is a secret.
    """

    name: str
    path: Path
    state: str
    result: Result
    began: float | None

    @property
    def epsilon(self) -> float | None:
        """What is claimed: None for runs without privacy, and before the first round."""
        run = self.result
        claims = run.private if run.done else run.noisy and not run.settings.get("reproducible")
        return run.epsilon_max if claims else None

    @property
    def reader(self) -> str:
        """Against whom epsilon holds."""
        trust = str(self.result.settings.get("trust", "client"))
        strong = (
            strongest(self.result.summary).removeprefix(" against ") if self.result.done else ""
        )
        level = unit_in(self.result.settings).level
        return (strong or READERS.get(trust, trust)) + (level and f", {level}")

    @property
    def bytes(self) -> int | None:
        """Payload bytes up and down; None where a trusted server keeps them to itself."""
        rows = self.result.rows
        return (
            sum(row.uplink_bytes + row.downlink_bytes for row in rows)
            if all(row.shows_participation for row in rows)
            else None
        )

    @property
    def seconds(self) -> float | None:
        seconds = self.result.summary.get("wall_seconds")
        return None if seconds is None else float(seconds)


def _epsilon(run: Listed) -> str:
    if run.epsilon is None:
        return NOT_PRIVATE if run.result.done or not run.result.noisy else "--"
    return epsilon_words(run.epsilon) + ("" if run.result.done else " so far")


def _score(run: Listed) -> str:
    """Accuracy, or the loss where there are no classes."""
    if run.result.accuracy is not None or not (losses := course_of(run)):
        return percent(run.result.accuracy)
    return f"loss {losses[-1]:.3g}"


def course_of(run: Listed) -> tuple[float, ...]:
    """The accuracy round by round, or the loss where there are no classes."""
    rows = run.result.rows
    shares = [row.accuracy for row in rows if row.accuracy is not None]
    curve = shares or [row.loss for row in rows if row.loss is not None]
    thin = max(1, len(curve) // POINTS)
    return tuple(curve[::-thin][::-1])


def _when(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d\N{NO-BREAK SPACE}%H:%M}"


def _setting(name: str) -> Callable[[Listed], str]:
    return lambda run: shown(str(run.result.settings.get(name, "")))


def _words(name: str, value: Callable[[Listed], str], optional: int = 0) -> Column:
    """A column of somebody else's words."""
    return Column(
        name, value, key=name, words=lambda run: printable(value(run)), left=True, optional=optional
    )


COLUMNS = (
    _words("run", lambda run: run.name),
    Column("state", lambda run: run.state, key="state", left=True),
    _words("method", _setting("method"), optional=5),
    _words("workload", _setting("workload"), optional=4),
    Column("epsilon", lambda run: run.epsilon, key="epsilon", words=_epsilon),
    Column(
        "against",
        lambda run: run.reader if run.epsilon is not None else None,
        key="against",
        left=True,
        optional=3,
    ),
    Column("accuracy", lambda run: run.result.accuracy, key="accuracy", words=_score),
    Column("bytes", lambda run: run.bytes, human_bytes, "bytes", optional=6),
    Column("time", lambda run: run.seconds, duration, "seconds", optional=2),
    Column("began", lambda run: run.began, _when, "began", left=True, optional=1),
    Column("", lambda run: str(run.path), key="path"),
    Column("", lambda run: len(run.result.rows), key="rounds"),
)
ORDERS: Mapping[str, tuple[Callable[[Listed], Any], bool]] = {
    "run": (lambda run: run.name, False),
    "state": (lambda run: run.state, False),
    "method": (_setting("method"), False),
    "workload": (_setting("workload"), False),
    "epsilon": (lambda run: run.epsilon, False),
    "accuracy": (lambda run: run.result.accuracy, bool(higher_is_better("accuracy"))),
    "bytes": (lambda run: run.bytes, False),
    "time": (lambda run: run.seconds, False),
    "began": (lambda run: run.began, True),
}
"""What a list is sorted by, and whether the largest comes first."""


def find_runs(folder: Path) -> list[Path]:
    """Run directories in a folder, which may be one itself. Raises ValueError for what is no
    folder.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: name one that has run directories in it")
    directories, waiting = [], [(folder, 0)]
    while waiting:
        place, depth = waiting.pop()
        if (place / "config.toml").exists():
            directories.append(place)
        elif depth < DEPTH:
            with suppress(OSError):
                waiting += [
                    (one, depth + 1)
                    for one in place.iterdir()
                    if one.is_dir() and not one.is_symlink()
                ]
    return sorted(directories)


def read_all(folder: Path, say: Say) -> list[Listed]:
    """Every run of a folder that can be read; ``say`` is told of the others."""
    runs = []
    for path in find_runs(folder):
        name = _name(folder, path)
        try:
            runs.append(listed(path, name))
        # files of another's: whatever is in them, the other runs are listed
        except Exception as error:
            say(
                printable(
                    f"left out: {name}: {' '.join(str(error).split()) or type(error).__name__}"
                )
            )
    return runs


def _name(folder: Path, path: Path) -> str:
    return (
        path.name
        if path == folder
        else path.relative_to(folder).as_posix().replace(f"/{CELLS}/", "/")
    )


def listed(path: Path, name: str) -> Listed:
    """One run. Raises whatever its files raise."""
    result = read_run(path)
    state = {"done": "finished"}.get(result.status, result.status)
    if not result.summary and is_held(RunDir(path)):
        state = "running"
    secret = result.settings.get("trust") == "server"
    began = None if secret else _start(path)
    run = Listed(name=name, path=path.resolve(), state=state, result=result, began=began)
    list_table([run])  # values of another kind than expected are found here
    return run


def _start(path: Path) -> float:
    """When the run wrote its first event, which a copy keeps; before that, when its settings were
    written.
    """
    # a record: length (8 bytes), its checksum (4), then the field wall_time: its tag (1), a double
    try:
        with (path / EVENTS).open("rb") as file:
            began = float(struct.unpack_from("<d", file.read(21), 13)[0])
    except (OSError, struct.error):
        began = 0.0
    return began if began > 0 else (path / "config.toml").stat().st_mtime


def in_order(runs: Iterable[Listed], by: str, *, reverse: bool = False) -> list[Listed]:
    """Sorted; those without a value are last. Raises ValueError for an unknown key, with the known
    ones.
    """
    value, largest = choose("sort", by, ORDERS)
    known = [
        run for run in runs if (sort_value := value(run)) is not None and sort_value == sort_value
    ]
    return sorted(known, key=value, reverse=largest != reverse) + [
        run for run in runs if run not in known
    ]


def list_table(runs: Sequence[Listed]) -> Table:
    """The list."""
    return make_table(
        COLUMNS, runs, style=lambda run: "" if run.epsilon is not None else "no-epsilon"
    )


def chosen(folder: Path, names: Sequence[str], say: Say) -> list[Listed]:
    """Runs by their names in the list, or by paths. Raises ValueError for one that is neither, or
    that changed.
    """
    chosen = []
    for name in names:
        inside = [
            path
            for path in (folder / name, Path(name).expanduser())
            if (path / "config.toml").exists()
        ]
        if not inside and folder.is_dir():
            inside = [
                path for path in find_runs(folder) if name in (path.name, _name(folder, path))
            ]
        if not inside:
            raise ValueError(
                f"unknown run {name!r}: expected a name of fedlsg runs {folder}, or a run directory"
            )
        open_run(inside[0], RESULTS, lambda line: say(printable(line)))
        chosen.append(listed(inside[0], name))
    return chosen


def compare_table(runs: Sequence[Listed]) -> Table:
    """Runs side by side: a column each, with the facts of the list, and every setting in which they
    differ.
    """
    facts = [column for column in COLUMNS if column.name and column.name != "run"]
    rows = [Row(cells=(column.name, *(column.shown(run) for run in runs))) for column in facts]
    rows += [
        Row(cells=(name, *values), group="settings that differ")
        for name, values in differing(runs).items()
    ]
    columns = ("", *(printable(run.name) for run in runs))
    return Table(columns=columns, rows=tuple(rows), left=tuple(range(len(columns))))


def differing(runs: Sequence[Listed]) -> dict[str, tuple[str, ...]]:
    """Settings that are not the same in all runs, and are in the rows above already; folders are
    left out.
    """
    said = PLACES | {"method", "workload"}
    names = dict.fromkeys(name for run in runs for name in run.result.settings if name not in said)
    values = {name: tuple(_value(run.result.settings.get(name)) for run in runs) for name in names}
    return {name: found for name, found in values.items() if len(set(found)) > 1}


def _value(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "--"
    if isinstance(value, float):
        return f"{value:.6g}"
    return printable(shown(value) if isinstance(value, str) else value)


PAGE = "runs.html"
POINTS = 60
"""Points of a small curve, about."""
NO_RUNS = "no runs in {}: start one with fedlsg run, or name another folder"
TICKS = 100
"""So many runs of a page, the first ones, can be ticked."""
COMPARED = (
    "Tick two or more runs above: here are their facts, and every setting in which they differ."
)
WHAT = (
    "Epsilon is the largest over the clients of a run, against the readers named next to it. It "
    "covers that run only: it costs more privacy to choose the best of several runs. Bytes are "
    "payloads, up and down. Course: accuracy, or loss, round by round, from its least to its "
    "largest."
)


def runs_command(
    folder: str,
    console: Console,
    *,
    sort: str,
    reverse: bool,
    json: bool,
    compare: Sequence[str],
    html: str | None,
    opens: bool,
) -> None:
    """List the runs of a folder, or compare chosen ones. Raises ValueError for a folder or run that
    is none.
    """
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


def runs_page(
    place: str, runs: Sequence[Listed], ticked: Sequence[Listed], left_out: Sequence[str]
) -> str:
    """The list as a page; its ticked runs are side by side."""
    every = [*ticked, *(run for run in runs if run.path not in {one.path for one in ticked})]
    table, some = list_table(every), every[:TICKS]
    rows = [
        replace(row, spark=course_of(run), ticked=at < len(ticked) if at < TICKS else None)
        for at, (row, run) in enumerate(zip(table.rows, every, strict=True))
    ]
    table = replace(table, rows=tuple(rows), spark="course")
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
