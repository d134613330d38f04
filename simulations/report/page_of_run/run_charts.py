"""The charts of one run: what was measured round by round, and against what it cost.

``course`` is all of them, for notebooks and papers; a page shows ``quality`` and ``costs`` where it
asks for them.
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
CLIENTS = (
    ("asked", "selected", GREY, "-"),
    ("answered", "replied", GREEN, "--"),
    ("rejected", "no update", RED, ":"),
)
SIMULATED = (("dropped", "dropped out", ORANGE, "-."), ("late", "late", BLUE, "-."))
"""Columns of rounds.csv, and how the legend names them; the second ones in runs with a simulated
clock.
"""
MAX_LINE_POINTS = 600
"""Points of a line, about: more cannot be told apart, and a page of very many rounds would be
large.
"""


class Curve(NamedTuple):
    """One measured quantity over the rounds in which it was measured.

    references: lines at what guessing, or predicting the mean, reaches, and a run without privacy.
    percent: shares, which are drawn in percent.
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
        top = 100.0 if max(self.values, default=0.0) > 80 else None  # else it ends at 120 %
        return Axis(label=f"{self.name}, %", unit="%", high=top)


def course(result: Result) -> Charts:
    """All charts of a run; none before its first round."""
    return (*quality(result), *costs(result), *clients(result))


def curves(result: Result, against: Result | None = None) -> list[Curve]:
    """What was measured on the test split: accuracy if there are classes, loss, the workload's own
    metrics.
    """
    mean = result.summary.get("predict_the_mean", {})
    found = [accuracy_curve(result, against)] if result.accuracy is not None else []
    for name in result.rows[-1].metrics if result.rows else ():
        at = mean.get("metrics", {}).get(name)
        found.append(_curve(name, result.rows, [row.metrics.get(name) for row in result.rows], at))
    losses = [row.loss for row in result.rows]
    loss = _curve("test loss", result.rows, losses, mean.get("loss"))
    found.insert(1 if result.accuracy is not None else 0, loss)
    return [one for one in found if one.rounds]


def _curve(name: str, rows: Rows, values: Iterable[float | None], mean: float | None) -> Curve:
    known = [
        (row.round, value) for row, value in zip(rows, values, strict=True) if is_number(value)
    ]
    lines = () if mean is None else (level(mean, PREDICT_THE_MEAN, GREY, ":", direct=True),)
    return Curve(name, [at for at, _ in known], [value for _, value in known], lines)


def accuracy_curve(result: Result, against: Result | None = None) -> Curve:
    """Accuracy in percent, with the line of guessing, and that of ``against``."""
    known = [(row.round, 100 * row.accuracy) for row in result.rows if row.accuracy is not None]
    lines = () if result.chance is None else (guessing(100 * result.chance.level),)
    if against is not None and against.accuracy is not None:
        lines = (level(100 * against.accuracy, "without privacy", GREEN, direct=True), *lines)
    name = "accuracy on held-out rows" if result.held_out else "test accuracy"
    return Curve(name, [at for at, _ in known], [value for _, value in known], lines, percent=True)


def quality(result: Result, against: Result | None = None) -> Charts:
    """A chart of each measured quantity round by round; ``against``: a run without privacy."""
    x, found = round_axis(result), []
    for curve in curves(result, against):
        line = thinned(Series(x=curve.rounds, y=curve.values))
        title = f"{_title(curve)} round by round"
        series = (line, *curve.references)
        found.append(Chart(title=title, x=x, y=curve.axis, series=series, height=HEIGHT))
    return tuple(found)


def costs(result: Result) -> Charts:
    """The score, which is accuracy or loss, against the epsilon and the bytes that it took.

    Nothing against an epsilon that is not claimed, nor against bytes that may not be seen.
    """
    measured = curves(result)
    if not measured:
        return ()
    curve, by_round = measured[0], {row.round: row for row in result.rows}
    rows = [by_round[at] for at in curve.rounds]
    found = []
    if all(math.isfinite(row.epsilon_max) for row in rows):
        found.append(_against_epsilon(result, curve, [row.epsilon_max for row in rows]))
    if all(row.shows_participation for row in result.rows) and any(
        row.uplink_bytes for row in result.rows
    ):
        found.append(_against_bytes(result.rows, curve))
    return tuple(found)


