"""The figures of varied settings: curves of accuracy for one setting, heat maps for two."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulations.compare.lines import Line, is_number, measured, score_words, value_words
from simulations.compare.plots import chance, heights, in_legend_order, looks_of, marks, unit_of
from simulations.report.chart import Axis, Chart, level, spaced
from simulations.report.colours import RED, contrast
from simulations.report.figure import panel_grid, use_style
from simulations.report.words import NOT_PRIVATE, epsilon_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 12
"""More heat maps than these are not drawn: the table has their numbers."""
COLUMNS = 2
WIDE = 8.0
"""Numbers whose largest is so many times the smallest have a logarithmic scale."""
DARK, BRIGHT = "#101112", "#fdfdfe"
"""Words on a coloured ground. They are no colours of ``colours``: the ground stays as it is in the dark, too."""
SAME = 0.01
"""Relative difference of epsilons that count as one."""

CAPTIONS = {
    "accuracy-varied": "How the accuracy depends on the varied setting. A mark is the mean over seeds; bars show one "
    "standard deviation. Dashed horizontal lines, if there are any, are methods without the setting.",
    "accuracy-heat": "The accuracy for each pair of values: mean over seeds, and below it one standard deviation. All "
    "panels have the same colours; lighter is better. A frame marks the best pair of a panel. Methods that lack one of "
    "the settings are in the table alone.",
}

Place = tuple[Any, ...]


def varied_names(table: Sequence[Line]) -> list[str]:
    """The varied settings, in the order of the grid."""
    longest = max((line.varied for line in table), key=len, default={})
    return list(dict.fromkeys(name for varied in (longest, *(line.varied for line in table)) for name in varied))


def varied_figures(table: Sequence[Line]) -> "dict[str, tuple[Chart, ...] | Figure]":
    """By file name: curves for one varied setting, heat maps for two; none if nothing is varied, or no run is done."""
    names, done = varied_names(table), [line for line in table if line.mean is not None]
    if not names or not done:
        return {}
    if len(names) == 1:
        return {"accuracy-varied": curves(done, names[0])}
    panels = heat_panels(table, names)
    return {"accuracy-heat": heat_maps(panels, names)} if panels else {}


def curves(done: Sequence[Line], name: str) -> tuple[Chart, ...]:
    """Mean accuracy ± standard deviation against the values of one setting."""
    values = values_of(done, name)
    numbers = all(map(is_number, values))
    families: dict[Place, list[Line]] = {}
    for line in in_legend_order(done):
        families.setdefault(_family(line, [name]), []).append(line)
    looks = looks_of([own[0] for own in families.values()])
    series = []
    for own in families.values():
        look, label = looks[own[0].name], _family_name(own[0], [name])
        if name not in own[0].varied:
            series.append(level(heights(own)[0][0], label, look[0]))
            continue
        own = sorted(own, key=lambda line: values.index(line.varied[name]))
        x = [line.varied[name] if numbers else values.index(line.varied[name]) for line in own]
        series.append(marks(x, own, look, name=label))
    log = bool(numbers and values[0] > 0 and values[-1] / values[0] >= WIDE)
    places = values if numbers else range(len(values))
    ticks = spaced(list(zip(map(float, places), _ticks(done, name, values), strict=True)), log=log)
    x_axis = Axis(label=name, log=log, ticks=ticks)
    y = Axis(label=measured(done), unit=unit_of(done))
    return (Chart(title=f"Accuracy over {name}", x=x_axis, y=y, series=(*series, *chance(done)), height=420),)


def heat_panels(table: Sequence[Line], names: Sequence[str]) -> list[list[Line]]:
    """Lines that have both of the first two settings, a panel for each method, epsilon target and other setting."""
    panels: dict[Place, list[Line]] = {}
    for line in in_legend_order(table):
        if all(name in line.varied for name in names[:2]):
            panels.setdefault(_family(line, names[:2]), []).append(line)
    found = [own for own in panels.values() if any(line.mean is not None for line in own)]
    return found if len(found) <= PANELS else []


@use_style
def heat_maps(panels: Sequence[Sequence[Line]], names: Sequence[str]) -> "Figure":
    """A panel for each method: the first setting across, the second one up."""
    every = [line for own in panels for line in own]
    across, up = (values_of(every, name) for name in names[:2])
    size = (max(3.0, 1.0 + 0.62 * len(across)), max(2.4, 1.0 + 0.48 * len(up)))
    figure, grid = panel_grid(len(panels), COLUMNS, size)
    means = [line.scale * line.mean for line in every if line.mean is not None]
    for axes, own in zip(grid, panels, strict=True):
        _heat(axes, own, names, (across, up), (min(means), max(means)))
    return figure


def _heat(
    axes: "Axes", own: Sequence[Line], names: Sequence[str], values: tuple[list[Any], list[Any]],
    limits: tuple[float, float],
) -> None:  # fmt: skip
    from matplotlib.patches import Rectangle

    at = {(line.varied[names[0]], line.varied[names[1]]): line for line in own}
    done = [line for line in own if line.mean is not None]
    best = min(done, key=lambda line: (line.mean or 0.0) * (1 if line.by_loss else -1))
    for x, first in enumerate(values[0]):
        for y, second in enumerate(values[1]):
            _cell(axes, at.get((first, second)), (x, y), limits)
    x, y = (place.index(best.varied[name]) for place, name in zip(values, names, strict=False))
    axes.add_patch(Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, facecolor="none", edgecolor=RED, linewidth=2))
    for axis, name, known in zip((axes.xaxis, axes.yaxis), names, values, strict=False):
        axis.set_ticks(range(len(known)), _ticks(own, name, known))
    axes.set(
        xlim=(-0.5, len(values[0]) - 0.5), ylim=(-0.5, len(values[1]) - 0.5), xlabel=names[0], ylabel=names[1]
    )  # fmt: skip
    axes.tick_params(length=0)
    axes.grid(False)
    axes.set_title(f"{_family_name(own[0], names[:2])}: {measured(own)}", fontsize=9, loc="left")


def _cell(axes: "Axes", line: Line | None, at: tuple[int, int], limits: tuple[float, float]) -> None:
    """The mean of a line on its colour; of one without a mean, why."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex
    from matplotlib.patches import Rectangle

    (x, y), (low, high) = at, limits
    if line is None or line.mean is None:
        words = "--" if line is None or not any(run.status == "failed" for run in line.runs) else "failed"
        axes.text(x, y, words, ha="center", va="center", fontsize=7)
        return
    share = (line.scale * line.mean - low) / (high - low) if high > low else 1.0
    ground = colormaps["viridis"](1 - share if line.by_loss else share)
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=ground, edgecolor="none"))
    colour = max((DARK, BRIGHT), key=lambda colour: contrast(colour, to_hex(ground)))
    words = score_words(line).replace(" ± ", "\n±")
    axes.text(x, y, words, ha="center", va="center", fontsize=7, color=colour, linespacing=1.1)


