"""The README's figure: test accuracy against the bytes of one message, every method at the same
epsilon.

    python -m benchmarks.accuracy.accuracy_bytes --out docs/accuracy-bytes.svg

Reads the first tables of docs/results/patches.md and probe.md, so every point is a measured number
of these pages.
Writes the figure and, with ``-dark`` added to the name, the same for dark pages. Both keep their
numbers as text (``numbers``), for a test.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedlsg.simulations.report.pages.figure import STYLE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SOURCES = (RESULTS / "probe.md", RESULTS / "patches.md")
EPSILON = "1"
"""At this epsilon every row of the table has three seeds and a learning rate of its own."""
SHADES = {
    "": ("#1f2328", "#d1d9e0", "#0072B2", "#D55E00"),
    "-dark": ("#e6edf3", "#3d444d", "#58a6ff", "#ff9b50"),
}
"""By ending of the name: colours of text, grid, points, and of the point that the headline is
about.
"""
BEST, DENSE = "patches, 512 axes, q", "dpsgd"
LABELS = {
    "patches, 512 axes, q": ("head on patches, 512 axes", (-8, 12), "left"),
    "patches, 128 axes, q": ("128 axes", (10, -4), "left"),
    "patches, all features": ("head on patches, all features", (12, 12), "center"),
    "probe 96 x 48, q": ("probe, three sizes", (12, -4), "left"),
    "probe 96 x 48, q2": ("", (0, 0), "left"),
    "probe 64 x 32, q2": ("", (0, 0), "left"),
    "ffa-lora r 8, q": ("FFA-LoRA", (0, -20), "center"),
    "dpsgd": ("dense DP-SGD", (0, 24), "center"),
    "dpsgd, sign": ("DP-SGD, signs only", (12, -4), "left"),
    "dp-kfc, power 0.25": ("DP-KFC", (0, -40), "center"),
    "lsg r 8 p 0.5, q": ("LSG", (12, 4), "left"),
    "lsg-probe r 8 p 0.5, q": ("LSG with probe carriers", (12, -14), "left"),
}
"""By method: label, its offset in points and its alignment."""


class Point(NamedTuple):
    """A row: method, mean accuracy with its standard deviation over seeds in %, bytes of one
    message.
    """

    method: str
    accuracy: float
    deviation: float
    size: int


def read(text: str, epsilon: str = EPSILON) -> list[Point]:
    """The rows of the first table at this epsilon; a row without an epsilon has that of the row
    above.
    """
    table = text[text.index("| epsilon | method |") :].split("\n\n")[0]
    points, current = [], ""
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        current = cells[0] or current
        if current == epsilon:
            method = re.sub(r"[`*]", "", cells[1])
            mean, _, deviation = cells[3].partition(" ± ")
            points.append(
                Point(method, float(mean), float(deviation or 0), int(cells[6].replace(",", "")))
            )
    return points


def numbers(points: Sequence[Point]) -> str:
    """What the figure shows, as text."""
    return "; ".join(
        f"{p.method}: {p.accuracy} ± {p.deviation} %, {p.size:,} bytes" for p in points
    )


def draw(points: Sequence[Point], out: Path, ending: str) -> None:
    """Write the figure in the colours of one kind of page, on a transparent ground."""
    import matplotlib

    text, grid, colour, strong = SHADES[ending]
    shades = dict.fromkeys(
        (
            "text.color",
            "axes.titlecolor",
            "axes.labelcolor",
            "axes.edgecolor",
            "xtick.color",
            "ytick.color",
        ),
        text,
    )
    ground = {"savefig.facecolor": "none", "axes.facecolor": "none", "grid.color": grid}
    with matplotlib.rc_context({**STYLE, **shades, **ground, "font.size": 11}):
        figure = new_figure(6.4, 4.2)  # letters can be read at 420 pixels
        axes = figure.add_subplot()
        for point in points:
            shade = strong if point.method == BEST else colour
            axes.errorbar(
                point.size,
                point.accuracy,
                yerr=point.deviation,
                fmt="o",
                markersize=8,
                capsize=3,
                color=shade,
            )
            label, offset, align = LABELS[point.method]
            place = (point.size, point.accuracy)
            axes.annotate(label, place, offset, textcoords="offset points", ha=align, color=shade)
        _headline(axes, {point.method: point for point in points}, strong, text)
        axes.set(xscale="log", xlim=(2e2, 8e6), ylim=(34, 67), ylabel="test accuracy, %")
        axes.set_xlabel("bytes that one client sends in a round (log scale)")
        axes.set_xticks([1e3, 1e4, 1e5, 1e6], ["1 kB", "10 kB", "100 kB", "1 MB"])
        axes.minorticks_off()
        figure.savefig(out, metadata={"Date": None, "Description": numbers(points)})


def _headline(axes: "Axes", points: Mapping[str, Point], strong: str, text: str) -> None:
    """What the best method gains over dense DP-SGD, whose accuracy is a dashed line."""
    best, dense = points[BEST], points[DENSE]
    axes.axhline(dense.accuracy, color=text, alpha=0.5, linestyle="--", linewidth=1, zorder=0)
    gain = (
        f"{best.accuracy - dense.accuracy:+.1f} points with {dense.size / best.size:,.0f}x fewer\n"
        "bytes than dense"
    )
    place = (best.size, best.accuracy)
    axes.annotate(
        gain, place, (12, -24), textcoords="offset points", color=strong, fontweight="bold"
    )
    axes.set_title(
        f"CIFAR-10, four clients, epsilon {EPSILON} for every method", loc="left", fontsize=12
    )


def main() -> None:
    """Read, draw twice."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, required=True)
    out = options.parse_args().out
    points = [point for source in SOURCES for point in read(source.read_text())]
    for ending in SHADES:
        draw(points, out.with_stem(out.stem + ending), ending)


if __name__ == "__main__":
    main()
