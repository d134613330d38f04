"""A chart as SVG, which a page shows without scripts, and on paper.

With scripts a browser draws the same chart. It is not made by matplotlib, which takes half a second
at the end of every run.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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

WIDTH_ALONE, WIDTH_IN_ROW = 538, 403
"""CSS pixels of a chart alone on a page, as wide as a phone can show it, and of one in a row."""
TEXT, LETTER, LINE = 12, 7.7, 15
"""CSS pixels of words: their size, and the room for a letter and for a line."""
NAMES_SHARE = 0.5
"""Names next to the axis take at most this share of a chart's width."""
TICK, GAP, TOP, RIGHT = 4, 4, 8, 16
"""CSS pixels of ticks, between ticks and their names, above the axes, and on their right."""
CAP = 3
"""CSS pixels of half the line that ends an error bar."""
AXIS_MARGIN = 0.05
"""Share of an axis beyond the data, at each end."""
TICKS_ACROSS, TICKS_UP = 50, 32
"""The least CSS pixels between two ticks of an axis across, and up."""
STEPS, WHOLE = (1, 2, 2.5, 5, 10), (1, 2, 5, 10)
"""First digits of the step between two ticks, in general and of whole numbers."""
MIN_LOG_NUMBER = 1e-100
"""Smaller numbers are not drawn on a logarithmic axis: its ends have to be numbers, too."""
SAME_SHARE = 1e-5
"""Numbers that differ by at most this share are equal: ticks between them would have one name."""
ROUNDING = 1e-9
"""Steps (of a logarithmic axis: decades) by which a tick may be beyond the end of an axis, because
of rounding."""
ROUNDING_SHARE = 1e-6
"""Share of its number by which a digit's tick may be beyond the end of a logarithmic axis."""
CLOSER = 0.999
"""Ticks may be closer than they should, by this factor: as in the script of a page."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The places of numbers on an axis.

    axis: the axis.
    low, high: its ends.
    size: CSS pixels of its length.
    turned: the low end is at the last pixel, as on an axis that goes up.
    """

    axis: Axis
    low: float
    high: float
    size: float
    turned: bool = False

    def takes(self, value: float | None) -> TypeGuard[float]:
        """Whether the number can be drawn on the axis."""
        return takes(value, self.axis)

    def at(self, value: float) -> float:
        """The place of a number, in CSS pixels."""
        low, high = self.low, self.high
        if self.axis.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        share = (value - low) / (high - low)
        return round(self.size * (1 - share if self.turned else share), 1)

    def ticks(self, apart: float) -> list[tuple[float, Sequence[str]]]:
        """Places of ticks, and the lines of their names; ``apart``: least pixels between two."""
        if self.axis.ticks:
            shown = [tick for tick in self.axis.ticks if self.low <= tick[0] <= self.high]
            return [(self.at(number), name.split("\n")) for number, name in shown]
        most = self.size / apart
        numbers = self._decades(most) if self.axis.log else []
        if len(numbers) < 2:
            numbers = self._even(most)
        ticks: list[tuple[float, Sequence[str]]] = []
        for number in numbers:
            name = short_bytes(number) if self.axis.unit == "bytes" else f"{number:g}"
            ticks.append((self.at(number), [name.replace("-", "\N{MINUS SIGN}")]))
        return ticks

    def _even(self, most: float) -> list[float]:
        """Multiples of the smallest round step with which there are at most ``most`` ticks."""
        least = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(least))
        steps = [digit * power for digit in (WHOLE if self.axis.whole else STEPS)]
        step = next(step for step in steps if step >= least * CLOSER)
        if self.axis.whole:
            step = max(step, 1.0)
        first = math.ceil(self.low / step - ROUNDING)
        last = math.floor(self.high / step + ROUNDING)
        return [k * step for k in range(first, last + 1)]

    def _decades(self, most: float) -> list[float]:
        """Powers of ten, with digits between them if there is room."""
        first = math.ceil(math.log10(self.low) - ROUNDING)
        last = math.floor(math.log10(self.high) + ROUNDING)
        every = max(1, math.ceil((last - first) / most))
        # from the power before: its digits may be above the low end. Powers are left out on long
        # axes only, whose one digit is 1
        powers = range(first - every, last + 1, every)
        parts = digits(self.low, self.high)
        places = [part * 10.0**power for power in powers for part in parts]
        return [place for place in places if self.low <= place <= self.high * (1 + ROUNDING_SHARE)]


def takes(value: float | None, axis: Axis) -> TypeGuard[float]:
    """Whether the number can be drawn on an axis of any length."""
    return is_number(value) and (value >= MIN_LOG_NUMBER or not axis.log)


