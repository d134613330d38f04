"""Reconstruction over sparsity and over noise: one figure of the strongest attacks on several runs."""

from collections.abc import Callable, Sequence
from itertools import groupby
from statistics import fmean

from simulations.attack.recorded.rows import Best
from simulations.report.chart import Axis, Chart, Series, level, spaced
from simulations.report.colours import GREY, canonical, looks

CAPTION = (
    "What the strongest attack that is not naive gains over a blind guess, on the smallest batches of each run. Bars: "
    "95 % interval of the mean over what was attacked in that run. Each run drew batches of its own. Dotted: the blind "
    "guess."
)
CAPPED = "Gains of 40 dB and more, where an image looks like its original, are drawn at 40 dB."
MOST = {"dB": 40.0}
"""Larger gains are drawn at it, by unit: above it, only the rounding of numbers differs."""
DASHES = ("-", "--", ":", "-.")
Number = Callable[[Best], float | None]
Lines = dict[tuple[str, str], list[Best]]


def sparsity_lines(points: Sequence[Best]) -> Lines:
    """By (method, name): the points of one method and sigma, where the sparsities differ."""
    return _lines(points, lambda one: one.sparsity, lambda one: (one.method, f"{one.method}, {sigma_words(one)}"))


def sigma_lines(points: Sequence[Best]) -> Lines:
    """By (method, name): the points of one method and sparsity, where the sigmas differ."""
    return _lines(points, lambda one: one.sigma, lambda one: (one.method, f"{one.method}{sparsity_words(one)}"))


def sigma_words(one: Best) -> str:
    """The noise in a few words."""
    return f"sigma {one.sigma:.3g}" if one.sigma else "no noise"


def sparsity_words(one: Best) -> str:
    """The sparsity in a few words; nothing for a method without one."""
    return "" if one.sparsity is None else f", p {one.sparsity:g}"


def _lines(points: Sequence[Best], x: Number, name: Callable[[Best], tuple[str, str]]) -> Lines:
    known = sorted((one for one in points if x(one) is not None), key=lambda one: (canonical(one.method), name(one)))
    found = {key: sorted(some, key=lambda one: x(one) or 0.0) for key, some in groupby(known, key=name)}
    return {key: some for key, some in found.items() if len({round(x(one) or 0.0, 9) for one in some}) > 1}


def curves(points: Sequence[Best]) -> tuple[Chart, ...]:
    """A chart over sparsity, a chart over sigma: those in which something differs; none if nothing does.

    Runs that differ in nothing else (another seed) are points of one line, which goes through their means.
    """
    over = [
        ("sparsity p", sparsity_lines(points), _sparsity),
        ("sigma: noise over clip norm", sigma_lines(points), _sigma),
    ]
    return tuple(_chart(words, lines, x, points[0].unit) for words, lines, x in over if lines)


def _sparsity(one: Best) -> float:
    return one.sparsity or 0.0


def _sigma(one: Best) -> float:
    return one.sigma


def _chart(words: str, lines: Lines, x: Callable[[Best], float], unit: str) -> Chart:
    styles, series = looks(list(lines)), []
    across = (
        Axis(label=words)
        if x is _sparsity
        else _noise_axis(sorted({one.sigma for some in lines.values() for one in some}))
    )
    places = {0.0: across.ticks[0][0]} if across.ticks else {}
    for number, ((_, name), some) in enumerate(lines.items()):
        series += _line(
            some, lambda one: places.get(x(one), x(one)), name, (*styles[name], DASHES[number % len(DASHES)])
        )
    title = f"gain over the blind guess, {unit}"
    return Chart(title=title, x=across, series=(*series, level(0.0, "blind guess", GREY, ":")), height=360)


def _line(some: Sequence[Best], x: Callable[[Best], float], name: str, style: tuple[str, str, str]) -> list[Series]:
    """A line through the means, and every run with its interval."""
    colour, marker, dashes = style
    means = {place: fmean(_drawn(one.gain, one) for one in of) for place, of in groupby(some, key=x)}
    line = Series(name=name, x=list(means), y=list(means.values()), colour=colour, dashes=dashes)
    runs = Series(
        name=name, x=[x(one) for one in some], y=[_drawn(one.gain, one) for one in some], colour=colour, marker=marker,
        low=[None if one.low is None else _drawn(one.low, one) for one in some], line=False,
        high=[None if one.high is None else _drawn(one.high, one) for one in some],
        words=tuple(f"{one.attack}, {sigma_words(one)}{sparsity_words(one)}" for one in some),
    )  # fmt: skip
    return [line, runs]


def _drawn(value: float, one: Best) -> float:
    return min(value, MOST.get(one.unit, value))


def caption(points: Sequence[Best]) -> str:
    """What the figure shows."""
    return f"{CAPTION} {CAPPED}" if any(_drawn(one.gain, one) < one.gain for one in points) else CAPTION


def _noise_axis(sigmas: Sequence[float]) -> Axis:
    """Logarithmic; a run without noise is at the left end."""
    shown = [sigma or min(other for other in sigmas if other) / 4 for sigma in sigmas]
    ticks = [(at, f"{sigma:.3g}" if sigma else "no noise") for at, sigma in zip(shown, sigmas, strict=True)]
    return Axis(label="sigma: noise over clip norm", log=True, ticks=spaced(ticks, log=True))
