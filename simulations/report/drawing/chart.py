"""A figure as data: charts, which hold series. A browser draws them, ``still`` where no script
runs.

A chart says what is drawn. Nothing here draws: ``figure.plot`` makes a figure of matplotlib, for
notebooks and files.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeGuard

from fedlsg.simulations.report.drawing.colours import BLUE, GREY

Kind = Literal["line", "band", "bar", "level", "upright"]
Unit = Literal["", "bytes", "%"]
Values = Sequence[float | None]

GUESSING = "guessing"
PREDICT_THE_MEAN = "predicting the mean"
REFERENCES = (GUESSING, PREDICT_THE_MEAN)
"""What every model has to be better than: the last entry of a legend."""
MAX_DESCRIBED_SERIES = 12
"""Series of a chart that its words describe."""
LETTERS_ACROSS = 60
"""Letters that fit below a chart."""
MAX_DRAWN_NUMBER = 1e100
"""Larger numbers are not drawn: an axis has to reach beyond them, and a browser does not end with
an axis of 1e308.
"""
DASHES = {"-": (), "--": (6, 3), ":": (2, 3), "-.": (7, 3, 2, 3)}
"""Pixels of dashes and gaps."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis.

    ticks: (place, name) in place of numbers, all of them.
    low, high: where it ends, if not at the data.
    whole: ticks are whole numbers only.
    down: numbers grow downwards.
    """

    label: str = ""
    log: bool = False
    unit: Unit = ""
    ticks: tuple[tuple[float, str], ...] = ()
    low: float | None = None
    high: float | None = None
    whole: bool = False
    down: bool = False


class Point(NamedTuple):
    """A point that can be drawn, and the ends of its error bars, or those of its bar."""

    x: float
    y: float
    low: Any = None
    high: Any = None
    left: Any = None
    right: Any = None


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one name, or a reference: a ``level`` is a line across at ``y``, an ``upright`` one
    up at ``x``.

    name: in the legend; an empty name is not there.
    low, high: ends of error bars, or of a band around ``y``.
    left, right: ends of error bars across.
    kind: bars of one chart are stacked.
    marker: matplotlib's name of the points' marker, see ``OUTLINES``; empty: none.
    filled: markers are filled with the colour, not with white.
    line: points are joined.
    steps: joined by a staircase that changes after each point.
    words: one text for each point, shown next to its numbers.
    direct: a reference has its name on its line, not in the legend.
    """

    name: str = ""
    x: Values = ()
    y: Values = ()
    low: Values = ()
    high: Values = ()
    left: Values = ()
    right: Values = ()
    kind: Kind = "line"
    colour: str = BLUE
    dashes: str = "-"
    marker: str = ""
    filled: bool = True
    line: bool = True
    steps: bool = False
    words: tuple[str, ...] = ()
    direct: bool = False

    @property
    def points(self) -> list[Point]:
        """Those with two numbers."""
        ends = (
            end or (None,) * len(self.x) for end in (self.low, self.high, self.left, self.right)
        )
        columns: Iterable[Values] = (self.x, self.y, *ends)
        return [
            Point(*p) for p in zip(*columns, strict=False) if is_number(p[0]) and is_number(p[1])
        ]

    @property
    def place(self) -> float | None:
        """Where a reference is; None for points."""
        return (self.y or self.x)[0] if self.kind in ("level", "upright") else None

    @property
    def patch(self) -> bool:
        """Whether a legend shows a patch of its colour."""
        return self.kind in ("bar", "band")

    @property
    def dashed(self) -> str:
        """Pixels of dashes and gaps, as SVG has them."""
        return " ".join(map(str, DASHES[self.dashes]))

    @property
    def outline(self) -> str:
        """The marker as a path of SVG; empty without one."""
        return OUTLINES.get(self.marker, "")


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One pair of axes. ``height`` in CSS pixels on a page; ``note`` is written where no series has
    a point. ``spread``: what error bars and bands are, for files, which have no caption.
    """

    title: str
    x: Axis = Axis()
    y: Axis = Axis()
    series: Sequence[Series]
    height: int = 280
    note: str = ""
    spread: str = ""

    @property
    def has_bars(self) -> bool:
        """Whether a series of it is bars."""
        return any(one.kind == "bar" for one in self.series)

    @property
    def empty_note(self) -> str:
        """The note, if no line has a point."""
        drawn = any(is_number(y) for one in self.series if one.kind == "line" for y in one.y)
        return "" if drawn else self.note

    def stacked(self) -> Iterator[tuple[Series, list[Point]]]:
        """Each series with its points; those of bars have the ends of their bars."""
        below: dict[float, float] = {}
        for one in self.series:
            points = one.points
            if one.kind == "bar":
                half = 0.48 * min(
                    (b - a for a, b in pairwise(sorted({p.x for p in points}))), default=1.0
                )
                points = []
                for x, y, *_ in one.points:
                    low = below.get(x, 0.0)
                    below[x] = low + y
                    points.append(Point(x, y, low, below[x], x - half, x + half))
            yield one, points


OUTLINES = {
    "o": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
    "s": "M-4 -4H4V4H-4Z",
    "D": "M0 -5L5 0L0 5L-5 0Z",
    "^": "M0 -5L5 4H-5Z",
    "v": "M0 5L5 -4H-5Z",
    "<": "M-5 0L4 -5V5Z",
    ">": "M5 0L-4 -5V5Z",
    "X": "M-4 -4L4 4M-4 4L4 -4",
    "x": "M-4 -4L4 4M-4 4L4 -4",
    "P": "M-5 0H5M0 -5V5",
    "p": "M0 -5L5 -1L3 4H-3L-5 -1Z",
    "h": "M0 -5L4 -2V3L0 5L-4 3V-2Z",
    "8": "M-2 -5H2L5 -2V2L2 5H-2L-5 2V-2Z",
    "d": "M0 -5L3 0L0 5L-3 0Z",
    "*": "M0 -6L1.5 -2L6 -2L2.4 .8L3.7 5L0 2.5L-3.7 5L-2.4 .8L-6 -2L-1.5 -2Z",
}
"""Markers around (0, 0), as SVG has paths, by their names in matplotlib."""


def guessing(at: float, *, upright: bool = False) -> Series:
    """The line at the accuracy or rate of guessing."""
    return level(at, GUESSING, GREY, ":", upright=upright, direct=True)


def level(
    at: float,
    name: str,
    colour: str,
    dashes: str = "--",
    *,
    upright: bool = False,
    direct: bool = False,
) -> Series:
    """A line across the whole chart, or up; ``direct``: with its name on it."""
    kind: Kind = "upright" if upright else "level"
    return Series(
        name=name,
        kind=kind,
        x=(at,) if upright else (),
        y=() if upright else (at,),
        colour=colour,
        dashes=dashes,
        direct=direct,
    )


def spaced(
    ticks: Sequence[tuple[float, str]], *, log: bool = False
) -> tuple[tuple[float, str], ...]:
    """Ticks in ascending order, without those whose label would cover the next one that is kept.

    The last tick is always kept.
    """
    if not ticks:
        return ()
    places = [math.log(at) if log else at for at, _ in ticks]
    across = (places[-1] - places[0]) or 1.0
    kept: list[int] = []
    for index in reversed(range(len(ticks))):
        longest = max(len(line) for line in ticks[index][1].split("\n"))
        if not kept or (places[kept[-1]] - places[index]) / across > (longest + 1) / LETTERS_ACROSS:
            kept.append(index)
    return tuple(ticks[index] for index in reversed(kept))


def legend_of(charts: Iterable[Chart]) -> tuple[Series, ...]:
    """The legend of some charts: the first series of each name, in the order of drawing, the
    reference last.
    """
    entries: dict[str, Series] = {}
    for chart in charts:
        for series in chart.series:
            if series.name and not series.direct:
                entries.setdefault(series.name, series)
    return tuple(sorted(entries.values(), key=lambda entry: entry.name in REFERENCES))


def share_names(charts: Sequence[Chart]) -> bool:
    """Whether charts have one legend: some name is in two of them."""
    names = [
        {one.name for one in chart.series if one.name and one.name not in REFERENCES}
        for chart in charts
    ]
    return len(charts) > 1 and len(set().union(*names)) < sum(map(len, names))


def describe(chart: Chart) -> str:
    """What a chart shows, for a reader who cannot see it: the first and the last point of each
    series.
    """
    axes = [
        f"Across: {chart.x.label}." if chart.x.label else "",
        f"Up: {chart.y.label or chart.title}.",
    ]
    ends = [_ends(one, chart) for one in chart.series[:MAX_DESCRIBED_SERIES]]
    return " ".join(part for part in (*axes, *ends, chart.note) if part)


def _ends(one: Series, chart: Chart) -> str:
    prefix = f"{one.name}: " if one.name else ""
    if one.place is not None:
        return f"{prefix or 'a line: '}{one.place:.4g}."
    points = one.points
    if not points:
        return ""
    first, last = (
        f"{_place(p.y, chart.y)} at {_place(p.x, chart.x)}" for p in (points[0], points[-1])
    )
    return f"{prefix}{first}." if first == last else f"{prefix}from {first} to {last}."


def _place(value: Any, axis: Axis) -> str:
    named = dict(axis.ticks)
    return " ".join(named[value].split()) if value in named else f"{float(value):.4g}"


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a point can be drawn there."""
    return value is not None and math.isfinite(value) and abs(value) <= MAX_DRAWN_NUMBER


