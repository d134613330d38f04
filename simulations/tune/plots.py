"""The figure of a search: the score against each tuned setting."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulations.compare.lines import Line, measured
from simulations.report.figure import new_figure, use_style
from simulations.report.page.colours import BLUE, GREY, RED
from simulations.tune.axes import Axis
from simulations.tune.search import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@use_style
def _draw(axes: Sequence[Axis], lines: Mapping[Point, Line], best: Point) -> "Figure":
    figure = new_figure(1.0 + 3.2 * len(axes), 3.2)
    panels = figure.subplots(1, len(axes), squeeze=False, sharey=True)[0]
    for place, (axis, panel) in enumerate(zip(axes, panels, strict=True)):
        _panel(panel, axis, place, lines, best)
    panels[0].set_ylabel(measured(lines.values()).replace("test ", ""))
    return figure


def scores_by_axis(axes: Sequence[Axis], lines: Mapping[Point, Line], best: Point | None) -> "Figure | None":
    """A panel for each setting: mean ± standard deviation over seeds; None before the first point is done."""
    done = {point: line for point, line in lines.items() if line.mean is not None}
    return _draw(axes, done, best) if best in done and best is not None else None


def _panel(panel: "Axes", axis: Axis, place: int, lines: Mapping[Point, Line], best: Point) -> None:
    through = {p: line for p, line in lines.items() if p[:place] + p[place + 1 :] == best[:place] + best[place + 1 :]}
    others = {p: line for p, line in lines.items() if p not in through}
    x: Any = (lambda at: axis.values[at]) if axis.ordered else (lambda at: str(axis.values[at]))
    if others:
        heights = [_height(line) for line in others.values()]
        panel.plot([x(p[place]) for p in others], heights, "o", color=GREY, markerfacecolor="white")
    points = sorted(through)
    heights, bars = [_height(through[p]) for p in points], [_bar(through[p]) for p in points]
    panel.errorbar([x(p[place]) for p in points], heights, bars, color=BLUE, marker="o", capsize=2)
    panel.plot([x(best[place])], [_height(lines[best])], "o", color=RED, zorder=3)
    panel.set_xlabel(axis.name)
    if axis.ordered and all(value > 0 for value in axis.values):
        panel.set_xscale("log", base=2)
        tried = sorted({axis.values[p[place]] for p in lines})
        panel.set_xticks(tried, [f"{value:g}" for value in tried])
        panel.minorticks_off()


def _height(line: Line) -> float:
    assert line.mean is not None
    return line.scale * line.mean


def _bar(line: Line) -> float:
    return line.scale * (line.sd or 0.0)
