"""The figures of an inspection: stable ranks, residuals over ranks, norms and clipping, energy, intensity maps."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedlsg.lowrank import flatten_kernel
from simulations.inspection import sparsified_figures
from simulations.inspection.clips import ClipRow
from simulations.inspection.energy_figure import kept_energy
from simulations.inspection.measure import SOURCES, EnergyRow, Inspection, LayerRow, ResidualRow
from simulations.inspection.subject import Subject
from simulations.report.colours import BLACK, BLUE, GREEN, GREY, LIGHT, RED
from simulations.report.figure import legend_outside, new_figure, use_style, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 6
"""Layers in figures with a panel for each layer: evenly spread over the depth of the model."""
MAP_SIDE = 400
"""Rows and columns of an intensity map at most; larger matrices show the largest entry of each tile."""

SHORTEST = 1e-3
"""Shorter norms than this share of C are drawn here: the clip does not change them."""

LINES: Mapping[str, tuple[str, str, str]] = {
    "own": (RED, "*", "-"),
    "self": (BLACK, "o", "-"),
    "start gradient": (BLUE, "s", "--"),
    "history": (RED, "o", "-"),
    "weight": (GREEN, "^", "-"),
    "random": (GREY, "x", ":"),
}
CHOICES: Mapping[str, str] = {"top": RED, "bottom": BLUE, "random": GREY}
MARKERS: Mapping[str, str] = {"top": "^", "bottom": "v", "random": "x"}
OTHER = GREEN


def figures(found: Inspection, subject: Subject, maps: Sequence[str]) -> dict[str, "Figure"]:
    """Every figure by file name; ``maps`` names the layers of intensity maps."""
    return {
        **({"carriers": kept_energy(found.kept)} if found.kept else {}),
        "stable-rank": stable_ranks(found.layers),
        "residual": residuals(found.residuals),
        "clipping": clips(found.own, found.clips, subject.base.method.mechanism.clip_norm),
        "energy": energies(found.energies),
        **({} if found.sparsified is None else sparsified_figures.figures(found.sparsified)),
        **{f"intensity-{name}": intensity(name, subject.weights[name], found.gradients[name]) for name in maps},
    }


def spread(names: Sequence[str], count: int) -> list[str]:
    """At most ``count`` of the names in their order, evenly spread from the first to the last."""
    if len(names) <= count:
        return list(names)
    if count == 1:
        return [names[0]]
    return [names[round(i * (len(names) - 1) / (count - 1))] for i in range(count)]


@use_style
def stable_ranks(layers: Sequence[LayerRow]) -> "Figure":
    """A bar for each layer, over the bar of its full rank."""
    figure = new_figure(7.0, 0.9 + 0.27 * len(layers))
    axes = figure.subplots()
    places = range(len(layers))
    axes.barh(places, [min(layer.shape) for layer in layers], color=LIGHT, height=0.7, label="full rank min(m, n)")
    axes.barh(places, [layer.stable_rank for layer in layers], color=BLUE, height=0.7, label="stable rank")
    for place, layer in enumerate(layers):
        text = "no gradient" if np.isnan(layer.stable_rank) else f"{layer.stable_rank:.1f}"
        axes.annotate(
            text, (max(1.0, np.nan_to_num(layer.stable_rank)), place), (4, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(places, [f"{layer.layer}  {layer.shape[0]} x {layer.shape[1]}" for layer in layers])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(left=1)
    axes.set_xlabel("stable rank of the batch gradient")
    legend_outside(figure, [axes], "outside upper left", 2)
    return figure


@use_style
def residuals(rows: Sequence[ResidualRow]) -> "Figure":
    """A panel for each layer: residual against rank, a line for each source of carriers."""
    names = spread(list(dict.fromkeys(row.layer for row in rows)), PANELS)
    figure, panels = _panels(len(names))
    sources = [source for source in SOURCES if any(row.source == source for row in rows)]
    for name, axes in zip(names, panels, strict=True):
        for source in sources:
            line = [(row.rank, row.residual) for row in rows if (row.layer, row.source) == (name, source)] or [
                (1, math.nan)
            ]
            colour, marker, dash = LINES[source]
            axes.plot(*zip(*line, strict=True), color=colour, marker=marker, linestyle=dash, label=source)
        axes.set_title(name, fontsize="medium")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylim(0, 1.03)
        axes.set_xlabel("rank r")
    _label_left(panels, "projection residual")
    legend_outside(figure, panels[:1], "outside upper left", len(sources))
    return figure


@use_style
def clips(own: ClipRow, rows: Sequence[ClipRow], clip_norm: float) -> "Figure":
    """Left: the distribution of the norms of single examples. Right: share clipped against sparsity."""
    from matplotlib.ticker import LogLocator, NullLocator

    figure = new_figure(7.6, 3.4)
    left, right = figure.subplots(1, 2)
    dense = next((row for row in rows if row.choice == "all"), None)
    for row, colour, label in ((dense, GREY, "nothing frozen"), (own, RED, f"the run's mask: {_mask(own)}")):
        if row is not None:
            lengths = [max(length, SHORTEST * clip_norm) for length in row.clipping.lengths]
            left.ecdf(lengths, color=colour, label=label)
    left.axvline(clip_norm, color=BLACK, linestyle="--", label=f"clip norm C = {clip_norm:g}")
    left.set_xscale("log")
    left.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.xaxis.set_minor_locator(NullLocator())
    left.xaxis.set_major_formatter("{x:g}")
    left.set_xlabel("norm of an example's gradient")
    left.set_ylabel("share of examples with a smaller norm")
    left.legend()
    for choice in dict.fromkeys(row.choice for row in rows if row.choice != "all"):
        line = [(row.sparsity, row.clipping.clipped) for row in rows if row.choice in (choice, "all")]
        colour, marker = CHOICES.get(choice, OTHER), MARKERS.get(choice, "o")
        right.plot(*zip(*sorted(line), strict=True), color=colour, marker=marker, label=f"{choice} kept")
    right.set_ylim(-0.03, 1.03)
    right.set_xlabel("sparsity p")
    right.set_ylabel("share of examples clipped")
    right.legend()
    return figure


@use_style
def energies(rows: Sequence[EnergyRow]) -> "Figure":
    """A panel for each layer: energy of the gradient in kept rows and columns against the share that is frozen."""
    names = spread(list(dict.fromkeys(row.layer for row in rows)), PANELS)
    figure, panels = _panels(len(names))
    for name, axes in zip(names, panels, strict=True):
        for choice, colour in CHOICES.items():
            own = sorted((r for r in rows if (r.layer, r.choice) == (name, choice)), key=lambda r: r.sparsity)
            p = [row.sparsity for row in own]
            axes.plot(p, [row.rows for row in own], color=colour, marker="o", label=f"{choice} out units")
            axes.plot(
                p, [row.columns for row in own], color=colour, marker="s", linestyle="--", label=f"{choice} in units"
            )
        axes.set_title(name, fontsize="medium")
        axes.set_ylim(0, 1.03)
        axes.set_xlabel("sparsity p")
    _label_left(panels, "share of the gradient's energy kept")
    legend_outside(figure, panels[:1], "outside upper left", 3)
    return figure


@use_style
def intensity(name: str, W: Tensor, dW: Tensor) -> "Figure":
    """abs(W) next to abs(dW) (Ito et al. 2023, Fig. 1): out units down, in units across.

    Values above the 99.5 % quantile are white.
    """
    m, n = flatten_kernel(W).shape
    wide = n > 1.6 * m
    figure = new_figure(9.0, 4.4) if not wide else new_figure(9.0, min(9.0, 1.6 + 2 * 7.6 * max(m / n, 0.12)))
    panels = figure.subplots(2, 1) if wide else figure.subplots(1, 2)
    for axes, matrix, title in zip(panels, (W, dW), ("weight  $|W|$", "gradient  $|dW|$"), strict=True):
        values = tiled(flatten_kernel(matrix).detach().abs().cpu()).numpy()
        top = float(np.quantile(values, 0.995)) or 1.0
        image = axes.imshow(
            values, cmap="inferno", vmin=0, vmax=top, aspect="auto", interpolation="nearest", extent=(0, n, m, 0)
        )
        axes.grid(visible=False)
        whole_numbers(axes.xaxis, axes.yaxis)
        axes.set_title(title, fontsize="medium")
        axes.set_ylabel("out unit")
        axes.set_xlabel("in unit" if W.ndim == 2 else "in channel and tap")
        figure.colorbar(image, ax=axes, pad=0.01)
    figure.suptitle(name, fontsize="medium")
    return figure


def tiled(matrix: Tensor, side: int = MAP_SIDE) -> Tensor:
    """The matrix, or the largest entry of each tile if it is large: thin lines survive that, means would fade them."""
    shape = [min(side, size) for size in matrix.shape]
    pooled: Tensor = torch.nn.functional.adaptive_max_pool2d(matrix.float()[None, None], shape)[0, 0]
    return pooled


def _mask(row: ClipRow) -> str:
    return "none" if row.sparsity == 0 else f"{row.choice}, p = {row.sparsity:g}"


def _panels(count: int) -> tuple["Figure", list["Axes"]]:
    columns = min(3, count)
    lines = -(-count // columns)
    figure = new_figure(3.1 * columns + 0.6, 2.6 * lines + 0.5)
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False).flatten().tolist()
    for axes in grid[count:]:
        axes.remove()
    return figure, grid[:count]


def _label_left(panels: Sequence["Axes"], text: str) -> None:
    for axes in panels[::3]:
        axes.set_ylabel(text)