def digits(low: float, high: float) -> tuple[int, ...]:
    """First digits of the ticks between the ends of a logarithmic axis."""
    if high > 15 * low:
        return (1,) if high > 1000 * low else (1, 3)
    return (1, 2, 5) if high > 8 * low else (1, 2, 3, 5, 7)


def short_bytes(value: float, _: Any = None) -> str:
    """1500000 -> "1.5 MB"."""
    # matplotlib's formatter passes a position, too
    for unit in ("B", "kB", "MB"):
        if abs(value) < 1000:
            return f"{value:g} {unit}"
        value /= 1000
    return f"{value:g} GB"


DEFAULT_AXIS, DEFAULT_SERIES = Axis(), Series()


def chart_data(chart: Chart) -> dict[str, Any]:
    """The chart for the script of a page, for JSON: what differs from the defaults."""
    axes = {name: _given(axis, DEFAULT_AXIS) for name, axis in (("x", chart.x), ("y", chart.y))}
    series = [
        _given(one, DEFAULT_SERIES) | {"dash": list(DASHES[one.dashes])} for one in chart.series
    ]
    return {
        "title": chart.title,
        "height": chart.height,
        "note": chart.note,
        **axes,
        "series": series,
    }


def _given(one: Axis | Series, plain: Axis | Series) -> dict[str, Any]:
    found = {name: value for name, value in vars(one).items() if value != getattr(plain, name)}
    return {
        name: _rounded(value) if isinstance(value, Sequence) else value
        for name, value in found.items()
    }


def _rounded(values: Any) -> Any:
    """Numbers with six digits, as many as a screen has; None for what cannot be drawn."""
    if isinstance(values, str):
        return values
    if isinstance(values, Sequence):
        return [_rounded(value) for value in values]
    return float(f"{values:.6g}") if is_number(values) else None