def scale(
    axis: Axis,
    values: Sequence[float | None],
    size: float,
    *,
    turned: bool = False,
    ends: Sequence[float] = (),
) -> Scale:
    """The scale of an axis that reaches all ``values``, and a little further.

    A linear axis ends exactly at a number that is in ``ends``; each at the axis' own ends.
    """
    drawn = [value for value in values if takes(value, axis)]
    if not drawn:
        drawn = [1.0, 10.0] if axis.log else [0.0, 1.0]
    low, high = min(drawn), max(drawn)
    if axis.log:
        factor = (high / low) ** AXIS_MARGIN if high > low * (1 + SAME_SHARE) else 1.1
        low, high = low / factor, high * factor
    else:
        largest = max(-low, high)
        least = max(MIN_LOG_NUMBER, SAME_SHARE * largest)
        # the range; of equal numbers their size; of zeros 1
        margin = AXIS_MARGIN * next((w for w in (high - low, largest) if w > least), 1.0)
        low = low if low in ends else low - margin
        high = high if high in ends else high + margin
    low = low if axis.low is None else axis.low
    high = high if axis.high is None else axis.high
    high = high if high > low else low + max(1.0, abs(low))
    return Scale(axis=axis, low=low, high=high, size=size, turned=turned)


def still(chart: Chart, across: int = 1) -> tuple[str, tuple[int, int]]:
    """The inside of the SVG of a chart, and its (width, height) in CSS pixels.

    across: charts in a row of the page.
    """
    width = WIDTH_ALONE if across == 1 else WIDTH_IN_ROW
    xs, ys = list[float | None](), list[float | None]()
    for series, points in chart.stacked():
        xs += chain(series.x, series.left, series.right, *((p.left, p.right) for p in points))
        ys += chain(series.y, series.low, series.high, *((p.low, p.high) for p in points))
    ends = [0.0] if chart.has_bars else []
    lines = max((name.count("\n") + 1 for _, name in chart.x.ticks), default=1)
    below = TICK + GAP + LINE * (lines + bool(chart.x.label))
    y = scale(chart.y, ys, chart.height - TOP - below, turned=not chart.y.down, ends=ends)
    needed = max((_width(line) for _, name in y.ticks(TICKS_UP) for line in name), default=0)
    room = min(needed, NAMES_SHARE * width)
    left = round(TICK + GAP + room + (LINE + GAP) * bool(chart.y.label))
    x = scale(chart.x, xs, width - left - RIGHT)
    words = f'style="font-size: calc({TEXT}px * var(--words, 1))" fill="{AXIS}"'
    inside = f'<svg width="{x.size}" height="{y.size}">{"".join(_series(chart, x, y))}</svg>'
    drawing = f'<g transform="translate({left} {TOP})" {words}>{"".join(_axes(chart, x, y, left, room))}{inside}</g>'
    return drawing, (width, chart.height)


def _axes(chart: Chart, x: Scale, y: Scale, left: int, room: float) -> Iterator[str]:
    """The axes of a chart: grid, ticks and words.

    left: CSS pixels on the left of the axis.
    room: of these, the pixels for names of ticks.
    """
    for place, name in x.ticks(TICKS_ACROSS):
        if not chart.has_bars:
            yield _path(f"M{place} 0V{y.size}", GRID, 0.8)
        yield _path(f"M{place} {y.size}v{TICK}", AXIS, 1)
        # a long name is moved so that it stays on the picture
        half = min(max(map(_width, name), default=0) / 2, (left + x.size + RIGHT) / 2)
        inside = min(max(place, half - left), x.size + RIGHT - half)
        for line, words in enumerate(name, 1):
            yield _words(words, inside, y.size + TICK + LINE * line, "middle")
    for place, name in y.ticks(TICKS_UP):
        yield _path(f"M0 {place}H{x.size}", GRID, 0.8)
        yield _path(f"M0 {place}h-{TICK}", AXIS, 1)
        first = place + GAP - LINE * (len(name) - 1) / 2
        for line, words in enumerate(name):
            yield _words(_shorten(words, room), -TICK - GAP, first + LINE * line, "end")
    yield _path(f"M0 0V{y.size}H{x.size}", AXIS, 1)
    if chart.x.label:
        yield _words(chart.x.label, x.size / 2, chart.height - TOP - GAP, "middle", WORDS)
    if chart.y.label:
        turn = f"translate({TEXT - left} {y.size / 2}) rotate(-90)"
        yield f'<g transform="{turn}">{_words(chart.y.label, 0, 0, "middle", WORDS)}</g>'
    if chart.empty_note:
        yield _words(chart.empty_note, x.size / 2, y.size * 0.6, "middle", ALARM)


