"""The style of every figure: colours, fonts, legends; and figures as SVG, PNG and pictures of a page.

Colour-blind readers can distinguish the colours, and a method keeps its colour from figure to figure; markers say the
same again. Figures are drawn without pyplot: no window, no global state.
"""

import base64
import functools
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

from simulations.report.page import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

P = ParamSpec("P")
Look = tuple[str, str]
"""Colour and marker."""
Place = Literal["outside right upper", "outside upper left"]

BLUE, ORANGE, RED, GREEN, SKY = "#0072B2", "#E69F00", "#D55E00", "#117733", "#56B4E9"
BLACK, GREY, LIGHT, ALARM = "#000000", "#999999", "#eeeeee", "#B00020"
GUESSING: Any = {"color": "#888888", "linestyle": ":", "linewidth": 1}
"""How a line at the accuracy or rate of guessing looks."""
PIXELS = 96
"""CSS pixels of an inch."""

LOOKS: Mapping[str, Look] = {
    "lsg": ("#D55E00", "o"), "lsg-lora": ("#882255", "D"), "lora": ("#CC79A7", "s"), "rgp": ("#0072B2", "o"),
    "rgp-random": ("#56B4E9", "s"), "rs": ("#E69F00", "o"), "sparse-dpsgd": ("#117733", "s"),
    "dp-ssgd": ("#44AA99", "D"), "dp-powersgd": ("#332288", "^"), "dpsgd": ("#000000", "o"),
    "linear-probe": ("#555555", "*"), "sgd": ("#AAAAAA", "X"), "bitfit": ("#999933", "P"),
    "ffa-lora": ("#AA4499", "v"), "topk": ("#888888", "<"), "powersgd": ("#6699CC", "^"),
    "probe": ("#009988", "*"), "lsg-probe": ("#EE7733", "D"), "rgp-probe": ("#0077BB", "D"),
    "dp-kfc": ("#661100", "X"),
}  # fmt: skip
SPARE: Sequence[Look] = tuple((colour, marker) for marker in "v<>P" for colour, _ in LOOKS.values())
MARKERS = "osD^X*phd8"
"""Markers of variants. SPARE gives none of them to a method."""
STYLE: Any = {
    "font.family": "sans-serif", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": "#555555", "axes.labelcolor": "#222222", "text.color": "#222222", "xtick.color": "#555555",
    "ytick.color": "#555555", "axes.grid": True, "grid.color": "#e4e4e4", "grid.linewidth": 0.6,
    "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 8, "lines.linewidth": 1.5,
    "lines.markersize": 5, "savefig.facecolor": "white", "svg.fonttype": "path", "svg.hashsalt": "fedlsg",
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


def legend_outside(
    figure: "Figure", panels: Iterable["Axes"], place: Place = "outside right upper", columns: int = 1
) -> None:
    """One legend for all panels, next to them; equal labels once."""
    handles = {label: h for axes in panels for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc=place, ncols=columns)


def whole_numbers(*axes: "Axis", most: int | None = None) -> None:
    """Ticks at whole numbers only, at most ``most`` of them."""
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.set_major_locator(MaxNLocator(nbins="auto" if most is None else most, integer=True))


def picture(figure: "Figure", caption: str, png: bytes | None = None) -> Picture:
    """A figure on a page: as SVG, or as the PNG that is already there."""
    uri = svg(figure) if png is None else "data:image/png;base64," + base64.b64encode(png).decode()
    return Picture(uri=uri, width=round(figure.get_figwidth() * PIXELS), caption=caption)


def svg(figure: "Figure") -> str:
    """A data URI of the figure as SVG."""
    file = _save(figure, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(file).decode()


def png(figure: "Figure") -> bytes:
    """The figure as PNG at 150 dots an inch."""
    return _save(figure, format="png", dpi=150)


def _save(figure: "Figure", **options: Any) -> bytes:
    import matplotlib

    file = BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(file, **options)
    return file.getvalue()


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
