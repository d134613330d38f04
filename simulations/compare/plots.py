"""The figures of a comparison: accuracy against epsilon and against bytes, learning curves."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulations.compare.bytes_axis import PLAIN, Panel, View, marked, panels
from simulations.compare.lines import Line, measured, order
from simulations.report.figure import (
    GUESSING,
    canonical,
    legend_outside,
    log_bytes,
    looks,
    name_ticks,
    new_figure,
    panel_grid,
    use_style,
    whole_numbers,
    wrap,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEAR = 0.1
"""The line of guessing is drawn if it is at most this far below what the means already span, in accuracy."""
CURVES = 10
"""So many learning curves, at most, are drawn of settings that are varied."""
DASHES = ("-", "--", ":", "-.")


def figures(table: Sequence[Line], view: View = PLAIN) -> dict[str, "Figure"]:
    """The figures of a comparison by file name; none if no run is done."""
    finished = in_legend_order(line for line in table if line.done)
    if not finished:
        return {}
    looks = looks_of(table)
    if any(line.varied for line in finished) and not view.bytes:  # vary_plots has figures that fit
        return {"learning-curves": learning_curves(finished, looks)} if len(table) <= CURVES else {}
    if view.bytes:
        by_bytes = {"accuracy-total-bytes": accuracy_by_total_bytes(panels(finished))}
        return by_bytes | {"learning-curves": learning_curves(finished, looks)}
    return {
        "accuracy-epsilon": accuracy_by_epsilon(finished, looks),
        "accuracy-bytes": accuracy_by_bytes(finished, looks),
        "learning-curves": learning_curves(finished, looks),
    }


def in_legend_order(table: Iterable[Line]) -> list[Line]:
    """Lines in the order of every legend: by method, then by name, the smallest epsilon first."""
    return sorted(table, key=lambda line: (canonical(line.method), line.name, order(line)))


def looks_of(table: Sequence[Line]) -> dict[str, tuple[str, str, str]]:
    """(colour, marker, dashes) by the name of a line; variants of a method share the colour only."""
    names = sorted({(line.method, line.name) for line in table})
    methods = [method for method, _ in names]
    variants = {name: position - methods.index(method) for position, (method, name) in enumerate(names)}
    return {name: (*look, DASHES[variants[name] % len(DASHES)]) for name, look in looks(names).items()}


Looks = Mapping[str, tuple[str, str, str]]


@use_style
def accuracy_by_epsilon(table: Sequence[Line], looks: Looks) -> "Figure":
    """Mean accuracy ± standard deviation at each epsilon; with one epsilon only, a row for each method."""
    targets = sorted({line.epsilon_target for line in table if line.epsilon_target is not None})
    return _curves_over_epsilon(table, looks, targets) if len(targets) > 1 else _dots(table, looks)


def _curves_over_epsilon(table: Sequence[Line], looks: Looks, targets: Sequence[float]) -> "Figure":
    figure = new_figure(7.2, 4.0)
    axes = figure.subplots()
    families: dict[str, list[tuple[float, Line]]] = {}
    for line in table:
        if line.epsilon_target is not None:
            families.setdefault(line.name, []).append((line.epsilon_target, line))
    for position, (name, points) in enumerate(families.items()):
        shift = 1 + 0.015 * (position - (len(families) - 1) / 2)  # so that error bars do not cover each other
        draw_marks(axes, [shift * target for target, _ in points], [line for _, line in points], looks[name])
    draw_levels(axes, [line for line in table if line.epsilon_target is None], looks)
    axes.set_xscale("log")
    name_ticks(axes.xaxis, targets, [f"{target:g}" for target in targets])
    of = "each client's examples" if all(line.unit == "example" for line in table) else "an example, or of a client"
    axes.set(xlabel=f"epsilon of {of} (target, logarithmic)", ylabel=measured(table))
    draw_chance(axes, table)
    legend_outside(figure, [axes], order=_names(table))
    return figure


def _dots(table: Sequence[Line], looks: Looks) -> "Figure":
    ordered = sorted(table, key=order, reverse=True)
    figure = new_figure(7.2, 1.0 + 0.28 * len(ordered))
    axes = figure.subplots()
    for y, line in enumerate(ordered):
        (mean,), (sd,) = heights([line])
        colour, marker, _ = looks[line.name]
        axes.errorbar([mean], [y], xerr=[sd], color=colour, marker=marker, capsize=2, linestyle="none")
    axes.set_yticks(range(len(ordered)), [wrap(marked(line)) for line in ordered])
    epsilon = next((f", epsilon {line.epsilon_target:g}" for line in table if line.epsilon_target is not None), "")
    axes.set(ylim=(-0.6, len(ordered) - 0.4), xlabel=f"{measured(table)}{epsilon}")
    draw_chance(axes, table, vertical=True)
    return figure


@use_style
def accuracy_by_bytes(table: Sequence[Line], looks: Looks) -> "Figure":
    """Mean accuracy ± standard deviation against all payload bytes of a run, logarithmic."""
    figure = new_figure(7.2, 4.0)
    axes = figure.subplots()
    targets = sorted({line.epsilon_target for line in table if line.epsilon_target is not None})
    for line, place in zip(table, _move_apart([line.total_uplink or 0.0 for line in table]), strict=True):
        if not place:
            continue
        colour, marker, _ = looks[line.name]
        last = line.epsilon_target is None or line.epsilon_target == targets[-1]
        label = wrap(marked(line)) if last else None
        draw_marks(axes, [place], [line], (colour, marker, "none"), filled=last, label=label)
        if len(targets) > 1 and line.epsilon_target is not None:
            axes.annotate(
                f"{line.epsilon_target:g}", (place, heights([line])[0][0]), textcoords="offset points",
                xytext=(5, 3 if last else -8), fontsize=6.5, color=colour,
            )  # fmt: skip
    log_bytes(axes)
    axes.set(xlabel="bytes sent, all clients, whole run (logarithmic)", ylabel=measured(table))
    draw_chance(axes, table)
    legend_outside(figure, [axes], order=_names(table))
    return figure


def _move_apart(places: Sequence[float]) -> list[float]:
    """Move equal places of a logarithmic axis 2 % apart, so that marks do not cover each other."""
    found = []
    for index, place in enumerate(places):
        before, count = places[:index].count(place), places.count(place)
        found.append(place * 1.02 ** (before - (count - 1) / 2))
    return found


@use_style
def accuracy_by_total_bytes(panels: Sequence[Panel]) -> "Figure":
    """Mean accuracy ± standard deviation over seeds against payload bytes of a whole run, logarithmic.

    Filled marks are private, hollow ones are not. Each row of panels has one epsilon.
    """
    shapes = looks([(line.method, line.name) for panel in panels for line in panel.lines])
    figure = new_figure(8.6, 0.9 + 2.7 * len(panels))
    grid = figure.subplots(len(panels), 2, squeeze=False, sharey="row", sharex="col")
    for row, panel in zip(grid, panels, strict=True):
        for axes, sent in zip(row, ("sent", "sent and received"), strict=True):
            for line in panel.lines:
                place = (line.total_uplink or 0.0) + (line.total_downlink or 0.0 if sent != "sent" else 0.0)
                draw_marks(axes, [place], [line], (*shapes[line.name], "none"), filled=bool(line.private),
                           capsize=2.5, markersize=6)  # fmt: skip
            _scale_bytes(axes)
            axes.set_title(panel.title, fontsize=9, loc="left")
            axes.set_xlabel(f"bytes {sent}, all clients, whole run")
            axes.tick_params(labelbottom=True, labelleft=True)
        row[0].set_ylabel(measured(panel.lines))
    every = in_legend_order({line.name: line for panel in panels for line in panel.lines}.values())
    legend_outside(figure, (row[0] for row in grid), order=_names(every))
    return figure


def _scale_bytes(axes: Any) -> None:
    low, high = axes.dataLim.intervalx
    log_bytes(axes, (1,) if high / low > 100 else (1, 3) if high / low > 10 else (1, 2, 5))
    axes.set_xlim(low / 1.4, high * 1.4)


@use_style
def learning_curves(table: Sequence[Line], looks: Looks) -> "Figure":
    """Accuracy after each round: mean over seeds, band from the worst to the best seed; a panel for each epsilon.

    Where every run has a simulated clock, the rounds are at their mean simulated time.
    """
    timed = all(row.simulated is not None for line in table for run in line.done for row in run.rows)
    targets = sorted({line.epsilon_target for line in table}, key=lambda target: target or math.inf)
    size = (2.7 if len(targets) > 1 else 5.0, 2.7)
    figure, panels = panel_grid(len(targets), 3, size, (2.2, 0.5), sharey=True, sharex=True)
    for panel, target in zip(panels, targets, strict=True):
        for line in table:
            if line.epsilon_target == target:
                _learning_curve(panel, line, looks[line.name], timed=timed)
        at = "no epsilon target" if target is None else f"epsilon {target:g}"
        panel.set_title(f"{measured(table)}; {at}", fontsize=9, loc="left")
        panel.tick_params(labelbottom=True, labelleft=True)
        panel.set_xlabel("simulated seconds" if timed else "round")
        if not timed:
            whole_numbers(panel.xaxis)
    legend_outside(figure, panels, order=_names(table))
    return figure


def _learning_curve(panel: "Axes", line: Line, look: tuple[str, str, str], *, timed: bool) -> None:
    colour, marker, dashes = look
    rounds, mean, low, high = curve(line)
    places = clock_times(line, rounds) if timed else rounds
    mark = marker if len(rounds) == 1 else ""
    panel.plot(places, mean, color=colour, marker=mark, linestyle=dashes, label=wrap(line.name))
    if len(line.done) > 1:
        panel.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)


def curve(line: Line) -> tuple[list[int], list[float], list[float], list[float]]:
    """(rounds, mean, smallest, largest) of accuracy in percent, or loss, over the rounds of all finished seeds."""
    name = "loss" if line.by_loss else "accuracy"
    rows = [[(row.round, getattr(row, name)) for row in run.rows] for run in line.done]
    seeds = [{round: line.scale * value for round, value in own if value is not None} for own in rows]
    rounds = sorted(set.intersection(*(set(seed) for seed in seeds)))
    values = [[seed[round] for seed in seeds] for round in rounds]
    return rounds, [statistics.fmean(v) for v in values], [min(v) for v in values], [max(v) for v in values]


def clock_times(line: Line, rounds: Sequence[int]) -> list[float]:
    """Simulated seconds at the ends of rounds, mean over the finished seeds, which all have a clock."""
    clocks = [{row.round: row.simulated.simulated_clock for row in run.rows if row.simulated} for run in line.done]
    return [statistics.fmean(clock[round] for clock in clocks) for round in rounds]


def heights(own: Sequence[Line]) -> tuple[list[float], list[float]]:
    """Means and standard deviations as they are shown."""
    return [line.scale * (line.mean or 0.0) for line in own], [line.scale * (line.sd or 0.0) for line in own]


def draw_marks(
    axes: "Axes", places: Sequence[Any], own: Sequence[Line], look: tuple[str, str, str], *, filled: bool = True,
    label: str | None = "", **more: Any,
) -> None:  # fmt: skip
    """Means ± standard deviations of lines at these places; ``label``: by default the name of the first line."""
    colour, marker, dashes = look
    axes.errorbar(
        places, *heights(own), color=colour, marker=marker, linestyle=dashes,
        markerfacecolor=colour if filled else "white", label=wrap(marked(own[0])) if label == "" else label,
        **{"capsize": 2, **more},
    )  # fmt: skip


def draw_levels(axes: "Axes", own: Iterable[Line], looks: Looks) -> None:
    """A dashed line across at the mean of each line."""
    for line in own:
        if line.mean is not None:
            axes.axhline(
                line.scale * line.mean, color=looks[line.name][0], linestyle="--", linewidth=1, label=wrap(marked(line))
            )


def _names(table: Sequence[Line]) -> list[str]:
    """What a legend may call each line, in this order."""
    return [name for line in table for name in (wrap(marked(line)), wrap(line.name))]


def draw_chance(axes: "Axes", table: Sequence[Line], *, vertical: bool = False) -> None:
    """A dotted line at guessing, if all runs share it and it is near enough not to flatten everything else."""
    levels = {line.chance.level for line in table if line.chance is not None}
    means = [line.mean for line in table if line.mean is not None]
    if len(levels) == 1 and min(means) - max(levels) < NEAR + max(means) - min(means):
        mark = axes.axvline if vertical else axes.axhline
        mark(100 * levels.pop(), label=None if vertical else "guessing", **GUESSING)
