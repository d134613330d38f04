"""Heat maps of two varied settings, and the values that settings are varied over."""

from collections.abc import Callable, Sequence
from itertools import product
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
    names: dict[str, None] = {}
    for line in sorted(table, key=lambda line: len(line.varied), reverse=True):
        names |= dict.fromkeys(line.varied)
    return list(names)


def values_of(table: Sequence[Line], name: str) -> list[Any]:
    """The values of a varied setting: numbers ascending, else as they come."""
    values = list(dict.fromkeys(line.varied[name] for line in table if name in line.varied))
    return sorted(values) if all(map(is_number, values)) else values


def value_words_of(table: Sequence[Line], name: str, values: Sequence[Any]) -> list[str]:
    """The values as words, each with its epsilon where the setting alone decides that."""
    words = [value_words(value) for value in values]
    epsilons = []
    for value in values:
        lines = [line for line in table if line.bounded and line.varied.get(name) == value]
        spent = [line.epsilon or 0.0 for line in lines]
        if not spent or not _equal(spent):
            return words
        epsilons.append(max(spent))
    if _equal(epsilons):
        return words
    return [
        f"{word}\nepsilon {epsilon_words(epsilon, 1)}"
        for word, epsilon in zip(words, epsilons, strict=True)
    ]


def _equal(epsilons: Sequence[float]) -> bool:
    return max(epsilons) <= min(epsilons) * (1 + SAME)


def heat_maps(table: Sequence[Line], names: Sequence[str]) -> "Figure | None":
    """The first setting across, the second one up; None if there are no panels, or too many.

    A panel has the lines of a method, an epsilon target and any other setting that have both.
    """
    names = names[:2]
    both = [line for line in in_legend_order(table) if line.varied.keys() >= set(names)]
    families = grouped(both, lambda line: line.family(names)).values()
    panels = [family for family in families if any(line.done for line in family)]
    return _draw(panels, names) if 0 < len(panels) <= PANELS else None


@use_style
def _draw(panels: Sequence[Sequence[Line]], names: Sequence[str]) -> "Figure":
    table = [line for family in panels for line in family]
    across, up = (values_of(table, name) for name in names)
    width = max(3.0, 1.0 + 0.62 * len(across))
    height = max(2.4, 1.0 + 0.48 * len(up))
    figure, grid = panel_grid(len(panels), COLUMNS, (width, height))
    heights = [line.height for line in table if line.done]
    colour_of = _colours(min(heights), max(heights), by_loss=any(line.by_loss for line in table))
    for axes, family in zip(grid, panels, strict=True):
        axes.set(xlim=(-0.5, len(across) - 0.5), ylim=(-0.5, len(up) - 0.5))
        axes.set(xlabel=names[0], ylabel=names[1])
        axes.set_xticks(range(len(across)), value_words_of(family, names[0], across))
        axes.set_yticks(range(len(up)), value_words_of(family, names[1], up))
        axes.tick_params(length=0)
        axes.grid(False)
        title = f"{family[0].family(names, marked=True)}: {measured(family)}"
        axes.set_title(title, fontsize=9, loc="left")
        places = {}
        for line in family:
            place = across.index(line.varied[names[0]]), up.index(line.varied[names[1]])
            places[place] = line
        for place in product(range(len(across)), range(len(up))):
            _draw_cell(axes, places.get(place), place, colour_of)
        done = [place for place, line in places.items() if line.done]
        best = min(done, key=lambda place: places[place].deficit)
        _square(axes, best, 0.46, facecolor="none", edgecolor=RED, linewidth=2)
    return figure


def _colours(low: float, high: float, *, by_loss: bool) -> Callable[[float], str]:
    """The colour of a mean from ``low`` to ``high``, lighter for a better one."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize, to_hex

    low = low if high > low else high - 1.0  # equal means are all the best
    share, colours = Normalize(low, high), colormaps["viridis_r" if by_loss else "viridis"]
    return lambda mean: to_hex(colours(float(share(mean))))


def _square(axes: "Axes", place: tuple[int, int], half: float, **look: Any) -> None:
    from matplotlib.patches import Rectangle

    across, up = place
    axes.add_patch(Rectangle((across - half, up - half), 2 * half, 2 * half, **look))


def _draw_cell(
    axes: "Axes", line: Line | None, place: tuple[int, int], colour_of: Callable[[float], str]
) -> None:
    """The mean of a line on its colour; of one without a mean, why."""
    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
    if line is None or line.mean is None:
        failed = line is not None and any(run.status == "failed" for run in line.runs)
        axes.text(*place, "failed" if failed else "--", **look)
        return
    ground = colour_of(line.height)
    _square(axes, place, 0.5, facecolor=ground, edgecolor="none")
    words_colour = max((DARK, BRIGHT), key=lambda colour: contrast(colour, ground))
    words = score_words(line).replace(" ± ", "\n±")
    axes.text(*place, words, color=words_colour, linespacing=1.1, **look)
