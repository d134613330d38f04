"""The style of every figure: colours, fonts, legends; charts and pictures as parts of a page, and
as PNG.

Colour-blind readers can distinguish the colours, and a method keeps its colour from figure to
figure; markers say the same again. Figures are drawn without pyplot: no window, no global state.
"""

import base64
import functools
import textwrap
from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, ParamSpec

from fedlsg.extras import of_extra
from fedlsg.simulations.report.drawing.chart import (
    REFERENCES,
    Chart,
    Point,
    Series,
    chart_data,
    describe,
    digits,
    is_number,
    legend_of,
    share_names,
    short_bytes,
)
from fedlsg.simulations.report.drawing.chart import Axis as AxisOf
from fedlsg.simulations.report.drawing.colours import ALARM, AXIS, GRID, WHITE, WORDS
from fedlsg.simulations.report.drawing.still import still
from fedlsg.simulations.report.pages.page import Drawing, Panel, Picture, script_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


P = ParamSpec("P")

PIXELS = 96
"""CSS pixels of an inch."""
PANEL, WIDE_INCHES = 4.2, 7.2
"""Inches of a chart next to another one, and alone."""
ENTRY = 1.9
"""Inches of an entry of a legend."""
NARROW = 2.5
"""A logarithmic axis whose ends have a smaller ratio has even ticks."""
DENSE, QUALITY = 90, 45
"""Dots an inch, and quality in percent, of a figure of many pixels on a page."""

STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": AXIS,
    "axes.labelcolor": WORDS,
    "text.color": WORDS,
    "xtick.color": AXIS,
    "ytick.color": AXIS,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.titlecolor": WORDS,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "savefig.facecolor": WHITE,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedlsg",
    "text.parse_math": False,
}


def check_drawing(extra: str = "plots") -> None:
    """Raise ModuleNotFoundError without matplotlib, of an extra: before long work."""
    with of_extra(extra, "figures"):
        import matplotlib  # noqa: F401


