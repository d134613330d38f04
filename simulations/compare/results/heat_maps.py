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
from fedlsg.simulations.report.pages.figure import panel_grid, use_style
from fedlsg.simulations.report.words import epsilon_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = 12
"""More heat maps than these are not drawn: the table has their numbers."""
COLUMNS = 2
WORDS: Any = {"ha": "center", "va": "center", "fontsize": 7, "linespacing": 1.1}
DARK, BRIGHT = "#101112", "#fdfdfe"
"""Words on a coloured ground, which stays as it is in the dark: no colours of ``colours``."""


def values_of(table: Iterable[Line], name: str) -> list[Any]:
    """The values of a varied setting: numbers ascending, else as they come."""
    values = list(dict.fromkeys(line.varied[name] for line in table if name in line.varied))
    return sorted(values) if all(map(is_number, values)) else values


def value_words_of(table: Sequence[Line], name: str, values: Sequence[Any]) -> list[str]:
    """The values as words, each with its epsilon where the setting alone decides that."""
    words = list(map(value_words, values))
    bounded = [line for line in table if (line.epsilon_max or math.inf) < math.inf]
    spent = grouped(bounded, lambda line: line.varied.get(name))
    epsilons = [[line.epsilon_max for line in spent.get(value, ())] for value in values]
    if not all(own and _equal(own) for own in epsilons) or _equal(list(map(max, epsilons))):
        return words
    ends = (f"\nepsilon {epsilon_words(max(own), 1)}" for own in epsilons)
    return [word + end for word, end in zip(words, ends, strict=True)]


def _equal(epsilons: Sequence[float]) -> bool:
    return max(epsilons) <= min(epsilons) * (1 + SAME)


def heat_maps(table: Iterable[Line], names: Sequence[str]) -> "Figure | None":
    """The first setting across, the second one up; None if there are no panels, or too many.

    A panel has the lines of a method, an epsilon target and any other setting that have both.
    """
    names = names[:2]
    both = [line for line in table if line.varied.keys() >= set(names)]
    families = grouped(both, lambda line: family(line, names)).values()
    panels = [own for own in families if any(line.n for line in own)]
    return _draw(panels, names) if 0 < len(panels) <= PANELS else None


@use_style
def _draw(panels: Sequence[Sequence[Line]], names: Sequence[str]) -> "Figure":
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
        y, x = divmod(int(np.nanargmax(means if _more_is_better(own) else -means)), len(across))
        frame = Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, facecolor="none", edgecolor=RED)
        axes.add_patch(frame).set_linewidth(2)
    return figure


def _more_is_better(table: Iterable[Line]) -> bool:
    return all(line.more_is_better for line in table)


def _words(line: Line) -> str:
    """The mean of a line; of one without a mean, why."""
    if line is None or line.mean is None:
        failed = line is not None and any(run.status == "failed" for run in line.runs)
        return "failed" if failed else "--"
    return str(score_words(line).replace(" ± ", "\n±"))