def values_of(table: Sequence[Line], name: str) -> list[Any]:
    """The values of a varied setting: numbers ascending, else as they come."""
    found = list(dict.fromkeys(line.varied[name] for line in table if name in line.varied))
    return sorted(found) if all(map(is_number, found)) else found


def _ticks(own: Sequence[Line], name: str, values: Sequence[Any]) -> list[str]:
    """The values as words, each with its epsilon where the setting alone decides that."""
    epsilons = {value: [line.epsilon for line in own if line.varied.get(name) == value] for value in values}
    spent: Mapping[Any, list[float]] = {
        value: [epsilon for epsilon in found if epsilon is not None and math.isfinite(epsilon)]
        for value, found in epsilons.items()
    }
    decided = all(found and max(found) <= min(found) * (1 + SAME) for found in spent.values())
    differ = decided and max(map(max, spent.values())) > min(map(max, spent.values())) * (1 + SAME)
    return [value_words(v) + (f"\nepsilon {epsilon_words(max(spent[v]), 1)}" if differ else "") for v in values]


def _family(line: Line, names: Sequence[str]) -> Place:
    """What lines of one curve or panel share: all but the settings ``names``."""
    others = tuple((name, value) for name, value in line.varied.items() if name not in names)
    axes = tuple(None if name in line.varied else line.setting(name) for name in ("rank", "sparsity"))
    return line.label, line.unit, line.trust, line.epsilon_target, others, axes


def _family_name(line: Line, names: Sequence[str]) -> str:
    others = [f"r {line.setting('rank')}"] if line.setting("rank") and "rank" not in line.varied else []
    if line.setting("sparsity") is not None and "sparsity" not in line.varied:
        others.append(f"p {line.setting('sparsity'):g}")
    others += [f"{name} {value_words(value)}" for name, value in line.varied.items() if name not in names]
    others += [] if line.epsilon_target is None else [f"epsilon {line.epsilon_target:g}"]
    others += [line.of_unit.level] if line.of_unit.level and "unit" not in line.varied else []
    label = line.label + ("" if line.private is not False else f", {NOT_PRIVATE}")
    return f"{label} ({', '.join(others)})" if others else label
