"""Heat maps of two varied settings, and the values that settings are varied over."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlsg.simulations.compare.grid.cells import grouped, is_number
from fedlsg.simulations.compare.results.line_words import (
    Line,
    family,
    measured,
    name_with_privacy,
    score_words,
    seeds_of,
    value_words,
)
from fedlsg.simulations.compare.results.lines import SAME
from fedlsg.simulations.report.drawing.colours import RED, contrast
from fedlsg.simulations.report.pages.figure import panel_grid, use_style, with_formulas
from fedlsg.simulations.report.words import epsilon_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_PANELS = 12
"""If there are more heat maps, none is drawn: the table has their numbers."""
COLUMNS = 2
"""Heat maps in a row."""
WORDS: Any = {"ha": "center", "va": "center", "fontsize": 7, "linespacing": 1.1}
"""How words are in a cell."""
DARK, BRIGHT = "#101112", "#fdfdfe"
"""Colours of words on cells. They are not of ``colours``: cells stay the same on dark pages."""


def values_of(table: Iterable[Line], name: str) -> list[Any]:
    """The values of a varied setting: numbers ascending, others in the order of the lines."""
    values = list(dict.fromkeys(line.varied[name] for line in table if name in line.varied))
    return sorted(values) if all(map(is_number, values)) else values


def value_words_of(table: Sequence[Line], name: str, values: Sequence[Any]) -> list[str]:
    """The values as words, each with its epsilon if the setting alone decides the epsilon."""
    words = list(map(value_words, values))
    bounded = [line for line in table if (line.epsilon_max or math.inf) < math.inf]
    lines_of = grouped(bounded, lambda line: line.varied.get(name))
    epsilons = [[line.epsilon_max for line in lines_of.get(value, ())] for value in values]
    is_decided = all(own and _are_equal(own) for own in epsilons)
    if not is_decided or _are_equal(list(map(max, epsilons))):
        return words
    pairs = zip(words, epsilons, strict=True)
    return [f"{word}\nepsilon {epsilon_words(max(own), 1)}" for word, own in pairs]


def _are_equal(epsilons: Sequence[float]) -> bool:
    """Whether epsilons are equal up to the error of calibration."""
    return max(epsilons) <= min(epsilons) * (1 + SAME)


def heat_maps(table: Iterable[Line], names: Sequence[str]) -> "Figure | None":
    """Heat maps of the first setting (across) and the second one (up).

    A panel has the lines that have both settings, and agree in method, epsilon target and all other
    settings. None if there are no panels, or too many.
    """
    names = names[:2]
    both = [line for line in table if line.varied.keys() >= set(names)]
    families = grouped(both, lambda line: family(line, names)).values()
    panels = [own for own in families if any(line.n for line in own)]
    return _draw(panels, names) if 0 < len(panels) <= MAX_PANELS else None


@use_style
def _draw(panels: Sequence[Sequence[Line]], names: Sequence[str]) -> "Figure":
    """The figure: a cell for each pair of values, with one scale of colours for all panels."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize, to_hex
    from matplotlib.patches import Rectangle

    table = [line for own in panels for line in own]
    across, up = (values_of(table, name) for name in names)
    size = max(3.0, 1.0 + 0.62 * len(across)), max(2.4, 1.0 + 0.48 * len(up))
    figure, grid = panel_grid(len(panels), COLUMNS, size)
    heights = [line.height for line in table if line.n]
    low, high = min(heights), max(heights)
    scale = Normalize(low if high > low else high - 1.0, high)  # equal means are all the best
    lighter_is_better = colormaps["viridis" if _more_is_better(table) else "viridis_r"]
    colours = lighter_is_better.with_extremes(bad=BRIGHT)
    for axes, own in zip(grid, panels, strict=True):
        axes.set(xlabel=names[0], ylabel=names[1])
        axes.set_xticks(range(len(across)), value_words_of(own, names[0], across))
        axes.set_yticks(range(len(up)), value_words_of(own, names[1], up))
        axes.tick_params(length=0)
        axes.grid(False)
        deviation = " ± s.d." if seeds_of(own) else ""
        title = f"{name_with_privacy(own[0], family(own[0], names))}: {measured(own)}{deviation}"
        axes.set_title(title, fontsize=9, loc="left")
        lines = {tuple(line.varied[name] for name in names): line for line in own}
        cells = [[lines.get((x, y)) for x in across] for y in up]
        means = np.array([[line and line.height for line in row] for row in cells], float)
        axes.imshow(means, cmap=colours, norm=scale, origin="lower", aspect="auto")
        for y, x in np.ndindex(means.shape):
            ground = to_hex(colours(scale(means[y, x])))
            colour = max((DARK, BRIGHT), key=lambda colour: contrast(colour, ground))
            axes.text(x, y, _words(cells[y][x]), color=colour, **WORDS)
        best = np.nanargmax(means if _more_is_better(own) else -means)
        y, x = divmod(int(best), len(across))
        frame = Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, facecolor="none", edgecolor=RED)
        axes.add_patch(frame).set_linewidth(2)
    return with_formulas(figure)


def _more_is_better(table: Iterable[Line]) -> bool:
    return all(line.more_is_better for line in table)


def _words(line: Line) -> str:
    """The mean of a line in words; for a line without a mean, whether a run failed."""
    if line is None or line.mean is None:
        failed = line is not None and any(run.status == "failed" for run in line.runs)
        return "failed" if failed else "--"
    return str(score_words(line).replace(" ± ", "\n±"))