def use_style(draw: "Callable[P, Figure]", style: Any = STYLE) -> "Callable[P, Figure]":
    """Decorator: the function draws its figure in this module's style, or another."""

    @functools.wraps(draw)
    def draw_in_style(*args: P.args, **kwargs: P.kwargs) -> "Figure":
        check_drawing()
        import matplotlib

        with matplotlib.rc_context(style):
            return draw(*args, **kwargs)

    return draw_in_style


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches, in which nothing covers anything else."""
    check_drawing()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def panel_grid(
    count: int, columns: int, size: tuple[float, float], more: float = 0.0
) -> "tuple[Figure, list[Axes]]":
    """``count`` panels of ``size`` (inches), at most ``columns`` in a row, and ``more`` inches
    below for a legend.
    """
    across = max(1, min(columns, count))
    rows = -(-count // across)
    figure = new_figure(size[0] * across, size[1] * rows + more)
    panels = figure.subplots(rows, across, squeeze=False).flatten().tolist()
    for rest in panels[count:]:
        rest.remove()
    return figure, panels[:count]


@use_style
def plot(charts: Sequence[Chart], *, columns: int = 2) -> "Figure":
    """All charts as one figure of matplotlib: for notebooks, PNG and papers."""
    shared = share_names(charts)
    across = min(columns, len(charts))
    size = (WIDE_INCHES if across == 1 else PANEL, max(chart.height for chart in charts) / PIXELS)
    legend = legend_of(charts) if shared else ()
    entries = max(1, round(across * size[0] / ENTRY))
    figure, panels = panel_grid(len(charts), columns, size, 0.22 * -(-len(legend) // entries))
    for axes, chart in zip(panels, charts, strict=True):
        draw_chart(axes, chart)
        axes.set_title(chart.title, fontsize="medium", loc="left")
        if not shared and len(own := legend_entries([axes])) > (not chart.series[0].name):
            axes.legend(own.values(), own.keys())
    if shared:
        found = legend_entries(panels)
        figure.legend(found.values(), found.keys(), loc="outside lower left", ncols=entries)
    return figure


def legend_entries(panels: "Iterable[Axes]") -> dict[str, Any]:
    """Handles by label, each once, guessing last."""
    found = {
        label: h
        for axes in panels
        for h, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    return dict(sorted(found.items(), key=lambda item: item[0] in REFERENCES))


def draw_chart(axes: "Axes", chart: Chart) -> None:
    """The chart on axes of matplotlib."""
    for one, points in chart.stacked():
        _draw(axes, one, points)
    if chart.has_bars:
        axes.grid(visible=False, axis="x")
    if chart.empty_note:
        axes.text(0.5, 0.4, chart.empty_note, ha="center", transform=axes.transAxes, color=ALARM)
    for name, axis in (("x", chart.x), ("y", chart.y)):
        _scale(axes, name, axis)
    axes.set_xlabel("\n".join(filter(None, (chart.x.label, chart.spread))))
    if chart.y.down:
        axes.invert_yaxis()


def _draw(axes: "Axes", one: Series, points: Sequence[Point]) -> None:
    label = wrap(one.name) or None
    if one.place is not None:
        mark: Any = axes.axhline if one.kind == "level" else axes.axvline
        mark(one.place, color=one.colour, linestyle=one.dashes, linewidth=1.2, label=label)
        return
    x, y, low, high, left, right = (
        (list(part) for part in zip(*points, strict=True)) if points else ([],) * 6
    )
    if one.kind == "band":
        axes.fill_between(x, low, high, color=one.colour, alpha=0.15, linewidth=0)
    elif one.kind == "bar":
        width = points[0].right - points[0].left if points else 0.0
        axes.bar(x, y, width, bottom=low, color=one.colour, label=label)
    else:
        axes.errorbar(
            x,
            y,
            color=one.colour,
            linestyle=one.dashes if one.line else "none",
            capsize=2,
            label=label,
            marker=one.marker or ("o" if len(x) == 1 else ""),
            markerfacecolor=one.colour if one.filled else WHITE,
            drawstyle="steps-post" if one.steps else "default",
            yerr=_reach(y, low, high),
            xerr=_reach(x, left, right),
        )


def _reach(places: Sequence[float], low: Sequence[Any], high: Sequence[Any]) -> Any:
    """Lengths of error bars to both sides, 0 where a point has none; None where no point has
    any.
    """
    if not any(map(is_number, low)):
        return None
    known = [
        (abs(at - a), abs(b - at)) if is_number(a) and is_number(b) else (0.0, 0.0)
        for at, a, b in zip(places, low, high, strict=True)
    ]
    return list(zip(*known, strict=True))


def _scale(axes: "Axes", name: str, axis: AxisOf) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

    own: Any = getattr(axes, f"{name}axis")
    getattr(axes, f"set_{name}label")(axis.label)
    if axis.log:
        getattr(axes, f"set_{name}scale")("log")
        low, high = sorted(own.get_view_interval())
        narrow = high < NARROW * low  # too few round numbers between them
        own.set_major_locator(
            MaxNLocator(nbins=4) if narrow else LogLocator(subs=digits(low, high))
        )
        own.set_minor_locator(NullLocator())
        own.set_minor_formatter(NullFormatter())
    elif not axis.ticks:
        own.set_major_locator(MaxNLocator(nbins="auto", integer=axis.whole))
    if axis.ticks:
        own.set_ticks([at for at, _ in axis.ticks], [words for _, words in axis.ticks])
        own.set_ticks([], minor=True)
    else:
        own.set_major_formatter({"bytes": short_bytes, "%": "{x:g}"}.get(axis.unit, "{x:g}"))
    getattr(axes, f"set_{name}lim")(axis.low, axis.high)


def interactive(charts: Sequence[Chart], caption: str, *, columns: int = 2) -> Drawing:
    """Charts as a figure of a page: drawn by a script, with values under the pointer, and as SVG
    where there is none.

    This and ``Chart`` are all that a page needs to show numbers; ``plot`` draws the same for
    notebooks and files.
    """
    shared = share_names(charts)
    across = min(columns, len(charts))
    panels = [
        Panel(
            svg=(drawn := still(chart, across))[0],
            size=drawn[1],
            title=chart.title,
            words=describe(chart),
            legend=() if shared else legend_of([chart]),
        )
        for chart in charts
    ]
    return Drawing(
        panels=tuple(panels),
        legend=legend_of(charts) if shared else (),
        caption=caption,
        columns=across,
        data=script_json([chart_data(chart) for chart in charts]),
    )


def picture(figure: "Figure", caption: str) -> Picture:
    """A figure of another kind on a light ground, half as large again: its words are small."""
    return _image(
        "svg+xml", save(figure, format="svg", metadata={"Date": None}), figure, caption, 1.5
    )


def photo(figure: "Figure", caption: str) -> Picture:
    """A figure of many pixels on a page: compressed, on a light ground."""
    return _image(
        "webp",
        save(figure, format="webp", dpi=DENSE, pil_kwargs={"quality": QUALITY}),
        figure,
        caption,
    )


def _image(
    kind: str, content: bytes, figure: "Figure", caption: str, larger: float = 1.0
) -> Picture:
    uri = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return Picture(uri=uri, width=round(larger * figure.get_figwidth() * PIXELS), caption=caption)


def png(drawn: "tuple[Chart, ...] | Figure") -> bytes:
    """Charts, or a figure of matplotlib, as PNG at 150 dots an inch."""
    return save(plot(drawn) if isinstance(drawn, tuple) else drawn, format="png", dpi=150)


def save(figure: "Figure", style: Any = None, **options: Any) -> bytes:
    """The figure as a file of matplotlib, in the style of pages by default."""
    import matplotlib

    file = BytesIO()
    with matplotlib.rc_context(style or STYLE):
        figure.savefig(file, **options)
    return file.getvalue()


def wrap(name: str) -> str:
    """A long name on several lines, for a legend."""
    return textwrap.fill(name, 28, break_long_words=True)
