"""``fedlsg runs``: the runs of a folder as a list, and chosen ones side by side.

The folders may come from anybody. They are read as ``fedlsg report`` reads them: no code of a run
is executed, no link is followed out of a run, and an unreadable run is named and left out.
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
"""Levels of folders that are searched: runs, comparisons, and their cells."""
READERS = {
    "client": "everybody",
    "secure": "the sum's readers",
    "aggregate": "the sum's readers",
    "server": "outside",
}
"""By ``trust``, against whom epsilon holds; a finished secure sum has better words in its summary.
"""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One run of a list.

    name: its path below the folder.
    path: its directory.
    state: finished, running, or the status of its results.
    result: settings, rounds and summary.
    began: seconds since 1970; None if it is secret.
    """

    name: str
    path: Path
    state: str
    result: Result
    began: float | None

    @property
    def epsilon(self) -> float | None:
        """The claimed epsilon; None for runs without privacy, and before the first round."""
        run = self.result
        claims = run.private if run.done else run.noisy and not run.settings.get("reproducible")
        return run.epsilon_max if claims else None

    @property
    def reader(self) -> str:
        """Against whom epsilon holds."""
        trust = str(self.result.settings.get("trust", "client"))
        reader = ""
        if self.result.done:
            reader = strongest(self.result.summary).removeprefix(" against ")
        reader = reader or READERS.get(trust, trust)
        level = unit_in(self.result.settings).level
        return f"{reader}, {level}" if level else reader

    @property
    def bytes(self) -> int | None:
        """Payload bytes up and down; None if a trusted server keeps them secret."""
        rows = self.result.rows
        if not all(row.shows_participation for row in rows):
            return None
        return sum(row.uplink_bytes + row.downlink_bytes for row in rows)

    @property
    def seconds(self) -> float | None:
        """Seconds of the whole run; None before its end."""
        seconds = self.result.summary.get("wall_seconds")
        return None if seconds is None else float(seconds)


def _epsilon(run: Listed) -> str:
    """The claimed epsilon in words."""
    if run.epsilon is None:
        return NOT_PRIVATE if run.result.done or not run.result.noisy else "--"
    return epsilon_words(run.epsilon) + ("" if run.result.done else " so far")


def _score(run: Listed) -> str:
    """The accuracy in words; without classes, the last loss."""
    if run.result.accuracy is not None or not (losses := course_of(run)):
        return percent(run.result.accuracy)
    return f"loss {losses[-1]:.3g}"


