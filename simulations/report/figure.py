"""The style of every figure, and figures as SVG and PNG.

Colours can be told apart by colour-blind readers and stay with a method from figure to figure; markers say the same
again. Drawn without pyplot: no window, no global state.
"""

import base64
import textwrap
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Look = tuple[str, str]
"""Colour and marker."""

LOOKS: Mapping[str, Look] = {
    "lsg": ("#D55E00", "o"), "lsg-lora": ("#882255", "D"), "lora": ("#CC79A7", "s"), "rgp": ("#0072B2", "o"),
    "rgp-random": ("#56B4E9", "s"), "rs": ("#E69F00", "o"), "sparse-dpsgd": ("#117733", "s"),
    "dp-ssgd": ("#44AA99", "D"), "dp-powersgd": ("#332288", "^"), "dpsgd": ("#000000", "o"),
    "linear-probe": ("#555555", "*"), "sgd": ("#AAAAAA", "X"), "bitfit": ("#999933", "P"),
    "ffa-lora": ("#AA4499", "v"), "topk": ("#888888", "<"), "powersgd": ("#6699CC", "^"),
}  # fmt: skip
SPARE: Sequence[Look] = tuple((colour, marker) for marker in "v<>P" for colour, _ in LOOKS.values())
MARKERS = "osD^X*phd8"
"""None that SPARE gives to methods without a look of their own."""
STYLE: Any = {
    "font.family": "sans-serif", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
    "axes.edgecolor": "#555555", "axes.labelcolor": "#222222", "text.color": "#222222", "xtick.color": "#555555",
    "ytick.color": "#555555", "axes.grid": True, "grid.color": "#e4e4e4", "grid.linewidth": 0.6,
    "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 8, "lines.linewidth": 1.5,
    "lines.markersize": 5, "savefig.facecolor": "white", "svg.fonttype": "path", "svg.hashsalt": "fedlsg",
}  # fmt: skip


def drawn(draw: Callable[[], "Figure"]) -> "Figure":
    """The figure, in this module's style."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        return draw()


def svg(figure: "Figure") -> str:
    """A data URI of the figure as SVG, for an <img> of a page that asks nobody for anything."""
    import matplotlib

    file = BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode()


def png(figure: "Figure") -> bytes:
    """The figure as PNG at 150 dots an inch."""
    import matplotlib

    file = BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(file, format="png", dpi=150)
    return file.getvalue()


def looks(names: Sequence[tuple[str, str]]) -> dict[str, Look]:
    """Colour and marker by a line's name, from (method, name): a colour a method, a marker a variant."""
    strangers = sorted({method for method, _ in names} - LOOKS.keys())
    seen: dict[str, int] = {}
    found = {}
    for method, name in sorted(set(names)):
        colour, own = LOOKS.get(method) or SPARE[strangers.index(method) % len(SPARE)]
        order = [own, *(marker for marker in MARKERS if marker != own)]
        variant = seen[method] = seen.get(method, -1) + 1
        found[name] = (colour, order[variant % len(order)])
    return found


def wrapped(name: str) -> str:
    return textwrap.fill(name, 28, break_long_words=True)


def short_bytes(value: float, _: Any = None) -> str:
    """1500000 -> "1.5 MB"."""
    for unit in ("B", "kB", "MB"):
        if abs(value) < 1000:
            return f"{value:g} {unit}"
        value /= 1000
    return f"{value:g} GB"
