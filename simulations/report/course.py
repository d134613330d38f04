"""The rounds of one run as charts: accuracy or loss, epsilon, bytes, and clients where something happened to them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from math import ceil

from simulations.report.chart import Axis, Chart, Series, guessing
from simulations.report.colours import BLACK, BLUE, GREEN, GREY, ORANGE, RED
from simulations.rundir.tables import Row

ROUND = Axis(label="round", whole=True)
CLIENTS = (("asked", "selected", GREY, "-"), ("answered", "replied", GREEN, "--"), ("rejected", "rejected", RED, ":"))
SIMULATED = (("dropped", "dropped out", ORANGE, "-."), ("late", "late", BLUE, "-."))
"""Columns of rounds.csv, and how the legend names them; the second ones in runs with a simulated clock."""
MOST = 600
"""Points of a line, about: more cannot be told apart, and a page of very many rounds would be large."""


def course(rows: Sequence[Row], chance: float | None) -> tuple[Chart, ...]:
    """``chance``: the accuracy of guessing. Without bytes and clients where counts may not be seen."""
    found = [_tested(rows, chance), _epsilon(rows)]
    if all(row.counted for row in rows):
        found += [_bytes(rows), *_clients(rows)]
    if len(rows) == 1:
        alone = replace(ROUND, low=rows[0].round - 1.0, high=rows[0].round + 1.0)
        found = [replace(chart, x=alone) for chart in found]
    return tuple(found)


def _tested(rows: Sequence[Row], chance: float | None) -> Chart:
    """Accuracy; the loss where targets are no classes."""
    measured = [(row.round, 100 * row.accuracy) for row in rows if row.accuracy is not None]
    losses = [] if measured else [(row.round, row.loss) for row in rows if row.loss is not None]
    line = thinned(Series(x=[at for at, _ in measured or losses], y=[value for _, value in measured or losses]))
    levels = () if chance is None else (guessing(100 * chance),)
    if losses:
        return Chart(title="test loss", x=ROUND, series=(line, *levels), height=300)
    top = 100.0 if any(value > 80 for _, value in measured) else None  # else the axis ends at 120 %
    return Chart(title="test accuracy, %", x=ROUND, y=Axis(unit="%", high=top), series=(line, *levels), height=300)


def _epsilon(rows: Sequence[Row]) -> Chart:
    """What the largest client spent, and the median one where it spent less."""
    lines = [("largest client", RED, "-", [row.epsilon_max for row in rows])]
    median = [row.epsilon_median for row in rows]
    lines += [] if median == lines[0][3] else [("median client", BLACK, "--", median)]
    return Chart(
        title="epsilon so far", x=ROUND, note="no finite epsilon", height=300,
        series=tuple(_line(rows, *one) for one in lines),
    )  # fmt: skip


def _bytes(rows: Sequence[Row]) -> Chart:
    lines = []
    for name, colour, dashes in (("uplink", BLUE, "-"), ("downlink", ORANGE, "--")):
        sums = list(accumulate(getattr(row, f"{name}_bytes") for row in rows))
        lines.append(_line(rows, name, colour, dashes, sums))
    return Chart(
        title="payload bytes so far, all clients", x=ROUND, y=Axis(unit="bytes", low=0), series=tuple(lines), height=300
    )


def _clients(rows: Sequence[Row]) -> list[Chart]:
    """Nothing where all selected clients replied in every round."""
    timed = SIMULATED if any(row.simulated for row in rows) else ()
    counts = {name: [len(str(row.columns.get(name, "")).split()) for row in rows] for name, *_ in (*CLIENTS, *timed)}
    if len(set(counts["asked"])) < 2 and counts["asked"] == counts["answered"] and not any(counts["rejected"]):
        return []
    lines = [_line(rows, label, colour, dashes, counts[name]) for name, label, colour, dashes in (*CLIENTS, *timed)]
    return [Chart(title="clients in each round", x=ROUND, y=Axis(low=0, whole=True), series=tuple(lines), height=300)]


def _line(rows: Sequence[Row], name: str, colour: str, dashes: str, values: Iterable[float]) -> Series:
    return thinned(Series(name=name, x=[row.round for row in rows], y=list(values), colour=colour, dashes=dashes))


def thinned(line: Series) -> Series:
    """A line of many points with the lowest and the highest of each stretch, so that no peak is lost, and both ends."""
    x, y = line.x, [0.0 if value is None else value for value in line.y]
    if len(x) <= MOST:
        return line
    size, kept = ceil(2 * len(x) / MOST), {0, len(x) - 1}
    for start in range(0, len(x), size):
        stretch = range(start, min(start + size, len(x)))
        kept |= {min(stretch, key=y.__getitem__), max(stretch, key=y.__getitem__)}
    return replace(line, x=[x[place] for place in sorted(kept)], y=[y[place] for place in sorted(kept)])
