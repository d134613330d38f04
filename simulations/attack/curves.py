"""Reconstruction over sparsity and over noise: one figure of the strongest attacks on several runs."""

from collections.abc import Callable, Sequence
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING

from simulations.attack.recorded.rows import Best
from simulations.report.figure import GUESSING, canonical, looks, new_figure, use_style, wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def curves(points: Sequence[Best]) -> "Figure | None":
    """A panel over sparsity, a panel over sigma: those in which something differs; None if nothing does.

    Runs that differ in nothing else (another seed) are points of one line, which goes through their means.
    """
    over = [
        ("sparsity p", sparsity_lines(points), _sparsity),
        ("sigma: noise over clip norm", sigma_lines(points), _sigma),
    ]
    panels = [(words, lines, x) for words, lines, x in over if lines]
    return _draw(panels, points) if panels else None


def _sparsity(one: Best) -> float:
    return one.sparsity or 0.0


def _sigma(one: Best) -> float:
    return one.sigma


@use_style
def _draw(panels: Sequence[tuple[str, Lines, Callable[[Best], float]]], points: Sequence[Best]) -> "Figure":
    figure = new_figure(4.4 * len(panels), 3.9)
    all_axes = list(figure.subplots(1, len(panels), squeeze=False)[0])
    for axes, (words, lines, x) in zip(all_axes, panels, strict=True):
        styles = looks(list(lines))
        for number, ((_, name), some) in enumerate(lines.items()):
            _line(axes, some, x, name, (*styles[name], DASHES[number % len(DASHES)]))
        axes.axhline(0.0, label="blind guess", **GUESSING)
        axes.set_xlabel(words)
        axes.set_ylabel(f"gain over the blind guess, {points[0].unit}")
        if x is _sigma:
            _noise_axis(axes, sorted({one.sigma for some in lines.values() for one in some}))
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    return figure


def _line(
    axes: "Axes", some: Sequence[Best], x: Callable[[Best], float], name: str, style: tuple[str, str, str]
) -> None:
    colour, marker, dashes = style
    means = {place: fmean(_drawn(one.gain, one) for one in of) for place, of in groupby(some, key=x)}
    axes.plot(list(means), list(means.values()), color=colour, linestyle=dashes, marker=marker, label=wrap(name))
    for one in some:
        if one.low is not None and one.high is not None:
            y, low, high = (_drawn(value, one) for value in (one.gain, one.low, one.high))
            reach = [[y - low], [high - y]]
            axes.errorbar(
                [x(one)], [y], yerr=reach, color=colour, marker=marker, capsize=2, elinewidth=1, linestyle="none"
            )


def _drawn(value: float, one: Best) -> float:
    return min(value, MOST.get(one.unit, value))


def caption(points: Sequence[Best]) -> str:
    """What the figure shows."""
    return f"{CAPTION} {CAPPED}" if any(_drawn(one.gain, one) < one.gain for one in points) else CAPTION


def _noise_axis(axes: "Axes", sigmas: Sequence[float]) -> None:
    """Logarithmic; a run without noise is at the left end."""
    from matplotlib.ticker import NullLocator

    least = min(sigma for sigma in sigmas if sigma)
    axes.set_xscale("symlog", linthresh=least, linscale=0.6) if sigmas[0] == 0 else axes.set_xscale("log")
    axes.set_xticks(sigmas, [f"{sigma:.3g}" for sigma in sigmas])
    axes.xaxis.set_minor_locator(NullLocator())
