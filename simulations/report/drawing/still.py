"""A chart as SVG: what a page shows where no script runs, and on paper. With scripts a browser
draws the same chart.

Written here, not by matplotlib, which takes half a second at the end of every run.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import chain
from typing import TypeGuard
from unicodedata import east_asian_width

from fedlsg.simulations.report.drawing.chart import (
    OUTLINES,
    Axis,
    Chart,
    Point,
    Series,
    digits,
    is_number,
    short_bytes,
)
from fedlsg.simulations.report.drawing.colours import ALARM, AXIS, GRID, WHITE, WORDS

ALONE_PIXELS, NEXT = 538, 403
"""CSS pixels of a chart alone on a page, as wide as a phone can show it, and of one next to
another.
"""
TEXT, LETTER, LINE = 12, 7.7, 15
"""CSS pixels of words: their size, and the room for a letter and for a line."""
NAMES = 0.5
"""Share of a chart's width that names next to the axis take at most."""
TICK, GAP, TOP, RIGHT = 4, 4, 8, 16
AXIS_MARGIN = 0.05
"""Share of an axis beyond the data, at each end."""
ACROSS, UP = 50, 32
"""CSS pixels between two ticks, at least."""
STEPS, WHOLE = (1, 2, 2.5, 5, 10), (1, 2, 5, 10)
MIN_LOG_NUMBER = 1e-100
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
        return is_number(value) and (value >= MIN_LOG_NUMBER or not self.axis.log)

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.axis.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        share = (value - low) / (high - low)
        return round(self.size * (1 - share if self.turned else share), 1)

    def ticks(self, apart: float) -> list[tuple[float, Sequence[str]]]:
        """Places of ticks, and the lines of their names."""
        if self.axis.ticks:
            shown = [tick for tick in self.axis.ticks if self.low <= tick[0] <= self.high]
            return [(self.at(at), name.split("\n")) for at, name in shown]
        most = self.size / apart
        places = self._decades(most) if self.axis.log else []
        if len(places) < 2:
            places = self._even(most)
        ticks: list[tuple[float, Sequence[str]]] = []
        for at in places:
            name = short_bytes(at) if self.axis.unit == "bytes" else f"{at:g}"
            ticks.append((self.at(at), [name.replace("-", "\N{MINUS SIGN}")]))
        return ticks

    def _even(self, most: float) -> list[float]:
        least = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(least))
        steps = [digit * power for digit in (WHOLE if self.axis.whole else STEPS)]
        step = next(step for step in steps if step >= least * 0.999)
        if self.axis.whole:
            step = max(step, 1.0)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [k * step for k in range(first, last + 1)]

    def _decades(self, most: float) -> list[float]:
        first = math.ceil(math.log10(self.low) - 1e-9)
        last = math.floor(math.log10(self.high) + 1e-9)
        every = max(1, math.ceil((last - first) / most))
        powers = range(first - every, last + 1, every)
        parts = digits(self.low, self.high)
        places = [part * 10.0**power for power in powers for part in parts]
        return [at for at in places if self.low <= at <= self.high * 1.000001]


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
    drawn = [value for value in values if free.takes(value)]
    if not drawn:
        drawn = [1.0, 10.0] if axis.log else [0.0, 1.0]
    low, high = min(drawn), max(drawn)
    if axis.log:
        more = (high / low) ** AXIS_MARGIN if high > low * (1 + SAME) else 1.1
        low, high = low / more, high * more
    else:
        most = max(-low, high)
        least = max(MIN_LOG_NUMBER, SAME * most)
        more = AXIS_MARGIN * next((wide for wide in (high - low, most) if wide > least), 1.0)
        low, high = low - more * (low not in ends), high + more * (high not in ends)
    low = low if axis.low is None else axis.low
    high = high if axis.high is None else axis.high
    high = high if high > low else low + max(1.0, abs(low))
    return replace(free, low=low, high=high)