def course_of(run: Listed) -> tuple[float, ...]:
    """The accuracy over rounds, without classes the loss; about ``CURVE_POINTS`` values."""
    rows = run.result.rows
    accuracies = [row.accuracy for row in rows if row.accuracy is not None]
    curve = accuracies or [row.loss for row in rows if row.loss is not None]
    step = max(1, len(curve) // CURVE_POINTS)
    return tuple(curve[::-step][::-1])  # from the end, so that the last value is kept


def time_words(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d\N{NO-BREAK SPACE}%H:%M}"


def _setting(name: str) -> Callable[[Listed], str]:
    return lambda run: shown(str(run.result.settings.get(name, "")))


def words_column(name: str, value: Callable[[Listed], str], optional: int = 0) -> Column:
    """A column of words from a run, which may be anybody's: they are made printable."""
    return Column(
        name, value, key=name, words=lambda run: printable(value(run)), left=True, optional=optional
    )


COLUMNS = (
    words_column("run", lambda run: run.name),
    Column("state", lambda run: run.state, key="state", left=True),
    words_column("method", _setting("method"), optional=5),
    words_column("workload", _setting("workload"), optional=4),
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
    Column("began", lambda run: run.began, time_words, "began", left=True, optional=1),
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
"""By name of an order: the value of a run, and whether the largest comes first."""


def find_runs(folder: Path) -> list[Path]:
    """Run directories in a folder, which may be one itself. Raises ValueError for no folder."""
    if not folder.is_dir():
        why = "is a file" if folder.exists() else "does not exist"
        raise ValueError(
            f"there are no runs: the folder {folder.absolute()} {why}. Go to the folder in which "
            "you called fedlsg run, or name the folder of your runs: fedlsg runs FOLDER"
        )
    runs: list[Path] = []
    waiting = [(folder, 0)]
    while waiting:
        directory, depth = waiting.pop()
        if (directory / "config.toml").exists():
            runs.append(directory)
        elif depth < DEPTH:
            with suppress(OSError):
                waiting += [
                    (inner, depth + 1)
                    for inner in directory.iterdir()
                    if inner.is_dir() and not inner.is_symlink()
                ]
    return sorted(runs)


def read_all(folder: Path, say: Say) -> list[Listed]:
    """Every run of a folder that can be read; ``say`` gets a line about each other one."""
    runs = []
    for path in find_runs(folder):
        name = name_in_list(folder, path)
        try:
            runs.append(listed(path, name))
        except Exception as error:  # a damaged run must not hide the others
            why = " ".join(str(error).split()) or type(error).__name__
            say(printable(f"left out: {name}: {why}"))
    return runs


def name_in_list(folder: Path, path: Path) -> str:
    """The name of a run in the list of a folder."""
    if path == folder:
        return path.name
    return path.relative_to(folder).as_posix().replace(f"/{CELLS}/", "/")


def listed(path: Path, name: str) -> Listed:
    """One run of a list. Raises any error for a damaged run."""
    result = read_run(path)
    state = "finished" if result.status == "done" else result.status
    if not result.summary and is_held(RunDir(path)):
        state = "running"
    secret = result.settings.get("trust") == "server"
    began = None if secret else began_at(path)
    run = Listed(name=name, path=path.resolve(), state=state, result=result, began=began)
    list_table([run])  # raises for values of an unexpected type
    return run


def began_at(path: Path) -> float:
    """The time of the run's first event, which a copy keeps; else that of its settings."""
    # a record: length (8 bytes), its checksum (4), then the field wall_time: its tag (1), a double
    try:
        with (path / EVENTS).open("rb") as file:
            began = float(struct.unpack_from("<d", file.read(21), 13)[0])
    except (OSError, struct.error):
        began = 0.0
    return began if began > 0 else (path / "config.toml").stat().st_mtime


def in_order(runs: Iterable[Listed], by: str, *, reverse: bool = False) -> list[Listed]:
    """The runs sorted by a value; those without one (None, NaN) are last.

    Raises ValueError for an unknown order, with the known ones.
    """
    value_of, largest_first = choose("sort", by, ORDERS)
    with_value: list[Listed] = []
    others: list[Listed] = []
    for run in runs:
        value = value_of(run)
        is_missing = value is None or value != value
        (others if is_missing else with_value).append(run)
    return sorted(with_value, key=value_of, reverse=largest_first != reverse) + others


def list_table(runs: Sequence[Listed]) -> Table:
    """A table with a row for each run."""
    return make_table(
        COLUMNS, runs, style=lambda run: "" if run.epsilon is not None else "no-epsilon"
    )


def chosen(folder: Path, names: Sequence[str], say: Say) -> list[Listed]:
    """Runs by their names in the list, or by paths.

    Raises ValueError for a name that is neither, and for files that changed since they were read.
    """
    runs = []
    for name in names:
        paths = [
            path
            for path in (folder / name, Path(name).expanduser())
            if (path / "config.toml").exists()
        ]
        if not paths and folder.is_dir():
            paths = [
                path
                for path in find_runs(folder)
                if name in (path.name, name_in_list(folder, path))
            ]
        if not paths:
            raise ValueError(
                f"unknown run {name!r}: expected a name of fedlsg runs {folder}, or a run directory"
            )
        open_run(paths[0], RESULTS, lambda line: say(printable(line)))
        runs.append(listed(paths[0], name))
    return runs


def compare_table(runs: Sequence[Listed]) -> Table:
    """Runs side by side, a column each: facts of the list, and settings in which they differ."""
    facts = [column for column in COLUMNS if column.name and column.name != "run"]
    rows = [Row(cells=(column.name, *(column.shown(run) for run in runs))) for column in facts]
    rows += [
        Row(cells=(name, *values), group="settings that differ")
        for name, values in differing(runs).items()
    ]
    columns = ("", *(printable(run.name) for run in runs))
    return Table(columns=columns, rows=tuple(rows), left=tuple(range(len(columns))))


def differing(runs: Sequence[Listed]) -> dict[str, tuple[str, ...]]:
    """Settings that differ between the runs, in words.

    Folders are left out, and settings with a row of facts: method and workload.
    """
    left_out = PLACES | {"method", "workload"}
    names = dict.fromkeys(name for run in runs for name in run.result.settings)
    settings = {}
    for name in names:
        values = tuple(value_words(run.result.settings.get(name)) for run in runs)
        if name not in left_out and len(set(values)) > 1:
            settings[name] = values
    return settings


def value_words(value: object) -> str:
    """The value of a setting in words."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "--"
    if isinstance(value, float):
        return f"{value:.6g}"
    return printable(shown(value) if isinstance(value, str) else value)


PAGE = "runs.html"
CURVE_POINTS = 60
"""A small curve has between this and twice this many points."""
NO_RUNS = "no runs in {}: start one with fedlsg run, or name another folder"
MAX_TICKABLE = 100
"""Runs of a page that can be ticked: the first ones."""
COMPARED_NOTE = (
    "Tick two or more runs above: here are their facts, and every setting in which they differ."
)
NOT_ADDED_UP = (
    "Each epsilon is of its run alone. Several runs on the same rows, such as tries of which the "
    "best is kept, cost up to the sum of their epsilons and deltas."
)
LIST_NOTE = (
    "Epsilon is the largest over the clients of a run, against the readers named next to it. "
    f"{NOT_ADDED_UP} Bytes are payloads, up and down. Course: accuracy, or loss, round by round, "
    "from its least to its largest."
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
    """List the runs of a folder, or compare chosen ones.

    sort: name of an order.
    reverse: whether that order is reversed.
    json: whether to print JSON for programs.
    compare: names or paths of the chosen runs.
    html: file of a page; None: no page, or the default one if ``opens``.
    opens: whether to open the page.

    Raises ValueError for no folder, no run, or an unknown order.
    """
    place = Path(folder).expanduser()
    left_out: list[str] = []
    ticked = chosen(place, compare, left_out.append)
    needs_all = not ticked or html or opens
    every_run = read_all(place, left_out.append) if needs_all else []
    runs = in_order(every_run, sort, reverse=reverse)
    if json:
        console.out(json_text(records(COLUMNS, ticked or runs)).decode(), end="", highlight=False)
    elif ticked:
        print_table(compare_table(ticked), console)
    elif runs:
        print_table(list_table(runs), console)
        if sum(run.epsilon is not None for run in runs) > 1:
            print_note(NOT_ADDED_UP, console)
    else:
        print_line(NO_RUNS.format(printable(place)), console)
    for line in left_out:
        print_line(line, Console(stderr=True) if json else console, "yellow")
    if html or opens:
        file = Path(html).expanduser() if html else place / PAGE
        with writing_to(file.parent):
            title = printable(place if place.name else place.resolve().name)
            write_atomically(file, runs_page(title, runs, ticked, left_out).encode())
        print_whole(f"page  {printable(file)}", console)
        if opens and not open_file(file):
            print_note("no browser was found: open this file in one", console)


def runs_page(
    place: str, runs: Sequence[Listed], ticked: Sequence[Listed], left_out: Sequence[str]
) -> str:
    """The list as a page, the ticked runs first; the page shows ticked runs side by side.

    place: the folder in words.
    """
    ticked_paths = {run.path for run in ticked}
    every = [*ticked, *(run for run in runs if run.path not in ticked_paths)]
    table = list_table(every)
    rows = [
        replace(
            row, spark=course_of(run), ticked=index < len(ticked) if index < MAX_TICKABLE else None
        )
        for index, (row, run) in enumerate(zip(table.rows, every, strict=True))
    ]
    table = replace(table, rows=tuple(rows), spark="course")
    compared = replace(compare_table(every[:MAX_TICKABLE]), chosen=True)
    return render(
        Page(
            kind="fedlsg runs",
            title=f"Runs in {place}",
            lead=f"{len(every)} runs. Tick two or more to see them side by side.",
            advice=tuple(left_out),
            sections=(
                Section(title="Runs", parts=(table, Text(words=LIST_NOTE, style="note"))),
                Section(
                    title="Side by side", parts=(compared, Text(words=COMPARED_NOTE, style="note"))
                ),
            ),
        )
    )
