"""A figure as data: charts, which hold series.

Nothing here draws. A browser draws charts by the script of a page, ``still`` draws them for pages
without scripts, and ``figure.plot`` makes a figure of matplotlib, for notebooks and files.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple, TypeGuard

from fedlsg.simulations.report.drawing.colours import BLUE, GREY

Kind = Literal["line", "band", "bar", "level", "upright"]
"""How a series is drawn: see ``Series``."""
Unit = Literal["", "bytes", "%"]
"""The unit of the numbers of an axis."""
Values = Sequence[float | None]
"""Coordinates of points; None for a point that is not drawn."""

GUESSING = "guessing"
PREDICT_THE_MEAN = "predicting the mean"
REFERENCES = (GUESSING, PREDICT_THE_MEAN)
"""Names of what every model has to be better than: the last entry of a legend."""
MAX_DESCRIBED_SERIES = 12
"""The most series of a chart that are described in words."""
LETTERS_ACROSS = 60
"""Letters that fit below a chart."""
MAX_DRAWN_NUMBER = 1e100
"""Larger numbers are not drawn: a browser does not finish an axis that reaches to 1e308."""
DASHES = {"-": (), "--": (6, 3), ":": (2, 3), "-.": (7, 3, 2, 3)}
"""Pixels of dashes and gaps, by matplotlib's name of the line style."""
BAR_HALF_WIDTH = 0.48
"""Half the width of a bar, as a share of the distance between two bars."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis.

    label: what its numbers are, with the unit; empty without.
    log: the scale is logarithmic.
    unit: of the numbers: bytes have names such as 1.5 MB.
    ticks: (place, name) of all ticks; empty: ticks are at round numbers.
    low, high: its ends; None: at the data.
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
    """A point that can be drawn, with the ends of its error bars, or those of its bar.

    low, high: ends along y. left, right: ends along x. None without an end.
    """

    x: float
    y: float
    low: Any = None
    high: Any = None
    left: Any = None
    right: Any = None


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one name, or a reference line.

    name: in the legend; a series with an empty name is not in it.
    x, y: coordinates of the points. A reference has one of them, with one number.
    low, high: ends of error bars along y, or of a band; empty without.
    left, right: ends of error bars along x; empty without.
    kind: ``line`` (points), ``band`` (from low to high), ``bar`` (bars of one chart are stacked),
        ``level`` (a reference across the chart at ``y``) or ``upright`` (one up the chart at
        ``x``).
    colour: of all of it.
    dashes: the line style, see ``DASHES``.
    marker: matplotlib's name of the points' marker, see ``OUTLINES``; empty: none.
    filled: markers are filled with the colour, not with white.
    line: points are joined.
    steps: they are joined by a staircase that changes after each point.
    words: one text for each point, shown next to its numbers; empty without.
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
        """The points that can be drawn: both coordinates are numbers."""
        missing = (None,) * len(self.x)
        ends = (end or missing for end in (self.low, self.high, self.left, self.right))
        points = (Point(*p) for p in zip(self.x, self.y, *ends, strict=False))
        return [p for p in points if is_number(p.x) and is_number(p.y)]

    @property
    def place(self) -> float | None:
        """The coordinate of a reference; None for points."""
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
    """One pair of axes with its series.

    height: in CSS pixels on a page.
    note: text in place of points, if no series has one.
    spread: what error bars and bands are, in words, for files, which have no caption.
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
        """Whether one of its series is bars."""
        return any(series.kind == "bar" for series in self.series)

    @property
    def empty_note(self) -> str:
        """The note, if no line has a point; else empty."""
        lines = (series.y for series in self.series if series.kind == "line")
        return "" if any(map(is_number, chain.from_iterable(lines))) else self.note

    def stacked(self) -> Iterator[tuple[Series, list[Point]]]:
        """Each series with its points; points of bars have the ends of their stacked bars."""
        tops: dict[float, float] = {}  # of the bars so far, by their place
        for series in self.series:
            points = series.points
            if series.kind == "bar":
                places = sorted({p.x for p in points})
                distance = min((b - a for a, b in pairwise(places)), default=1.0)
                half = BAR_HALF_WIDTH * distance
                points = []
                for x, y, *_ in series.points:
                    low = tops.get(x, 0.0)
                    tops[x] = low + y
                    points.append(Point(x, y, low, tops[x], x - half, x + half))
            yield series, points


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


def guessing(place: float, *, upright: bool = False) -> Series:
    """The line at the accuracy or rate of guessing."""
    return level(place, GUESSING, GREY, ":", upright=upright, direct=True)


