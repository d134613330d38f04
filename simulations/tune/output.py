"""The files of a search: results.csv (a row for each trial), points.csv (for each point), tune.json, report.html."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulations.compare.lines import Line, measured, shown
from simulations.compare.table import unfinished
from simulations.report.facts import made_section
from simulations.report.figure import drawing, png
from simulations.report.page import (
    Code,
    Page,
    Row,
    Section,
    Table,
    Text,
    data_section,
    download,
    facts_of,
    json_text,
    render,
)
from simulations.report.words import human_bytes
from simulations.rundir.files.atomic import write_atomically
from simulations.rundir.results import Result, as_csv
from simulations.tune.axes import Axis
from simulations.tune.plots import scores_by_axis
from simulations.tune.search import Point, Side

CAPTION = (
    "How the accuracy (or the loss) depends on each setting; one mark is one trial. Filled marks: the other settings "
    "have their best values. Hollow marks: all other trials. Red: the best trial. Bars show one standard deviation "
    "over seeds."
)


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search as far as it got. ``best`` is None before the first point; ``finished``: it is bracketed.

    privacy: what choosing costs, in sentences. notes: edges and differences, in sentences. command: the run to start.
    """

    title: str
    rows: str
    axes: Sequence[Axis]
    lines: Mapping[Point, Line]
    best: Point | None
    edges: Mapping[str, Side]
    finished: bool
    privacy: Sequence[str]
    costs: bool
    notes: Sequence[str]
    command: str
    made_by: str

    def settings(self, point: Point) -> dict[str, Any]:
        return {axis.name: axis.values[at] for axis, at in zip(self.axes, point, strict=True)}

    @property
    def results(self) -> list[Result]:
        return [run for line in self.lines.values() for run in line.runs]


def write(folder: Path, search: Search) -> None:
    """All files; those with figures take a second or two."""
    write_tables(folder, search)
    write_atomically(folder / "report.html", page(search).encode())
    if figure := scores_by_axis(search.axes, search.lines, search.best):
        write_atomically(folder / "plots" / "tune.png", png(figure))


def write_tables(folder: Path, search: Search) -> None:
    """results.csv, points.csv and tune.json: milliseconds."""
    trials = [
        {"trial": run.name, **search.settings(point), **run.as_row()}
        for point, line in search.lines.items()
        for run in line.runs
    ]
    points = [_record(search, point) for point in search.lines]
    whole = {
        "title": search.title,
        "rows": search.rows,
        "finished": search.finished,
        "varied": {axis.name: list(axis.values) for axis in search.axes},
        "points": points,
        "best": None if search.best is None else search.settings(search.best),
        "edges": dict(search.edges),
        "notes": list(search.notes),
        "privacy": list(search.privacy),
        "command": search.command,
    }
    write_atomically(folder / "results.csv", as_csv(trials, otherwise="trial").encode())
    write_atomically(folder / "points.csv", points_csv(search).encode())
    write_atomically(folder / "tune.json", json_text(whole))


def points_csv(search: Search) -> str:
    """A row for each point."""
    return as_csv([_record(search, point) for point in search.lines], otherwise="n")


def headline(search: Search) -> str:
    """The best point so far, what it reached, and on which rows."""
    line = None if search.best is None else search.lines.get(search.best)
    if search.best is None or line is None or line.mean is None:
        return "No trial is finished."
    values = ", ".join(f"{name} {_value(value)}" for name, value in search.settings(search.best).items())
    score = f"loss {shown(line, line.mean)}" if line.by_loss else f"{shown(line, line.mean)} % accuracy"
    found = "Best of the trials" if search.finished else "Best so far, and the search is not finished"
    return f"{found}: {values}, with {score} on {search.rows}."


def _record(search: Search, point: Point) -> dict[str, Any]:
    line = search.lines[point]
    return {
        **search.settings(point),
        "n": len(line.done),
        "planned": len(line.runs),
        "accuracy_mean": None if line.by_loss else line.mean,
        "accuracy_sd": None if line.by_loss else line.sd,
        "loss_mean": line.mean_of("loss"),
        "uplink_bytes_per_client_round": line.uplink,
        "wall_seconds": line.seconds,
        "best": point == search.best,
    }


def table(search: Search, points: Collection[Point] | None = None) -> Table:
    """A row for each point, or for some of them, the best first."""
    by_loss = any(line.by_loss for line in search.lines.values())
    ordered = sorted(
        ((point, line) for point, line in search.lines.items() if points is None or point in points),
        key=lambda item: (item[1].mean is None, (item[1].mean or 0.0) * (1 if item[1].by_loss else -1)),
    )
    rows = []
    for point, line in ordered:
        sd = "" if line.sd is None else f" ± {shown(line, line.sd)}"
        score = "--" if line.mean is None else f"{shown(line, line.mean)}{sd}"
        values = tuple(_value(value) for value in search.settings(point).values())
        rest = (
            score,
            f"{len(line.done)}/{len(line.runs)}",
            "--" if line.uplink is None else human_bytes(line.uplink),
            "--" if line.seconds is None else f"{line.seconds:.0f}",
        )
        rows.append(Row(cells=(*values, *rest), style="own" if point == search.best else ""))
    names = tuple(axis.name for axis in search.axes)
    score_name = measured(search.lines.values()).replace("test ", "") if by_loss else "accuracy, %"
    columns = (*names, score_name, "n", "uplink", "seconds")
    optional = tuple(columns.index(name) for name in ("seconds", "n", "uplink"))
    return Table(columns=columns, rows=tuple(rows), left=(), optional=optional)


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def page(search: Search) -> str:
    """The page of a search."""
    done = [run for run in search.results if run.done]
    figure = scores_by_axis(search.axes, search.lines, search.best)
    left = unfinished(list(search.lines.values()))
    return render(
        Page(
            kind="fedlsg tune",
            title=search.title,
            headline=headline(search),
            lead=f"{len(done)} trials, on {search.rows}. "
            + ("The best point is bracketed or at an edge." if search.finished else "The search is not finished."),
            warnings=tuple(search.privacy[:2]) if search.costs else (),
            sections=(
                Section(parts=(table(search), *(Text(words=note) for note in search.notes))),
                *([Section(parts=(drawing(figure, CAPTION),))] if figure else []),
                Section(title="What choosing costs in privacy", parts=tuple(Text(words=w) for w in search.privacy)),
                *([Section(title="Not in the means", parts=(facts_of(left),))] if left else []),
                made_section(
                    done,
                    Code(text=search.made_by),
                    Code(text=search.command, note="The run with the best settings:"),
                ),
                data_section(download("points.csv", points_csv(search).encode(), "a row for each tried setting")),
            ),
        )
    )
