"""The figure of the bytes axis: one row for each epsilon, uplink on the left, uplink plus downlink on the right."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simulations.compare.bytes_axis import Panel, marked
from simulations.compare.lines import Line
from simulations.report.figure import legend_outside, looks, new_figure, short_bytes, use_style, wrap

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@use_style
def accuracy_by_total_bytes(panels: Sequence[Panel]) -> "Figure":
    """Mean accuracy ± standard deviation over seeds against payload bytes of a whole run, logarithmic.

    Filled marks are private, hollow ones are not. Each row of panels has one epsilon.
    """
    shapes = looks([(line.method, line.name) for panel in panels for line in panel.lines])
    figure = new_figure(8.6, 0.9 + 2.7 * len(panels))
    grid = figure.subplots(len(panels), 2, squeeze=False, sharey="row", sharex="col")
    for row, panel in zip(grid, panels, strict=True):
        for axes, both in zip(row, (False, True), strict=True):
            for line in panel.lines:
                _mark(axes, line, both, shapes[line.name])
            _scale(axes)
        row[0].set_title(panel.title, fontsize=9, loc="left")
        row[0].set_ylabel("test accuracy, %")
    grid[-1][0].set_xlabel("uplink")
    grid[-1][1].set_xlabel("uplink + downlink")
    figure.supxlabel("payload bytes of the whole run, all clients (logarithmic)", fontsize=9)
    legend_outside(figure, (row[0] for row in grid))
    return figure


def _mark(axes: Any, line: Line, both: bool, look: tuple[str, str]) -> None:
    assert line.mean is not None
    colour, marker = look
    place = (line.total_uplink or 0.0) + (line.total_downlink or 0.0 if both else 0.0)
    axes.errorbar(
        [place], [100 * line.mean], [100 * (line.sd or 0.0)], color=colour, marker=marker, capsize=2.5, markersize=6,
        linestyle="none", markerfacecolor=colour if line.private else "white", label=wrap(marked(line)),
    )  # fmt: skip


def _scale(axes: Any) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log")
    low, high = axes.dataLim.intervalx
    axes.set_xlim(low / 1.4, high * 1.4)
    subs = (1,) if high / low > 100 else (1, 3) if high / low > 10 else (1, 2, 5)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(short_bytes)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelbottom=True)
