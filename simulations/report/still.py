"""A chart as SVG: what a page shows where no script runs, and on paper. With scripts a browser
draws the same chart.

Written here, not by matplotlib, which takes half a second at the end of every run.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from typing import TypeGuard
from unicodedata import east_asian_width

from fedlsg.simulations.report.chart import (
    OUTLINES,
    Axis,
    Chart,
    Point,
    Series,
    digits,
    is_number,
    short_bytes,
)
from fedlsg.simulations.report.colours import ALARM, AXIS, GRID, WHITE, WORDS

ALONE, NEXT = 538, 403
"""CSS pixels of a chart alone on a page, as wide as a phone can show it, and of one next to
another.
"""
TEXT, LETTER, LINE = 12, 7.7, 15
"""CSS pixels of words: their size, and the room for a letter and for a line."""
NAMES = 0.5
"""Share of a chart's width that names next to the axis take at most."""
TICK, GAP, TOP, RIGHT = 4, 4, 8, 16
MARGIN = 0.05
"""Share of an axis beyond the data, at each end."""
ACROSS, UP = 50, 32
"""CSS pixels between two ticks, at least."""
STEPS, WHOLE = (1, 2, 2.5, 5, 10), (1, 2, 5, 10)
SMALLEST = 1e-100
"""Smaller numbers are not drawn on a logarithmic axis: its ends have to be numbers, too."""
SAME = 1e-5
"""Numbers that differ by this share count as one: the names of ticks between them would be
equal.
"""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The places of numbers on an axis of ``size`` CSS pixels; ``turned``: its low end is at the
    last of them.
    """

    axis: Axis
    low: float
    high: float
    size: float
    turned: bool = False

    def takes(self, value: float | None) -> TypeGuard[float]:
        return is_number(value) and (value >= SMALLEST or not self.axis.log)

    def at(self, value: float) -> float:
        low, high, value = (
            math.log(v) if self.axis.log else v for v in (self.low, self.high, value)
        )
        share = (value - low) / (high - low)
        return round(self.size * (1 - share if self.turned else share), 1)

    def ticks(self, apart: float) -> list[tuple[float, Sequence[str]]]:
        """Places of ticks, and the lines of their names."""
        if self.axis.ticks:
            return [
                (self.at(at), name.split("\n"))
                for at, name in self.axis.ticks
                if self.low <= at <= self.high
            ]
        most = self.size / apart
        found = self._decades(most) if self.axis.log else []
        found = found if len(found) > 1 else self._even(most)
        names = (short_bytes(at) if self.axis.unit == "bytes" else f"{at:g}" for at in found)
        return [
            (self.at(at), [name.replace("-", "\N{MINUS SIGN}")])
            for at, name in zip(found, names, strict=True)
        ]

    def _even(self, most: float) -> list[float]:
        least = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(least))
        step = next(
            s * power for s in (WHOLE if self.axis.whole else STEPS) if s * power >= least * 0.999
        )
        step = max(step, 1.0) if self.axis.whole else step
        return [
            k * step
            for k in range(
                math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1
            )
        ]

    def _decades(self, most: float) -> list[float]:
        first, last = (
            math.ceil(math.log10(self.low) - 1e-9),
            math.floor(math.log10(self.high) + 1e-9),
        )
        every = max(1, math.ceil((last - first) / most))
        powers = range(first - every, last + 1, every)
        return [
            at
            for k in powers
            for part in digits(self.low, self.high)
            if self.low <= (at := part * 10.0**k) <= self.high * 1.000001
        ]


def scale(
    axis: Axis,
    values: Sequence[float | None],
    size: float,
    *,
    turned: bool = False,
    ends: Sequence[float] = (),
) -> Scale:
    """The axis that reaches all numbers among ``values``, and a little further, but for those in
    ``ends``.
    """
    free = Scale(axis=axis, low=1.0, high=10.0, size=size, turned=turned)
    known = [value for value in values if free.takes(value)] or [
        float(axis.log),
        1.0 + 9 * axis.log,
    ]
    low, high = min(known), max(known)
    if axis.log:
        more = (high / low) ** MARGIN if high > low * (1 + SAME) else 1.1
        low, high = low / more, high * more
    else:
        most = max(-low, high)
        found = (wide for wide in (high - low, most) if wide > max(SMALLEST, SAME * most))
        more = MARGIN * next(found, 1.0)
        low, high = low - more * (low not in ends), high + more * (high not in ends)
    low, high = low if axis.low is None else axis.low, high if axis.high is None else axis.high
    return Scale(
        axis=axis,
        low=low,
        high=high if high > low else low + max(1.0, abs(low)),
        size=size,
        turned=turned,
    )


def still(chart: Chart, across: int = 1) -> tuple[str, tuple[int, int]]:
    """The inside of an SVG, and its size in CSS pixels, of a chart with ``across`` in a row."""
    width = ALONE if across == 1 else NEXT
    xs, ys = list[float | None](), list[float | None]()
    for one, points in chart.stacked():
        xs += chain(one.x, one.left, one.right, *((p.left, p.right) for p in points))
        ys += chain(one.y, one.low, one.high, *((p.low, p.high) for p in points))
    ends = [0.0] if chart.has_bars else []
    lines = max((name.count("\n") + 1 for _, name in chart.x.ticks), default=1) + bool(
        chart.x.label
    )
    y = scale(
        chart.y,
        ys,
        chart.height - TOP - TICK - GAP - LINE * lines,
        turned=not chart.y.down,
        ends=ends,
    )
    needed = max((_width(line) for _, name in y.ticks(UP) for line in name), default=0)
    room = min(needed, NAMES * width)
    left = round(TICK + GAP + room + (LINE + GAP) * bool(chart.y.label))
    x = scale(chart.x, xs, width - left - RIGHT)
    place = f'transform="translate({left} {TOP})" style="font-size: calc({TEXT}px * var(--words, 1))" fill="{AXIS}"'
    inside = f'<svg width="{x.size}" height="{y.size}">{"".join(_series(chart, x, y))}</svg>'
    return f"<g {place}>{''.join(_axes(chart, x, y, left, room))}{inside}</g>", (
        width,
        chart.height,
    )


def _axes(chart: Chart, x: Scale, y: Scale, left: int, room: float) -> Iterator[str]:
    """Lines, ticks and words; ``left`` and ``room``: CSS pixels left of the axis, and for the names
    there.
    """
    for at, name in x.ticks(ACROSS):
        yield ("" if chart.has_bars else _path(f"M{at} 0V{y.size}", GRID, 0.8)) + _path(
            f"M{at} {y.size}v{TICK}", AXIS, 1
        )
        half = min(max(map(_width, name), default=0) / 2, (left + x.size + RIGHT) / 2)
        inside = min(max(at, half - left), x.size + RIGHT - half)
        yield from (
            _words(words, inside, y.size + TICK + LINE * k, "middle")
            for k, words in enumerate(name, 1)
        )
    for at, name in y.ticks(UP):
        yield _path(f"M0 {at}H{x.size}", GRID, 0.8) + _path(f"M0 {at}h-{TICK}", AXIS, 1)
        first = at + GAP - LINE * (len(name) - 1) / 2
        lines = (_shorten(words, room) for words in name)
        yield from (
            _words(words, -TICK - GAP, first + LINE * k, "end") for k, words in enumerate(lines)
        )
    yield _path(f"M0 0V{y.size}H{x.size}", AXIS, 1)
    if chart.x.label:
        yield _words(chart.x.label, x.size / 2, chart.height - TOP - GAP, "middle", WORDS)
    if chart.y.label:
        place = f"translate({TEXT - left} {y.size / 2}) rotate(-90)"
        yield f'<g transform="{place}">{_words(chart.y.label, 0, 0, "middle", WORDS)}</g>'
    if chart.said:
        yield _words(chart.said, x.size / 2, y.size * 0.6, "middle", ALARM)


def _series(chart: Chart, x: Scale, y: Scale) -> Iterator[str]:
    for one, points in chart.stacked():
        if one.kind == "level":
            yield from (
                _path(f"M0 {y.at(at)}H{x.size}", one.colour, 1.6, one.dashed)
                for at in one.y
                if y.takes(at)
            )
        elif one.kind == "upright":
            yield from (
                _path(f"M{x.at(at)} 0V{y.size}", one.colour, 1.6, one.dashed)
                for at in one.x
                if x.takes(at)
            )
        elif one.kind == "band":
            lower, upper = (
                [
                    (x.at(p.x), y.at(end))
                    for p in points
                    if x.takes(p.x) and y.takes(end := getattr(p, side))
                ]
                for side in ("low", "high")
            )
            yield f'<path d="{_line([*lower, *reversed(upper)])}" fill="{one.colour}" fill-opacity=".15"/>'
        elif one.kind == "bar":
            for p in points:
                (start, end), (bottom, top) = _ends(x, p.left, p.right), _ends(y, p.low, p.high)
                size = f'width="{end - start:.1f}" height="{abs(bottom - top):.1f}"'
                yield f'<rect x="{start}" y="{min(bottom, top)}" {size} fill="{one.colour}"/>'
        else:
            yield from _points(one, [p for p in points if x.takes(p.x) and y.takes(p.y)], x, y)


def _ends(of: Scale, *places: float) -> list[float]:
    """The places of a bar's ends; of an end that a logarithmic axis has not, the axis' own low
    end.
    """
    return [of.at(place if of.takes(place) else of.low) for place in places]


def _points(one: Series, points: Sequence[Point], x: Scale, y: Scale) -> Iterator[str]:
    """A line with its error bars and markers."""
    places = [(x.at(p.x), y.at(p.y)) for p in points]
    bars = ""
    for (at, up), (_, _, *ends) in zip(places, points, strict=True):
        low, high, left, right = ends
        if y.takes(low) and y.takes(high) and low != high:
            bars += f"M{at} {y.at(low)}V{y.at(high)}" + "".join(
                f"M{at - 3:.1f} {y.at(end)}h6" for end in (low, high)
            )
        if x.takes(left) and x.takes(right) and left != right:
            caps = (f"M{x.at(end)} {up - 3:.1f}v6" for end in (left, right))
            bars += f"M{x.at(left)} {up}H{x.at(right)}" + "".join(caps)
    if one.line and len(places) > 1:
        yield _path(_line(places, steps=one.steps), one.colour, 2, one.dashed)
    yield _path(bars, one.colour, 2) if bars else ""
    if outline := one.outline or (OUTLINES["o"] if len(places) == 1 else ""):
        marks = (f'<path d="{outline}" transform="translate({at} {up})"/>' for at, up in places)
        fill = one.colour if one.filled else WHITE
        yield f'<g fill="{fill}" stroke="{one.colour}" stroke-width="1.4">{"".join(marks)}</g>'


def _line(places: Sequence[tuple[float, float]], *, steps: bool = False) -> str:
    found = "".join(f"H{a}V{b}" if steps else f"L{a} {b}" for a, b in places)
    return f"M{places[0][0]} {places[0][1]}{found}" if places else ""


def _path(line: str, colour: str, width: float, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="{line}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>'


def _width(text: str) -> float:
    """CSS pixels that words need, about: a letter of Chinese, Japanese or Korean needs two
    letters.
    """
    return LETTER * sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _shorten(text: str, room: float) -> str:
    """Words without their middle where they need more than ``room``: names often differ in their
    ends.
    """
    kept, left = text, len(text)
    while _width(kept) > room + 0.1 and left > 2:
        left -= 1
        kept = f"{text[: left // 2]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - (left + 1) // 2 :]}"
    return kept


def _words(text: str, x: float, y: float, anchor: str, colour: str = AXIS) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
