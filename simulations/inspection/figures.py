"""The figures of an inspection: stable ranks, residuals over ranks, norms and clipping, energy, intensity maps."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedlsg.lowrank import flatten_kernel
from simulations.inspection.clips import ClipRow
from simulations.inspection.measure import SOURCES, EnergyRow, Inspection, LayerRow, ResidualRow
from simulations.inspection.subject import Subject
from simulations.report.figure import drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 6
"""Layers that the figures with a panel for each show: evenly spread over the depth of the model."""
MAP_SIDE = 400
"""Rows and columns of an intensity map at most; larger matrices show the largest entry of each tile."""

SHORTEST = 1e-3
"""Norms below this share of C are drawn there: how far below does not matter to a clip."""

LINES: Mapping[str, tuple[str, str, str]] = {
    "self": ("#000000", "o", "-"),
    "start gradient": ("#0072B2", "s", "--"),
    "history": ("#D55E00", "o", "-"),
    "weight": ("#117733", "^", "-"),
    "random": ("#999999", "x", ":"),
}
CHOICES: Mapping[str, str] = {"top": "#D55E00", "bottom": "#0072B2", "random": "#999999"}
MARKERS: Mapping[str, str] = {"top": "^", "bottom": "v", "random": "x"}
OTHER = "#117733"


def figures(found: Inspection, subject: Subject, maps: Sequence[str]) -> dict[str, "Figure"]:
    """Every figure by file name; ``maps`` names the layers of intensity maps."""
    made = {
        "stable-rank": drawn(lambda: stable_ranks(found.layers)),
        "residual": drawn(lambda: residuals(found.residuals)),
        "clipping": drawn(lambda: clips(found.own, found.clips, subject.base.method.mechanism.clip_norm)),
        "energy": drawn(lambda: energies(found.energies)),
    }
    for name in maps:
        made[f"intensity-{name}"] = drawn(
            lambda name=name: intensity(name, subject.weights[name], found.gradients[name])  # type: ignore[misc]
        )
    return made


def spread(names: Sequence[str], count: int) -> list[str]:
    """At most ``count`` of the names, the first and the last among them, evenly spread, in order."""
    if len(names) <= count:
        return list(names)
    if count == 1:
        return [names[0]]
    return [names[round(i * (len(names) - 1) / (count - 1))] for i in range(count)]


def stable_ranks(layers: Sequence[LayerRow]) -> "Figure":
    """A bar a layer, on the scale of what it could be at most."""
    figure = _figure(7.0, 0.9 + 0.27 * len(layers))
    axes = figure.subplots()
    places = range(len(layers))
    axes.barh(places, [min(layer.shape) for layer in layers], color="#eeeeee", height=0.7, label="full rank min(m, n)")
    axes.barh(places, [layer.stable_rank for layer in layers], color="#0072B2", height=0.7, label="stable rank")
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
    figure.legend(loc="outside upper left", ncols=2)
    return figure


def residuals(rows: Sequence[ResidualRow]) -> "Figure":
    """A panel a layer: residual over rank, a line a source of carriers."""
    names = spread(list(dict.fromkeys(row.layer for row in rows)), PANELS)
    figure, panels = _panels(len(names))
    sources = [source for source in SOURCES if any(row.source == source for row in rows)]
    for name, axes in zip(names, panels, strict=True):
        for source in sources:
            line = [(row.rank, row.residual) for row in rows if (row.layer, row.source) == (name, source)]
            colour, marker, dash = LINES[source]
            axes.plot(*zip(*line, strict=True), color=colour, marker=marker, linestyle=dash, label=source)
        axes.set_title(name, fontsize="medium")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylim(0, 1.03)
        axes.set_xlabel("rank r")
    _label_left(panels, "projection residual")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(sources))
    return figure


def clips(own: ClipRow, rows: Sequence[ClipRow], clip_norm: float) -> "Figure":
    """Left: how many examples have at most which norm. Right: share clipped over sparsity."""
    figure = _figure(9.0, 3.6)
    left, right = figure.subplots(1, 2)
    dense = next((row for row in rows if row.choice == "all"), None)
    for row, colour, label in ((dense, "#999999", "nothing frozen"), (own, "#D55E00", f"the run's mask: {_mask(own)}")):
        if row is not None:
            lengths = [max(length, SHORTEST * clip_norm) for length in row.clipping.lengths]
            left.ecdf(lengths, color=colour, label=label)
    left.axvline(clip_norm, color="#000000", linestyle="--", label=f"clip norm C = {clip_norm:g}")
    left.set_xscale("log")
    left.set_xlabel("norm of an example's gradient")
    left.set_ylabel("share of examples below")
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


def energies(rows: Sequence[EnergyRow]) -> "Figure":
    """A panel a layer: energy of the gradient in kept rows and columns over the share that is frozen."""
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
    _label_left(panels, "kept share of $||dW||_F^2$")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3)
    return figure


def intensity(name: str, W: Tensor, dW: Tensor) -> "Figure":
    """abs(W) beside abs(dW) (000 Fig. 1): out units down, in units across; white from the 99.5 % quantile on."""
    m, n = flatten_kernel(W).shape
    wide = n > 1.6 * m
    figure = _figure(9.0, 4.4) if not wide else _figure(9.0, min(9.0, 1.6 + 2 * 7.6 * max(m / n, 0.12)))
    panels = figure.subplots(2, 1) if wide else figure.subplots(1, 2)
    for axes, matrix, title in zip(panels, (W, dW), ("weight  $|W|$", "gradient  $|dW|$"), strict=True):
        values = tiled(flatten_kernel(matrix).detach().abs().cpu()).numpy()
        top = float(np.quantile(values, 0.995)) or 1.0
        image = axes.imshow(
            values, cmap="inferno", vmin=0, vmax=top, aspect="auto", interpolation="nearest", extent=(0, n, m, 0)
        )
        axes.grid(visible=False)
        axes.set_title(title, fontsize="medium")
        axes.set_ylabel("out unit")
        axes.set_xlabel("in unit" if W.ndim == 2 else "in channel and tap")
        figure.colorbar(image, ax=axes, pad=0.01)
    figure.suptitle(name, fontsize="medium")
    return figure


def tiled(matrix: Tensor, side: int = MAP_SIDE) -> Tensor:
    """The matrix, or the largest entry of each of at most ``side`` x ``side`` tiles: lines survive that, means fade."""
    shape = [min(side, size) for size in matrix.shape]
    pooled: Tensor = torch.nn.functional.adaptive_max_pool2d(matrix.float()[None, None], shape)[0, 0]
    return pooled


def _mask(row: ClipRow) -> str:
    return "none" if row.sparsity == 0 else f"{row.choice}, p = {row.sparsity:g}"


def _panels(count: int) -> tuple["Figure", list["Axes"]]:
    columns = min(3, count)
    lines = -(-count // columns)
    figure = _figure(3.1 * columns + 0.6, 2.6 * lines + 0.5)
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False).flatten().tolist()
    for axes in grid[count:]:
        axes.remove()
    return figure, grid[:count]


def _label_left(panels: Sequence["Axes"], text: str) -> None:
    for axes in panels[::3]:
        axes.set_ylabel(text)


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
