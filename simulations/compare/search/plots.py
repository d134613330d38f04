"""The figures of a search: the best accuracy so far after each trial, and the accuracy against each setting."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simulations.compare.lines import is_number, measured
from simulations.compare.search.space import Choices, Dimension
from simulations.compare.search.trials import Arm, Trial, best_of, score_of
from simulations.report.figure import (
    legend_outside,
    looks,
    name_ticks,
    new_figure,
    panel_grid,
    use_style,
    whole_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3
"""Panels next to each other."""


def figures(arms: Sequence[Arm], trials: Sequence[Trial]) -> dict[str, "Figure"]:
    """By file name; none before a trial is done."""
    done = [trial for trial in trials if trial.line.mean is not None]
    return {"history": history(arms, done), "settings": by_setting(arms, done)} if done else {}


@use_style
def history(arms: Sequence[Arm], done: Sequence[Trial]) -> "Figure":
    """A mark for each trial, and a line through the best one so far."""
    figure = new_figure(7.2, 3.6)
    axes = figure.subplots()
    shapes = _shapes(arms)
    for arm in arms:
        own = [trial for trial in done if trial.arm.label == arm.label]
        if not own:
            continue
        colour, marker = shapes[arm.label]
        numbers = [trial.number + 1 for trial in own]
        axes.plot(numbers, [_height(t) for t in own], marker, color=colour, markerfacecolor="white", alpha=0.8)
        best = [max(own[: k + 1], key=score_of) for k in range(len(own))]
        axes.plot(numbers, [_height(t) for t in best], color=colour, drawstyle="steps-post", label=arm.label)
    axes.set(xlabel="trial", ylabel=_measured(done))
    whole_numbers(axes.xaxis)
    legend_outside(figure, [axes])
    return figure


@use_style
def by_setting(arms: Sequence[Arm], done: Sequence[Trial]) -> "Figure":
    """A panel for each setting; filled: the best trial of a method."""
    dimensions = {one.name: one for arm in arms for one in arm.space}
    figure, panels = panel_grid(len(dimensions), COLUMNS, (2.7, 2.8), (1.6, 0.0), sharey=True)
    shapes = _shapes(arms)
    for panel, dimension in zip(panels, dimensions.values(), strict=True):
        for arm in arms:
            own = [t for t in done if t.arm.label == arm.label and dimension.name in t.params]
            if own:
                _marks(panel, dimension.name, own, arm.label, shapes[arm.label])
        _scale(panel, dimension)
        panel.set_xlabel(dimension.name)
    panels[0].set_ylabel(_measured(done))
    legend_outside(figure, panels)
    return figure


def _marks(panel: "Axes", name: str, own: Sequence[Trial], label: str, look: tuple[str, str]) -> None:
    colour, marker = look
    best = best_of(list(own))
    assert best is not None, "own trials are done"
    x: Any = [_place(trial.params[name]) for trial in own]
    panel.plot(x, [_height(t) for t in own], marker, color=colour, markerfacecolor="white", label=label)
    panel.plot([_place(best.params[name])], [_height(best)], marker, color=colour, zorder=3)


def _scale(panel: "Axes", dimension: Dimension) -> None:
    if isinstance(dimension, Choices):
        positive = all(isinstance(value, int | float) and value > 0 for value in dimension.values)
        if not positive or isinstance(dimension.values[0], bool):
            return
        panel.set_xscale("log")
        name_ticks(panel.xaxis, dimension.values, [f"{value:g}" for value in dimension.values])
    elif dimension.log:
        panel.set_xscale("log")
        panel.set_xlim(dimension.low / 1.1, dimension.high * 1.1)
    elif dimension.whole:
        whole_numbers(panel.xaxis)


def _place(value: Any) -> Any:
    return value if is_number(value) else str(value)


def _shapes(arms: Sequence[Arm]) -> dict[str, tuple[str, str]]:
    return looks([(str(arm.given["method"]), arm.label) for arm in arms])


def _height(trial: Trial) -> float:
    assert trial.line.mean is not None
    return trial.line.scale * trial.line.mean


def _measured(done: Sequence[Trial]) -> str:
    return measured([trial.line for trial in done]).replace("test ", "")
