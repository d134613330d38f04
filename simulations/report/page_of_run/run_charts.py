"""The charts of one run: what was measured round by round, and against its cost.

``course`` has all of them, for notebooks and papers. A page has ``quality``, ``costs`` and
``clients`` in different sections.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from math import ceil
from typing import NamedTuple

from fedlsg.config.units import unit_in
from fedlsg.simulations.report.drawing.chart import (
    PREDICT_THE_MEAN,
    Axis,
    Chart,
    Series,
    guessing,
    is_number,
    level,
)
from fedlsg.simulations.report.drawing.colours import BLUE, GREEN, GREY, ORANGE, RED
from fedlsg.simulations.storage.results import Result
from fedlsg.simulations.storage.round_tables import Row

Rows = Sequence[Row]
"""Rounds in their order."""
Charts = tuple[Chart, ...]
ROUND = Axis(label="round", whole=True)
HEIGHT = 300
"""CSS pixels of a chart."""
CLIENTS = (
    ("asked", "selected", GREY, "-"),
    ("answered", "replied", GREEN, "--"),
    ("rejected", "no update", RED, ":"),
)
"""Columns of rounds.csv, with their names in the legend, colours and line styles."""
SIMULATED = (("dropped", "dropped out", ORANGE, "-."), ("late", "late", BLUE, "-."))
"""The same for more columns of runs with a simulated clock."""
MAX_LINE_POINTS = 600
"""About the most points of a line: more cannot be distinguished, and make a page large."""
FAR_BUDGET = 1.01
"""A budget is drawn if it is more than this many times the epsilon that was spent."""


class Curve(NamedTuple):
    """One measured quantity over the rounds in which it was measured.

    name: of the quantity.
    rounds, values: the rounds, and the value in each.
    references: lines at what guessing, predicting the mean or a run without privacy reaches.
    percent: values are in percent.
    """

    name: str
    rounds: list[int]
    values: list[float]
    references: tuple[Series, ...] = ()
    percent: bool = False

    @property
    def axis(self) -> Axis:
        """The axis of its values, with its unit."""
        if not self.percent:
            return Axis(label=self.name)
        # above 80 % the next round number of the drawing may be 120 %
        top = 100.0 if max(self.values, default=0.0) > 80 else None
        return Axis(label=f"{self.name}, %", unit="%", high=top)


def course(result: Result) -> Charts:
    """All charts of a run; none before its first round."""
    return (*quality(result), *costs(result), *clients(result))


def curves(result: Result, against: Result | None = None) -> list[Curve]:
    """Curves of what was measured on the test split: accuracy with classes, loss, then metrics."""
    rows = result.rows
    mean = result.summary.get("predict_the_mean", {})
    made = [accuracy_curve(result, against)] if result.accuracy is not None else []
    made.append(_curve("test loss", rows, [row.loss for row in rows], mean.get("loss")))
    for name in rows[-1].metrics if rows else ():
        values = [row.metrics.get(name) for row in rows]
        made.append(_curve(name, rows, values, mean.get("metrics", {}).get(name)))
    return [curve for curve in made if curve.rounds]


def _curve(name: str, rows: Rows, values: Iterable[float | None], mean: float | None) -> Curve:
    """The curve of the values that can be drawn; ``mean``: what predicting the mean reaches."""
    points = [
        (row.round, value) for row, value in zip(rows, values, strict=True) if is_number(value)
    ]
    lines = () if mean is None else (level(mean, PREDICT_THE_MEAN, GREY, ":", direct=True),)
    return Curve(name, [number for number, _ in points], [value for _, value in points], lines)


def accuracy_curve(result: Result, against: Result | None = None) -> Curve:
    """Accuracy in percent, with the line of guessing, and that of ``against``."""
    rows = [row for row in result.rows if row.accuracy is not None]
    lines = () if result.chance is None else (guessing(100 * result.chance.level),)
    if against is not None and against.accuracy is not None:
        lines = (level(100 * against.accuracy, "without privacy", GREEN, direct=True), *lines)
    name = "accuracy on held-out rows" if result.held_out else "test accuracy"
    values = [100 * row.accuracy for row in rows if row.accuracy is not None]
    return Curve(name, [row.round for row in rows], values, lines, percent=True)


def quality(result: Result, against: Result | None = None) -> Charts:
    """A chart of each measured quantity round by round; ``against``: a run without privacy."""
    charts = []
    for curve in curves(result, against):
        line = thin(Series(x=curve.rounds, y=curve.values))
        title = f"{_title(curve)} round by round"
        charts.append(_chart(title, round_axis(result), curve, [line]))
    return tuple(charts)


def _chart(title: str, x: Axis, curve: Curve, lines: Sequence[Series]) -> Chart:
    """A chart of lines of a curve's values, with its references."""
    series = (*lines, *curve.references)
    return Chart(title=title, x=x, y=curve.axis, series=series, height=HEIGHT)