def _against_epsilon(result: Result, curve: Curve, spent: Sequence[float]) -> Chart:
    protects = unit_in(result.settings).protects
    delta = result.settings.get("delta")
    at = "" if delta is None else f", at delta {delta:g}"
    series = [thinned(Series(x=spent, y=curve.values, colour=RED)), *curve.references]
    budget = result.epsilon_target
    if budget is not None and budget > 1.01 * spent[-1]:
        series.append(level(budget, "budget", GREY, upright=True, direct=True))
    title = f"{_title(curve)} for the privacy spent"
    x = Axis(label=f"epsilon of {protects}{at}", low=0.0)
    return Chart(title=title, x=x, y=curve.axis, series=series, height=HEIGHT)


def _against_bytes(rows: Rows, curve: Curve) -> Chart:
    up = list(accumulate(row.uplink_bytes for row in rows))
    both = list(accumulate(row.uplink_bytes + row.downlink_bytes for row in rows))
    measured = frozenset(curve.rounds)
    at = [place for place, row in enumerate(rows) if row.round in measured]
    lines = [
        thinned(
            Series(
                name=name,
                x=[sums[place] for place in at],
                y=curve.values,
                colour=colour,
                dashes=dashes,
            )
        )
        for name, sums, colour, dashes in (
            ("sent", up, BLUE, "-"),
            ("sent and received", both, ORANGE, "--"),
        )
    ]
    x = Axis(label="payload bytes of all clients", unit="bytes", low=0.0)
    title = f"{_title(curve)} for the bytes moved"
    series = (*lines, *curve.references)
    return Chart(title=title, x=x, y=curve.axis, series=series, height=HEIGHT)


def _title(curve: Curve) -> str:
    return "Loss" if curve.name == "test loss" else "Accuracy" if curve.percent else curve.name


def clients(result: Result) -> Charts:
    """Selected clients, those that replied and those without an update; nothing where all selected
    ones replied in every round, or counts may not be seen.
    """
    rows = result.rows
    if not rows or not all(row.shows_participation for row in rows):
        return ()
    timed = SIMULATED if any(row.simulated for row in rows) else ()
    counts = {
        name: [len(str(row.columns.get(name, "")).split()) for row in rows]
        for name, *_ in (*CLIENTS, *timed)
    }
    if (
        len(set(counts["asked"])) < 2
        and counts["asked"] == counts["answered"]
        and not any(counts["rejected"])
    ):
        return ()
    lines = [
        thinned(
            Series(
                name=label,
                x=[row.round for row in rows],
                y=counts[name],
                colour=colour,
                dashes=dashes,
            )
        )
        for name, label, colour, dashes in (*CLIENTS, *timed)
    ]
    y = Axis(label="clients", low=0, whole=True)
    title = "Clients in each round"
    return (Chart(title=title, x=round_axis(result), y=y, series=lines, height=HEIGHT),)


def round_axis(result: Result) -> Axis:
    """Rounds across: a single one is in the middle, and one that goes on sees how far it is to
    go.
    """
    rows, planned = result.rows, result.settings.get("rounds")
    if result.status == "running" and isinstance(planned, int) and planned > 1:
        return replace(ROUND, low=0.0, high=float(planned))
    if len(rows) != 1:
        return ROUND
    return replace(ROUND, low=rows[0].round - 1.0, high=rows[0].round + 1.0)


def thinned(line: Series) -> Series:
    """A line of many points with the lowest and the highest of each stretch, so that no peak is
    lost, and both ends.
    """
    x, y = line.x, [0.0 if value is None else value for value in line.y]
    if len(x) <= MAX_LINE_POINTS:
        return line
    size, kept = ceil(2 * len(x) / MAX_LINE_POINTS), {0, len(x) - 1}
    for start in range(0, len(x), size):
        stretch = range(start, min(start + size, len(x)))
        kept |= {min(stretch, key=y.__getitem__), max(stretch, key=y.__getitem__)}
    return replace(
        line, x=[x[place] for place in sorted(kept)], y=[y[place] for place in sorted(kept)]
    )
