"""The figure of gradient energy kept: layers, carriers, forms and rounds."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulations.inspection.energy import KeptRow, kinds_of
from simulations.report.colours import BLACK, BLUE, GREEN, GREY, ORANGE, RED, SKY
from simulations.report.figure import legend_outside, new_figure, use_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROUNDS = 4
"""Rounds in the figure at most: the first, the last, and some in between."""
MARKS: Mapping[str, tuple[str, str]] = {
    "random": (GREY, "x"), "W": (GREEN, "^"), "W - W_0": (RED, "o"), "updates": (ORANGE, "D"),
    "probe: leaves": (BLUE, "s"), "probe: tokens": (BLUE, "s"), "probe: pink": (SKY, "v"), "private data": (BLACK, "*"),
}  # fmt: skip
OTHER = (BLUE, "P")


@use_style
def kept_energy(rows: Sequence[KeptRow]) -> "Figure":
    """A row of panels for each rank and form, a column for each round; in a panel a line for each layer."""
    kinds, places = kinds_of(rows), list(dict.fromkeys((row.rank, row.form) for row in rows))
    rounds = sorted({row.round for row in rows})
    shown = sorted({rounds[round(i * (len(rounds) - 1) / (ROUNDS - 1))] for i in range(ROUNDS)})
    layers = list(dict.fromkeys(row.layer for row in rows))
    names = [name.removesuffix(".weight") for name in layers]
    width = 1.6 + 0.075 * max(map(len, names)) + 2.3 * len(shown)
    figure = new_figure(width, len(places) * (0.8 + 0.22 * len(layers)) + 0.6)
    panels: Any = figure.subplots(len(places), len(shown), squeeze=False, sharex=True, sharey=True)
    for own, (rank, form) in zip(panels, places, strict=True):
        for axes, round_ in zip(own, shown, strict=True):
            found = [row for row in rows if (row.rank, row.form, row.round) == (rank, form, round_)]
            for kind in kinds:
                line = [(row.energy, layers.index(row.layer)) for row in found if row.carriers == kind]
                colour, marker = MARKS.get(kind, OTHER)
                axes.plot(*zip(*line, strict=True), color=colour, marker=marker, linestyle="none", label=kind)
            axes.set_title(f"{form}, r = {rank}, round {round_}", fontsize=9, loc="left")
            axes.set_xlim(-0.03, 1.03)
    panels[0][0].set_yticks(range(len(layers)), names)
    panels[0][0].set_ylim(len(layers) - 0.5, -0.5)
    for axes in panels[-1]:
        axes.set_xlabel("share of the gradient's energy kept")
    legend_outside(figure, panels[0])
    return figure
