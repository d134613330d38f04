"""The style of every figure: colours, fonts, legends; and figures as PNG and as parts of a page.

Colour-blind readers can distinguish the colours, and a method keeps its colour from figure to figure; markers say the
same again. Figures are drawn without pyplot: no window, no global state.
"""

import base64
import functools
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

from simulations.report.colours import (
    AXIS,
    BLACK,
    BLUE,
    GREEN,
    GREY,
    GRID,
    ORANGE,
    RED,
    SKY,
    WHITE,
    WORDS,
)
from simulations.report.page import Drawing, Picture
from simulations.report.svg import LAST, complete_axes, mark_axes
from simulations.report.svg import drawing as from_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

P = ParamSpec("P")
Look = tuple[str, str]
"""Colour and marker."""
Place = Literal["outside right upper", "outside upper left"]

GUESSING: Any = {"color": GREY, "linestyle": ":", "linewidth": 1.2}
"""How a line at the accuracy or rate of guessing looks."""
PIXELS = 96
"""CSS pixels of an inch."""
SINGLE, LOWEST, WIDE = 5.6, 1.2, 9.0
"""Inches of a figure whose panels are as wide as the text of a page, so that a phone can show it; wider ones stay."""
PANEL = 3.8
"""Inches of each of several panels, at most."""
DENSE, QUALITY = 98, 60
"""Dots an inch, and quality in percent, of a figure of many pixels on a page."""

LOOKS: Mapping[str, Look] = {
    "lsg": (RED, "o"), "lsg-lora": ("#882255", "D"), "lsg-probe": ("#e0651f", "D"), "rgp": (BLUE, "o"),
    "rgp-random": (SKY, "s"), "rgp-probe": ("#4b5fd0", "D"), "probe": ("#008f80", "*"), "dp-kfc": ("#661100", "X"),
    "lora": ("#b8609a", "s"), "ffa-lora": ("#aa4499", "v"), "fed-svd": ("#a2557f", "^"),
    "fed-sb": ("#7a3f9d", "p"), "bitfit": ("#8c8c2c", "P"), "rs": (ORANGE, "o"),
    "sparse-dpsgd": (GREEN, "s"), "dp-ssgd": ("#349584", "D"), "dp-powersgd": ("#332288", "^"),
    "gep": ("#1f6f8b", "h"), "dp-tl": ("#6b5b3e", "8"),
    "dpsgd": (BLACK, "o"), "linear-probe": ("#5a5a5a", "*"), "topk": ("#8c6d4f", "<"), "powersgd": ("#5a8dc8", "^"),
    "sgd": ("#949494", "X"),
}  # fmt: skip
"""Colour and marker of each method, in the order of every legend: fedlsg's own, the baselines, those without noise."""
SPARE: Sequence[Look] = tuple((colour, marker) for marker in "v<>P" for colour, _ in LOOKS.values())
MARKERS = "osD^X*phd8"
"""Markers of variants. SPARE gives none of them to a method."""
STYLE: Any = {
    "font.family": "sans-serif", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": AXIS, "axes.labelcolor": WORDS, "text.color": WORDS, "xtick.color": AXIS, "ytick.color": AXIS,
    "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.6, "axes.titlecolor": WORDS,
    "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 8, "lines.linewidth": 1.5,
    "lines.markersize": 5, "savefig.facecolor": WHITE, "svg.fonttype": "none", "svg.hashsalt": "fedlsg",
}  # fmt: skip


def use_style(draw: "Callable[P, Figure]") -> "Callable[P, Figure]":
    """Decorator: the function draws its figure in this module's style."""

    @functools.wraps(draw)
    def draw_in_style(*args: P.args, **kwargs: P.kwargs) -> "Figure":
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return draw_in_style


def new_figure(width: float, height: float, *, arrange: bool = True) -> "Figure":
    """An empty figure of this size in inches. ``arrange`` finds places in which nothing covers anything else."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained" if arrange else None)


def panel_grid(
    count: int, columns: int, size: tuple[float, float], around: tuple[float, float] = (0.0, 0.0), **options: Any
) -> "tuple[Figure, list[Axes]]":
    """``count`` panels of ``size`` (inches), at most ``columns`` in a row, with room ``around`` all of them."""
    across = max(1, min(columns, count))
    rows = -(-count // across)
    figure = new_figure(around[0] + size[0] * across, around[1] + size[1] * rows)
    panels = figure.subplots(rows, across, squeeze=False, **options).flatten().tolist()
    for rest in panels[count:]:
        rest.set_visible(False)
    return figure, panels[:count]


def log_bytes(axes: "Axes", subs: Sequence[float] = (1, 2, 5)) -> None:
    """A logarithmic x axis of bytes."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(short_bytes)
    axes.xaxis.set_minor_locator(NullLocator())