def _series(chart: Chart, x: Scale, y: Scale) -> Iterator[str]:
    """The drawing of each series, by its kind."""
    for series, points in chart.stacked():
        colour = series.colour
        if series.kind == "level":
            for place in map(y.at, filter(y.takes, series.y)):
                yield _path(f"M0 {place}H{x.size}", colour, 1.6, series.dashed)
                if series.direct:
                    above = place - GAP
                    up = above if above > TEXT else place + TEXT + 1
                    yield _words(series.name, x.size - GAP, up, "end")
        elif series.kind == "upright":
            for place in map(x.at, filter(x.takes, series.x)):
                yield _path(f"M{place} 0V{y.size}", colour, 1.6, series.dashed)
                if series.direct and place < x.size / 2:
                    yield _words(series.name, place + GAP, TEXT, "start")
                elif series.direct:
                    yield _words(series.name, place - GAP, TEXT, "end")
        elif series.kind == "band":
            across = [p for p in points if x.takes(p.x)]
            lower = [(x.at(p.x), y.at(p.low)) for p in across if y.takes(p.low)]
            upper = [(x.at(p.x), y.at(p.high)) for p in across if y.takes(p.high)]
            edge = _line([*lower, *reversed(upper)])
            yield f'<path d="{edge}" fill="{colour}" fill-opacity=".15"/>'
        elif series.kind == "bar":
            for p in points:
                (start, end), (bottom, top) = _ends(x, p.left, p.right), _ends(y, p.low, p.high)
                size = f'width="{end - start:.1f}" height="{abs(bottom - top):.1f}"'
                yield f'<rect x="{start}" y="{min(bottom, top)}" {size} fill="{colour}"/>'
        else:
            yield from _points(series, [p for p in points if x.takes(p.x) and y.takes(p.y)], x, y)


def _ends(scale: Scale, *numbers: float) -> list[float]:
    """The places of a bar's ends; the low end of the axis for a number that it does not take."""
    return [scale.at(number if scale.takes(number) else scale.low) for number in numbers]


def _points(series: Series, points: Sequence[Point], x: Scale, y: Scale) -> Iterator[str]:
    """A line with its error bars and markers."""
    places = [(x.at(p.x), y.at(p.y)) for p in points]
    bars = ""
    for (across, up), (_, _, low, high, left, right) in zip(places, points, strict=True):
        if y.takes(low) and y.takes(high) and low != high:
            bars += f"M{across} {y.at(low)}V{y.at(high)}"
            for end in (low, high):
                bars += f"M{across - CAP:.1f} {y.at(end)}h{2 * CAP}"
        if x.takes(left) and x.takes(right) and left != right:
            bars += f"M{x.at(left)} {up}H{x.at(right)}"
            for end in (left, right):
                bars += f"M{x.at(end)} {up - CAP:.1f}v{2 * CAP}"
    if series.line and len(places) > 1:
        yield _path(_line(places, steps=series.steps), series.colour, 2, series.dashed)
    if bars:
        yield _path(bars, series.colour, 2)
    outline = series.outline or (OUTLINES["o"] if len(places) == 1 else "")
    if outline:
        marks = (f'<path d="{outline}" transform="translate({a} {b})"/>' for a, b in places)
        fill = series.colour if series.filled else WHITE
        yield f'<g fill="{fill}" stroke="{series.colour}" stroke-width="1.4">{"".join(marks)}</g>'


def _line(places: Sequence[tuple[float, float]], *, steps: bool = False) -> str:
    """The path through some places; empty without any."""
    if not places:
        return ""
    rest = "".join(f"H{a}V{b}" if steps else f"L{a} {b}" for a, b in places)
    return f"M{places[0][0]} {places[0][1]}{rest}"


def _path(line: str, colour: str, width: float, dashes: str = "") -> str:
    """The element of a line."""
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="{line}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>'


def _width(text: str) -> float:
    """About the CSS pixels that words need; Chinese, Japanese and Korean letters need twice more."""
    return LETTER * sum(2 if east_asian_width(letter) in "WF" else 1 for letter in text)


def _shorten(text: str, room: float) -> str:
    """Words that fit into ``room``: their middle is left out, as names often differ at the ends."""
    kept, left = text, len(text)
    while _width(kept) > room + 0.1 and left > 2:
        left -= 1
        kept = f"{text[: left // 2]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - (left + 1) // 2 :]}"
    return kept


def _words(text: str, x: float, y: float, anchor: str, colour: str = AXIS) -> str:
    """The element of a text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