def costs(result: Result) -> Charts:
    """The score, which is accuracy or loss, against the epsilon and the bytes that it took.

    There is no chart against an epsilon that is not claimed, or against bytes that are secret.
    """
    measured = curves(result)
    if not measured:
        return ()
    curve, by_round = measured[0], {row.round: row for row in result.rows}
    spent = [by_round[number].epsilon_max for number in curve.rounds]
    charts = []
    if all(map(math.isfinite, spent)):
        charts.append(_against_epsilon(result, curve, spent))
    shows_bytes = all(row.shows_participation for row in result.rows)
    if shows_bytes and any(row.uplink_bytes for row in result.rows):
        charts.append(_against_bytes(result.rows, curve))
    return tuple(charts)


def _against_epsilon(result: Result, curve: Curve, spent: Sequence[float]) -> Chart:
    """A curve over the epsilon that was spent until each of its rounds, with the budget."""
    protects = unit_in(result.settings).protects
    delta = result.settings.get("delta")
    at = "" if delta is None else f", at delta {delta:g}"
    lines = [thin(Series(x=spent, y=curve.values, colour=RED))]
    budget = result.epsilon_target
    if budget is not None and budget > FAR_BUDGET * spent[-1]:
        lines.append(level(budget, "budget", GREY, upright=True, direct=True))
    x = Axis(label=f"epsilon of {protects}{at}", low=0.0)
    return _chart(f"{_title(curve)} for the privacy spent", x, curve, lines)


def _against_bytes(rows: Rows, curve: Curve) -> Chart:
    """A curve over all bytes until each of its rounds: sent, and sent and received."""
    measured = frozenset(curve.rounds)
    up = accumulate(row.uplink_bytes for row in rows)
    both = accumulate(row.uplink_bytes + row.downlink_bytes for row in rows)
    lines = []
    for name, sums, colour, dashes in (
        ("sent", up, BLUE, "-"),
        ("sent and received", both, ORANGE, "--"),
    ):
        x = [total for row, total in zip(rows, sums, strict=True) if row.round in measured]
        lines.append(thin(Series(name=name, x=x, y=curve.values, colour=colour, dashes=dashes)))
    axis = Axis(label="payload bytes of all clients", unit="bytes", low=0.0)
    return _chart(f"{_title(curve)} for the bytes moved", axis, curve, lines)


def _title(curve: Curve) -> str:
    """The name of a curve's quantity at the beginning of a title."""
    if curve.name == "test loss":
        return "Loss"
    return "Accuracy" if curve.percent else curve.name


def clients(result: Result) -> Charts:
    """A chart of selected clients, of those that replied and of those without an update.

    There is none if all selected clients replied in every round, or if their numbers are secret.
    """
    rows = result.rows
    if not rows or not all(row.shows_participation for row in rows):
        return ()
    x = [row.round for row in rows]
    counts, lines = dict[str, list[int]](), []
    for name, label, colour, dashes in (
        *CLIENTS,
        *(SIMULATED if any(row.simulated for row in rows) else ()),
    ):
        counts[name] = [len(str(row.columns.get(name, "")).split()) for row in rows]
        lines.append(thin(Series(name=label, x=x, y=counts[name], colour=colour, dashes=dashes)))
    all_replied = counts["asked"] == counts["answered"] and not any(counts["rejected"])
    if all_replied and len(set(counts["asked"])) < 2:
        return ()
    y = Axis(label="clients", low=0, whole=True)
    title = "Clients in each round"
    return (Chart(title=title, x=round_axis(result), y=y, series=lines, height=HEIGHT),)


def round_axis(result: Result) -> Axis:
    """The axis of rounds: a single round is in the middle; a run that goes on has all of them."""
    rows, planned = result.rows, result.settings.get("rounds")
    if result.status == "running" and isinstance(planned, int) and planned > 1:
        return replace(ROUND, low=0.0, high=float(planned))
    if len(rows) != 1:
        return ROUND
    return replace(ROUND, low=rows[0].round - 1.0, high=rows[0].round + 1.0)


def thin(line: Series) -> Series:
    """A line with at most about MAX_LINE_POINTS of its points.

    It keeps both ends, and the lowest and the highest point of each stretch, so that no peak is
    lost.
    """
    x, y = line.x, [0.0 if value is None else value for value in line.y]
    if len(x) <= MAX_LINE_POINTS:
        return line
    size = ceil(2 * len(x) / MAX_LINE_POINTS)
    kept = {0, len(x) - 1}
    for start in range(0, len(x), size):
        stretch = range(start, min(start + size, len(x)))
        kept |= {min(stretch, key=y.__getitem__), max(stretch, key=y.__getitem__)}
    places = sorted(kept)
    return replace(line, x=[x[place] for place in places], y=[y[place] for place in places])