def level(
    place: float,
    name: str,
    colour: str,
    dashes: str = "--",
    *,
    upright: bool = False,
    direct: bool = False,
) -> Series:
    """A line across the whole chart, or up the chart; ``direct``: with its name on it."""
    reference = Series(name=name, colour=colour, dashes=dashes, direct=direct)
    if upright:
        return replace(reference, kind="upright", x=(place,))
    return replace(reference, kind="level", y=(place,))


def spaced(
    ticks: Sequence[tuple[float, str]], *, log: bool = False
) -> tuple[tuple[float, str], ...]:
    """Ticks in ascending order, without those whose label would cover the next one that is kept.

    The last tick is always kept.
    """
    if not ticks:
        return ()
    places = [math.log(place) if log else place for place, _ in ticks]
    across = (places[-1] - places[0]) or 1.0
    kept: list[int] = []
    for index in reversed(range(len(ticks))):
        longest = max(len(line) for line in ticks[index][1].split("\n"))
        if not kept or (places[kept[-1]] - places[index]) / across > (longest + 1) / LETTERS_ACROSS:
            kept.append(index)
    return tuple(ticks[index] for index in reversed(kept))


def legend_of(charts: Iterable[Chart]) -> tuple[Series, ...]:
    """The legend of some charts: the first series of each name, in order, references last."""
    entries: dict[str, Series] = {}
    for chart in charts:
        for series in chart.series:
            if series.name and not series.direct:
                entries.setdefault(series.name, series)
    return tuple(sorted(entries.values(), key=lambda entry: entry.name in REFERENCES))


def share_names(charts: Sequence[Chart]) -> bool:
    """Whether charts have one legend: a name, except for references, is in two of them."""
    seen: set[str] = {""}
    for chart in charts:
        names = {series.name for series in chart.series} - {*REFERENCES, ""}
        if names & seen:
            return True
        seen |= names
    return False


def describe(chart: Chart) -> str:
    """A chart in words, for a reader who cannot see it: the first and last point of each series."""
    axes = [
        f"Across: {chart.x.label}." if chart.x.label else "",
        f"Up: {chart.y.label or chart.title}.",
    ]
    ends = [_ends(series, chart) for series in chart.series[:MAX_DESCRIBED_SERIES]]
    return " ".join(filter(None, (*axes, *ends, chart.note)))


def _ends(series: Series, chart: Chart) -> str:
    """The first and the last point of a series, or the place of a reference, in words."""
    prefix = f"{series.name}: " if series.name else ""
    if series.place is not None:
        return f"{prefix or 'a line: '}{series.place:.4g}."
    points = series.points
    if not points:
        return ""
    first, last = (
        f"{_place(p.y, chart.y)} at {_place(p.x, chart.x)}" for p in (points[0], points[-1])
    )
    return f"{prefix}{first}." if first == last else f"{prefix}from {first} to {last}."


def _place(value: Any, axis: Axis) -> str:
    """The name of a tick, or the number."""
    named = dict(axis.ticks)
    return " ".join(named[value].split()) if value in named else f"{float(value):.4g}"


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a point can be drawn at this coordinate."""
    return value is not None and math.isfinite(value) and abs(value) <= MAX_DRAWN_NUMBER


def digits(low: float, high: float) -> tuple[int, ...]:
    """First digits of the ticks of a logarithmic axis: fewer for a longer axis."""
    if high > 15 * low:
        return (1,) if high > 1000 * low else (1, 3)
    return (1, 2, 5) if high > 8 * low else (1, 2, 3, 5, 7)


def short_bytes(value: float, _: Any = None) -> str:
    """The name of a tick in bytes: "1.5 MB". Matplotlib passes a second argument, its position."""
    for unit in ("B", "kB", "MB"):
        if abs(value) < 1000:
            return f"{value:g} {unit}"
        value /= 1000
    return f"{value:g} GB"


def chart_data(chart: Chart) -> dict[str, Any]:
    """The chart for the script of a page, for JSON: fields that differ from the defaults."""
    return {
        "title": chart.title,
        "height": chart.height,
        "note": chart.note,
        "x": _differing(chart.x, Axis()),
        "y": _differing(chart.y, Axis()),
        "series": [
            _differing(series, Series()) | {"dash": list(DASHES[series.dashes])}
            for series in chart.series
        ],
    }


def _differing(part: Axis | Series, default: Axis | Series) -> dict[str, Any]:
    """The fields that differ from the defaults, with rounded numbers."""
    return {
        name: _rounded(value) if isinstance(value, Sequence) else value
        for name, value in vars(part).items()
        if value != getattr(default, name)
    }


def _rounded(values: Any) -> Any:
    """Numbers with six digits, which a screen can show; None for those that cannot be drawn."""
    if isinstance(values, str):
        return values
    if isinstance(values, Sequence):
        return [_rounded(value) for value in values]
    return float(f"{values:.6g}") if is_number(values) else None