def name_ticks(axis: "Axis", places: Sequence[Any], names: Sequence[str]) -> None:
    """Ticks at these places alone, with these names."""
    axis.set_ticks(places, names)
    axis.set_ticks([], minor=True)


def legend_outside(
    figure: "Figure", panels: Iterable["Axes"], place: Place = "outside right upper", columns: int = 1,
    order: Sequence[str] = (),
) -> None:  # fmt: skip
    """One legend for all panels, next to them; equal labels once, in an ``order`` if it names them, guessing last."""
    handles = {label: h for axes in panels for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    handles = dict(sorted(handles.items(), key=lambda item: (item[0] == LAST, _position(item[0], order))))
    figure.legend(handles.values(), handles.keys(), loc=place, ncols=columns)


def _position(label: str, order: Sequence[str]) -> int:
    return order.index(label) if label in order else len(order)


def whole_numbers(*axes: "Axis", most: int | None = None) -> None:
    """Ticks at whole numbers only, at most ``most`` of them."""
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.set_major_locator(MaxNLocator(nbins="auto" if most is None else most, integer=True))


def drawing(figure: "Figure", caption: str, *, columns: int = 2) -> Drawing:
    """A figure on a page: its panels as SVG, its legend and its caption as words of the page."""
    import matplotlib

    shared, size = list(figure.legends), figure.get_size_inches()
    own = [legend for axes in figure.axes if (legend := axes.get_legend()) is not None]
    order = [text.get_text() for legend in shared for text in legend.get_texts()]
    figure.legends.clear()
    for legend in own:
        legend.set_visible(False)
    figure.set_size_inches(*_page_size(figure, columns))
    complete_axes(figure)
    mark_axes(figure)
    file = _save(figure, format="svg", metadata={"Date": None}, facecolor="none")
    with matplotlib.rc_context(STYLE):  # ticks depend on it: panels are measured as they were drawn
        found = from_svg(file, figure, caption, columns=columns, order=order)
    for legend in own:
        legend.set_visible(True)
    figure.legends.extend(shared)
    figure.set_size_inches(*size)
    return found


def _page_size(figure: "Figure", columns: int) -> tuple[float, float]:
    """Width and height at which the words of a panel are as large as those next to it."""
    width, height = figure.get_size_inches()
    if (len(figure.axes) == 1 or columns == 1) and SINGLE < width < WIDE:
        return SINGLE, max(height * SINGLE / width, LOWEST) if height < width else height
    place = figure.axes[0].get_subplotspec() if figure.axes else None
    across = 1 if place is None else place.get_gridspec().ncols
    return (min(width, PANEL * across) if across > 1 else width), height


def photo(figure: "Figure", caption: str) -> Picture:
    """A figure of many pixels on a page: compressed, on a light ground."""
    uri = (
        "data:image/webp;base64,"
        + base64.b64encode(_save(figure, format="webp", dpi=DENSE, pil_kwargs={"quality": QUALITY})).decode()
    )
    return Picture(uri=uri, width=round(figure.get_figwidth() * PIXELS), caption=caption)


def png(figure: "Figure") -> bytes:
    """The figure as PNG at 150 dots an inch."""
    return _save(figure, format="png", dpi=150)


def _save(figure: "Figure", **options: Any) -> bytes:
    import matplotlib

    file = BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(file, **options)
    return file.getvalue()


def canonical(method: str) -> tuple[int, str]:
    """The place of a method in every legend."""
    known = list(LOOKS)
    return (known.index(method) if method in LOOKS else len(known), method)


def looks(names: Sequence[tuple[str, str]]) -> dict[str, Look]:
    """Colour and marker by the name of a line, from (method, name): one colour a method, one marker a variant."""
    strangers = sorted({method for method, _ in names} - LOOKS.keys())
    seen: dict[str, int] = {}
    found = {}
    for method, name in sorted(set(names)):
        colour, own = LOOKS.get(method) or SPARE[strangers.index(method) % len(SPARE)]
        order = [own, *(marker for marker in MARKERS if marker != own)]
        variant = seen[method] = seen.get(method, -1) + 1
        found[name] = (colour, order[variant % len(order)])
    return found


def wrap(name: str) -> str:
    """A long name on several lines, for a legend."""
    return textwrap.fill(name, 28, break_long_words=True)


def short_bytes(value: float, _: Any = None) -> str:
    """1500000 -> "1.5 MB"."""
    for unit in ("B", "kB", "MB"):
        if abs(value) < 1000:
            return f"{value:g} {unit}"
        value /= 1000
    return f"{value:g} GB"
