"""Heat maps of two varied settings, and the values that settings are varied over."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedlsg.simulations.compare.cells import grouped, is_number
from fedlsg.simulations.compare.lines import (
    SAME,
    Line,
    in_legend_order,
    measured,
    score_words,
    value_words,
)
from fedlsg.simulations.report.colours import RED, contrast
from fedlsg.simulations.report.figure import panel_grid, use_style
from fedlsg.simulations.report.words import epsilon_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 12
"""More heat maps than these are not drawn: the table has their numbers."""
COLUMNS = 2
DARK, BRIGHT = "#101112", "#fdfdfe"
"""Words on a coloured ground, which stays as it is in the dark: no colours of ``colours``."""


def varied_names(table: Sequence[Line]) -> list[str]:
    """The varied settings, in the order of the grid."""
    longest_first = sorted((line.varied for line in table), key=len, reverse=True)
    return list(dict.fromkeys(name for varied in longest_first for name in varied))


def values_of(table: Sequence[Line], name: str) -> list[Any]:
    """The values of a varied setting: numbers ascending, else as they come."""
    found = list(dict.fromkeys(line.varied[name] for line in table if name in line.varied))
    return sorted(found) if all(map(is_number, found)) else found


def value_words_of(own: Sequence[Line], name: str, values: Sequence[Any]) -> list[str]:
    """The values as words, each with its epsilon where the setting alone decides that."""
    words = list(map(value_words, values))
    epsilons = []
    for value in values:
        lines = [line for line in own if line.varied.get(name) == value and line.bounded]
        found = sorted(line.epsilon or 0.0 for line in lines)
        if not found or found[-1] > found[0] * (1 + SAME):
            return words
        epsilons.append(found[-1])
    if max(epsilons) <= min(epsilons) * (1 + SAME):
        return words
    pairs = zip(words, epsilons, strict=True)
    return [f"{word}\nepsilon {epsilon_words(epsilon, 1)}" for word, epsilon in pairs]


def heat_maps(table: Sequence[Line], names: Sequence[str]) -> "Figure | None":
    """The first setting across, the second one up; None if there are no panels, or too many.

    A panel has the lines of a method, an epsilon target and any other setting that have both.
    """
    names = names[:2]
    both = [line for line in in_legend_order(table) if line.varied.keys() >= set(names)]
    families = grouped(both, lambda line: line.family(names)).values()
    panels = [own for own in families if any(line.done for line in own)]
    return _draw(panels, names) if 0 < len(panels) <= PANELS else None


@use_style
def _draw(panels: Sequence[Sequence[Line]], names: Sequence[str]) -> "Figure":
    every = [line for own in panels for line in own]
    across, up = (values_of(every, name) for name in names)
    size = (max(3.0, 1.0 + 0.62 * len(across)), max(2.4, 1.0 + 0.48 * len(up)))
    figure, grid = panel_grid(len(panels), COLUMNS, size)
    heights = [line.height for line in every if line.done]
    limits = (min(heights), max(heights))
    for axes, own in zip(grid, panels, strict=True):
        at = {tuple(line.varied[name] for name in names): line for line in own}
        for x, first in enumerate(across):
            for y, second in enumerate(up):
                _cell(axes, at.get((first, second)), (x, y), limits)
        best = min((line for line in own if line.done), key=lambda line: line.deficit)
        place = across.index(best.varied[names[0]]), up.index(best.varied[names[1]])
        _square(axes, place, 0.46, facecolor="none", edgecolor=RED, linewidth=2)
        axes.xaxis.set_ticks(range(len(across)), value_words_of(own, names[0], across))
        axes.yaxis.set_ticks(range(len(up)), value_words_of(own, names[1], up))
        axes.set(xlim=(-0.5, len(across) - 0.5), ylim=(-0.5, len(up) - 0.5))
        axes.set(xlabel=names[0], ylabel=names[1])
        axes.tick_params(length=0)
        axes.grid(False)
        title = f"{own[0].family(names, marked=True)}: {measured(own)}"
        axes.set_title(title, fontsize=9, loc="left")
    return figure


def _square(axes: "Axes", at: tuple[int, int], half: float, **look: Any) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((at[0] - half, at[1] - half), 2 * half, 2 * half, **look))


def _cell(
    axes: "Axes", line: Line | None, at: tuple[int, int], limits: tuple[float, float]
) -> None:
    """The mean of a line on its colour; of one without a mean, why."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
    if line is None or line.mean is None:
        failed = line is not None and any(run.status == "failed" for run in line.runs)
        axes.text(*at, "failed" if failed else "--", **look)
        return
    low, high = limits
    share = (line.height - low) / (high - low) if high > low else 1.0
    ground = colormaps["viridis"](1 - share if line.by_loss else share)
    _square(axes, at, 0.5, facecolor=ground, edgecolor="none")
    colour = max((DARK, BRIGHT), key=lambda colour: contrast(colour, to_hex(ground)))
    words = score_words(line).replace(" ± ", "\n±")
    axes.text(*at, words, color=colour, linespacing=1.1, **look)