def still(chart: Chart, across: int = 1) -> tuple[str, tuple[int, int]]:
    """The inside of an SVG, and its size in CSS pixels, of a chart with ``across`` in a row."""
    width = ALONE_PIXELS if across == 1 else NEXT
    xs, ys = list[float | None](), list[float | None]()
    for one, points in chart.stacked():
        xs += chain(one.x, one.left, one.right, *((p.left, p.right) for p in points))
        ys += chain(one.y, one.low, one.high, *((p.low, p.high) for p in points))
    ends = [0.0] if chart.has_bars else []
    lines = max((name.count("\n") + 1 for _, name in chart.x.ticks), default=1)
    below = TICK + GAP + LINE * (lines + bool(chart.x.label))
    y = scale(chart.y, ys, chart.height - TOP - below, turned=not chart.y.down, ends=ends)
    needed = max((_width(line) for _, name in y.ticks(UP) for line in name), default=0)
    room = min(needed, NAMES * width)
    left = round(TICK + GAP + room + (LINE + GAP) * bool(chart.y.label))
    x = scale(chart.x, xs, width - left - RIGHT)
    place = f'transform="translate({left} {TOP})" style="font-size: calc({TEXT}px * var(--words, 1))" fill="{AXIS}"'
    inside = f'<svg width="{x.size}" height="{y.size}">{"".join(_series(chart, x, y))}</svg>'
    drawing = f"<g {place}>{''.join(_axes(chart, x, y, left, room))}{inside}</g>"
    return drawing, (width, chart.height)


def _axes(chart: Chart, x: Scale, y: Scale, left: int, room: float) -> Iterator[str]:
    """Lines, ticks and words; ``left`` and ``room``: CSS pixels left of the axis, and for the names
    there.
    """
    for at, name in x.ticks(ACROSS):
        if not chart.has_bars:
            yield _path(f"M{at} 0V{y.size}", GRID, 0.8)
        yield _path(f"M{at} {y.size}v{TICK}", AXIS, 1)
        half = min(max(map(_width, name), default=0) / 2, (left + x.size + RIGHT) / 2)
        inside = min(max(at, half - left), x.size + RIGHT - half)
        for line, words in enumerate(name, 1):
            yield _words(words, inside, y.size + TICK + LINE * line, "middle")
    for at, name in y.ticks(UP):
        yield _path(f"M0 {at}H{x.size}", GRID, 0.8)
        yield _path(f"M0 {at}h-{TICK}", AXIS, 1)
        first = at + GAP - LINE * (len(name) - 1) / 2
        for line, words in enumerate(name):
            yield _words(_shorten(words, room), -TICK - GAP, first + LINE * line, "end")
    yield _path(f"M0 0V{y.size}H{x.size}", AXIS, 1)
    if chart.x.label:
        yield _words(chart.x.label, x.size / 2, chart.height - TOP - GAP, "middle", WORDS)
    if chart.y.label:
        place = f"translate({TEXT - left} {y.size / 2}) rotate(-90)"
        yield f'<g transform="{place}">{_words(chart.y.label, 0, 0, "middle", WORDS)}</g>'
    if chart.empty_note:
        yield _words(chart.empty_note, x.size / 2, y.size * 0.6, "middle", ALARM)


def _series(chart: Chart, x: Scale, y: Scale) -> Iterator[str]:
    for one, points in chart.stacked():
        if one.kind == "level":
            for at in filter(y.takes, one.y):
                yield _path(f"M0 {y.at(at)}H{x.size}", one.colour, 1.6, one.dashed)
                if one.direct:
                    above = y.at(at) - GAP
                    up = above if above > TEXT else y.at(at) + TEXT + 1
                    yield _words(one.name, x.size - GAP, up, "end")
        elif one.kind == "upright":
            for at in filter(x.takes, one.x):
                yield _path(f"M{x.at(at)} 0V{y.size}", one.colour, 1.6, one.dashed)
                if one.direct:
                    right = x.at(at) < x.size / 2
                    aside = x.at(at) + (GAP if right else -GAP)
                    yield _words(one.name, aside, TEXT, "start" if right else "end")
        elif one.kind == "band":
            across = [p for p in points if x.takes(p.x)]
            lower = [(x.at(p.x), y.at(p.low)) for p in across if y.takes(p.low)]
            upper = [(x.at(p.x), y.at(p.high)) for p in across if y.takes(p.high)]
            edge = _line([*lower, *reversed(upper)])
            yield f'<path d="{edge}" fill="{one.colour}" fill-opacity=".15"/>'
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
    for (at, up), (_, _, low, high, left, right) in zip(places, points, strict=True):
        if y.takes(low) and y.takes(high) and low != high:
            bars += f"M{at} {y.at(low)}V{y.at(high)}"
            for end in (low, high):
                bars += f"M{at - 3:.1f} {y.at(end)}h6"
        if x.takes(left) and x.takes(right) and left != right:
            bars += f"M{x.at(left)} {up}H{x.at(right)}"
            for end in (left, right):
                bars += f"M{x.at(end)} {up - 3:.1f}v6"
    if one.line and len(places) > 1:
        yield _path(_line(places, steps=one.steps), one.colour, 2, one.dashed)
    if bars:
        yield _path(bars, one.colour, 2)
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
