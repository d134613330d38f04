"""Charts and figures of matplotlib become parts of a page, or PNG files, in one style.

Colour-blind readers can distinguish the colours, and a method keeps its colour from figure to
figure; markers say the same again. Figures are drawn without pyplot: no window, no global state.
"""

import base64
import functools
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
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
WIDTH_IN_ROW, WIDTH_ALONE = 4.2, 7.2
"""Inches of a chart next to another one, and alone."""
ENTRY_WIDTH, ENTRY_HEIGHT = 1.9, 0.22
"""Inches of an entry of a legend."""
NARROW = 2.5
"""A logarithmic axis whose ends have a smaller ratio has even ticks."""
DENSE, QUALITY = 90, 45
"""Dots an inch, and quality in percent, of a figure of many pixels on a page."""
FORMULA = re.compile(r"(?<!\\)\$(?=\S)[^$]*(?<=\S)\$(?!\d)")
"""A formula of LaTeX in a name, ``$\\sigma$``, by the rule of Pandoc: ``$5 or $6`` has none."""
LETTERS_OF_NAME = 28
"""Letters of a line of a name in a legend."""

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
"""Settings of matplotlib for every figure."""


def check_drawing(extra: str = "plots") -> None:
    """Raise ModuleNotFoundError, naming the extra, without matplotlib; called before long work."""
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
    """A figure, and its ``count`` panels of ``size`` (inches), at most ``columns`` in a row.

    more: inches below the panels, for a legend.
    """
    across = max(1, min(columns, count))
    rows = -(-count // across)  # rounded up
    figure = new_figure(size[0] * across, size[1] * rows + more)
    panels = figure.subplots(rows, across, squeeze=False).flatten().tolist()
    for unused in panels[count:]:
        unused.remove()
    return figure, panels[:count]


@use_style
def plot(charts: Sequence[Chart], *, columns: int = 2) -> "Figure":
    """All charts as one figure of matplotlib: for notebooks, PNG and papers."""
    shared = share_names(charts)
    across = min(columns, len(charts))
    width = WIDTH_ALONE if across == 1 else WIDTH_IN_ROW
    height = max(chart.height for chart in charts) / PIXELS
    entries_in_row = max(1, round(across * width / ENTRY_WIDTH))
    legend_rows = -(-len(legend_of(charts)) // entries_in_row) if shared else 0
    figure, panels = panel_grid(len(charts), columns, (width, height), ENTRY_HEIGHT * legend_rows)
    for axes, chart in zip(panels, charts, strict=True):
        draw_chart(axes, chart)
        axes.set_title(chart.title, fontsize="medium", loc="left")
        entries = legend_entries([axes])
        # one line without a name needs no legend for its reference
        least = 1 if chart.series[0].name else 2
        if not shared and len(entries) >= least:
            axes.legend(entries.values(), entries.keys())
    if shared:
        entries = legend_entries(panels)
        figure.legend(
            entries.values(), entries.keys(), loc="outside lower left", ncols=entries_in_row
        )
    return with_formulas(figure)


def with_formulas(figure: "Figure") -> "Figure":
    """The figure, in which formulas of its names are drawn as such.

    One that matplotlib cannot draw stays text.
    """
    from matplotlib.mathtext import MathTextParser
    from matplotlib.text import Text

    parser = MathTextParser("path")
    for text in figure.findobj(Text):
        words = text.get_text()
        if FORMULA.search(words):
            with suppress(ValueError):
                parser.parse(words)
                text.set_parse_math(True)
    return figure


def legend_entries(panels: "Iterable[Axes]") -> dict[str, Any]:
    """Handles of matplotlib by label, each label once, references last."""
    handles = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles[label] = handle
    return dict(sorted(handles.items(), key=lambda item: item[0] in REFERENCES))


def draw_chart(axes: "Axes", chart: Chart) -> None:
    """Draw the chart on axes of matplotlib."""
    for series, points in chart.stacked():
        _draw(axes, series, points)
    if chart.has_bars:
        axes.grid(visible=False, axis="x")
    if chart.empty_note:
        axes.text(0.5, 0.4, chart.empty_note, ha="center", transform=axes.transAxes, color=ALARM)
    for name, axis in (("x", chart.x), ("y", chart.y)):
        _scale(axes, name, axis)
    axes.set_xlabel("\n".join(filter(None, (chart.x.label, chart.spread))))
    if chart.y.down:
        axes.invert_yaxis()


def _draw(axes: "Axes", series: Series, points: Sequence[Point]) -> None:
    """Draw a series by its kind."""
    label, colour = wrap(series.name) or None, series.colour
    if series.place is not None:
        draw_line: Any = axes.axhline if series.kind == "level" else axes.axvline
        draw_line(series.place, color=colour, linestyle=series.dashes, linewidth=1.2, label=label)
        return
    x, y, low, high, left, right = map(list, zip(*points, strict=True)) if points else ([],) * 6
    if series.kind == "band":
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    elif series.kind == "bar":
        width = points[0].right - points[0].left if points else 0.0
        axes.bar(x, y, width, bottom=low, color=colour, label=label)
    else:
        axes.errorbar(
            x,
            y,
            color=colour,
            linestyle=series.dashes if series.line else "none",
            capsize=2,
            label=label,
            marker=series.marker or ("o" if len(x) == 1 else ""),
            markerfacecolor=colour if series.filled else WHITE,
            drawstyle="steps-post" if series.steps else "default",
            yerr=_reach(y, low, high),
            xerr=_reach(x, left, right),
        )


def _reach(places: Sequence[float], low: Sequence[Any], high: Sequence[Any]) -> Any:
    """Lengths of error bars to both sides of points, (2, points); None if no point has one.

    A point without a bar has 0.
    """
    if not any(map(is_number, low)):
        return None
    lengths = [
        (abs(place - a), abs(b - place)) if is_number(a) and is_number(b) else (0.0, 0.0)
        for place, a, b in zip(places, low, high, strict=True)
    ]
    return list(zip(*lengths, strict=True))


def _scale(axes: "Axes", name: str, axis: AxisOf) -> None:
    """Give an axis of matplotlib, "x" or "y", its label, scale, ticks and ends."""
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
        own.set_ticks([place for place, _ in axis.ticks], [words for _, words in axis.ticks])
        own.set_ticks([], minor=True)
    else:
        own.set_major_formatter({"bytes": short_bytes, "%": "{x:g}"}.get(axis.unit, "{x:g}"))
    getattr(axes, f"set_{name}lim")(axis.low, axis.high)


def interactive(charts: Sequence[Chart], caption: str, *, columns: int = 2) -> Drawing:
    """Charts as a figure of a page: drawn by a script, with values under the pointer.

    Without scripts the page shows them as SVG. ``plot`` draws the same for notebooks and files.
    """
    shared = share_names(charts)
    across = min(columns, len(charts))
    panels = []
    for chart in charts:
        svg, size = still(chart, across)
        legend = () if shared else legend_of([chart])
        words = describe(chart)
        panels.append(Panel(svg=svg, size=size, title=chart.title, words=words, legend=legend))
    return Drawing(
        panels=tuple(panels),
        legend=legend_of(charts) if shared else (),
        caption=caption,
        columns=across,
        data=script_json([chart_data(chart) for chart in charts]),
    )


def picture(figure: "Figure", caption: str) -> Picture:
    """A figure of matplotlib on a page, as SVG, enlarged by half: its words are small."""
    content = save(figure, format="svg", metadata={"Date": None})
    return _image("svg+xml", content, 1.5 * figure.get_figwidth(), caption)


def photo(figure: "Figure", caption: str) -> Picture:
    """A figure of matplotlib with many pixels on a page, compressed."""
    content = save(figure, format="webp", dpi=DENSE, pil_kwargs={"quality": QUALITY})
    return _image("webp", content, figure.get_figwidth(), caption)


def _image(kind: str, content: bytes, inches: float, caption: str) -> Picture:
    """An image of this width as a part of a page."""
    uri = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return Picture(uri=uri, width=round(inches * PIXELS), caption=caption)


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
    """A long name on several lines, for a legend; one with a formula stays on one line."""
    if FORMULA.search(name):
        return name
    return textwrap.fill(name, LETTERS_OF_NAME, break_long_words=True)
