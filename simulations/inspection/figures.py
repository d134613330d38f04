"""The figures of an inspection: stable ranks, residuals, clipping, energy, random masks, intensity maps."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedlsg.lowrank import flatten_kernel
from simulations.inspection.clips import ClipRow
from simulations.inspection.energy import KeptRow, kinds_of
from simulations.inspection.measure import SOURCES, EnergyRow, Inspection, LayerRow, ResidualRow
from simulations.inspection.sparsified import Counts, Deviations, Sparsified
from simulations.inspection.subject import Subject
from simulations.report.colours import BLACK, BLUE, GREEN, GREY, LIGHT, ORANGE, RED, SKY
from simulations.report.figure import legend_outside, new_figure, panel_grid, use_style, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 6
"""Layers in figures with a panel for each layer: evenly spread over the depth of the model."""
ROUNDS = 4
"""Rounds in the figure of carriers at most: the first, the last, and some in between."""
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
MARKS: Mapping[str, tuple[str, str]] = {
    "random": (GREY, "x"), "W": (GREEN, "^"), "W - W_0": (RED, "o"), "updates": (ORANGE, "D"),
    "probe: leaves": (BLUE, "s"), "probe: tokens": (BLUE, "s"), "probe: pink": (SKY, "v"), "private data": (BLACK, "*"),
}  # fmt: skip
"""Carriers by what they are made from; others have the next look."""
OTHER_MARK = (BLUE, "P")
CHOICES: Mapping[str, tuple[str, str]] = {"top": (RED, "^"), "bottom": (BLUE, "v"), "random": (GREY, "x")}
OTHER_CHOICE = (GREEN, "o")


def figures(found: Inspection, subject: Subject, maps: Sequence[str]) -> dict[str, "Figure"]:
    """Every figure by file name; ``maps`` names the layers of intensity maps."""
    return {
        **({"carriers": kept_energy(found.kept)} if found.kept else {}),
        "stable-rank": stable_ranks(found.layers),
        "residual": residuals(found.residuals),
        "clipping": clips(found.own, found.clips, subject.base.method.mechanism.clip_norm),
        "energy": energies(found.energies),
        **({} if found.sparsified is None else masked(found.sparsified)),
        **{f"intensity-{name}": intensity(name, subject.weights[name], found.gradients[name]) for name in maps},
    }


def masked(found: Sparsified) -> dict[str, "Figure"]:
    """Figures of random masks by file name."""
    counts = {} if found.counts is None else {"mask-counts": mask_counts(found.counts)}
    return {"sparsified-ratios": ratios(found), "deviations": planes(found.deviations), **counts}


def spread(names: Sequence[Any], count: int) -> list[Any]:
    """At most ``count`` of the names, or numbers, in their order, evenly spread from the first to the last."""
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
    names, sources = _shown_layers(rows), [source for source in SOURCES if any(row.source == source for row in rows)]
    figure, panels = panel_grid(len(names), 3, (3.1, 2.6), (0.6, 0.5), sharey=True)
    for name, axes in zip(names, panels, strict=True):
        for source in sources:
            line = [(row.rank, row.residual) for row in rows if (row.layer, row.source) == (name, source)]
            colour, marker, dash = LINES[source]
            points = zip(*(line or [(1, math.nan)]), strict=True)
            axes.plot(*points, color=colour, marker=marker, linestyle=dash, label=source)
        axes.set_title(name, fontsize="medium")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set(ylim=(0, 1.03), xlabel="rank r")
    _label_left(panels, "projection residual")
    legend_outside(figure, panels[:1], "outside upper left", len(sources))
    return figure


def _shown_layers(rows: Iterable[ResidualRow | EnergyRow]) -> list[str]:
    return spread(list(dict.fromkeys(row.layer for row in rows)), PANELS)


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
    left.set(xlabel="norm of an example's gradient", ylabel="share of examples with a smaller norm")
    left.legend()
    for choice in dict.fromkeys(row.choice for row in rows if row.choice != "all"):
        line = [(row.sparsity, row.clipping.clipped) for row in rows if row.choice in (choice, "all")]
        colour, marker = CHOICES.get(choice, OTHER_CHOICE)
        right.plot(*zip(*sorted(line), strict=True), color=colour, marker=marker, label=f"{choice} kept")
    right.set(ylim=(-0.03, 1.03), xlabel="sparsity p", ylabel="share of examples clipped")
    right.legend()
    return figure


@use_style
def energies(rows: Sequence[EnergyRow]) -> "Figure":
    """A panel for each layer: energy of the gradient in kept rows and columns against the share that is frozen."""
    names = _shown_layers(rows)
    figure, panels = panel_grid(len(names), 3, (3.1, 2.6), (0.6, 0.5), sharey=True)
    for name, axes in zip(names, panels, strict=True):
        for choice, (colour, _) in CHOICES.items():
            own = sorted((r for r in rows if (r.layer, r.choice) == (name, choice)), key=lambda r: r.sparsity)
            p = [row.sparsity for row in own]
            out, into = [row.rows for row in own], [row.columns for row in own]
            axes.plot(p, out, color=colour, marker="o", label=f"{choice} out units")
            axes.plot(p, into, color=colour, marker="s", linestyle="--", label=f"{choice} in units")
        axes.set_title(name, fontsize="medium")
        axes.set(ylim=(0, 1.03), xlabel="sparsity p")
    _label_left(panels, "share of the gradient's energy kept")
    legend_outside(figure, panels[:1], "outside upper left", 3)
    return figure


@use_style
def kept_energy(rows: Sequence[KeptRow]) -> "Figure":
    """A row of panels for each rank and form, a column for each round; in a panel a line for each layer."""
    kinds, places = kinds_of(rows), list(dict.fromkeys((row.rank, row.form) for row in rows))
    rounds = sorted({row.round for row in rows})
    shown = spread(rounds, ROUNDS)
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
                colour, marker = MARKS.get(kind, OTHER_MARK)
                axes.plot(*zip(*line, strict=True), color=colour, marker=marker, linestyle="none", label=kind)
            axes.set_title(f"{form}, r = {rank}, round {round_}", fontsize=9, loc="left")
            axes.set_xlim(-0.03, 1.03)
    panels[0][0].set_yticks(range(len(layers)), names)
    panels[0][0].set_ylim(len(layers) - 0.5, -0.5)
    for axes in panels[-1]:
        axes.set_xlabel("share of the gradient's energy kept")
    legend_outside(figure, panels[0])
    return figure


@use_style
def ratios(found: Sparsified) -> "Figure":
    """Left: the ratio of the noise. Right: those of the clipped gradient."""
    figure = new_figure(7.6, 3.3)
    left, right = figure.subplots(1, 2)
    p = [row.sparsity for row in found.rows]
    fine = np.linspace(0, max(p), 100)
    left.plot(fine, np.sqrt(1 - fine), color=BLACK, linestyle="--", label="sqrt(1 - p)")
    left.errorbar(
        p, [r.noise for r in found.rows], [r.noise_sd for r in found.rows], color=BLUE, marker="o", linestyle="none",
        label="noise with the mask / without",
    )  # fmt: skip
    for name, colour, marker, label in (
        ("relaxed", RED, "o", "kept coordinates, with the mask / without"),
        ("kept", GREEN, "s", "with the mask / whole gradient"),
    ):
        values = [(getattr(r, name), getattr(r, f"{name}_sd")) for r in found.rows]
        right.errorbar(p, *zip(*values, strict=True), color=colour, marker=marker, label=label)
    right.plot(fine, 1 / np.sqrt(1 - fine), color=GREY, linestyle=":", label="1 / sqrt(1 - p)")
    for axes, says in ((left, "length of the noise, ratio"), (right, "length of the clipped mean, ratio")):
        axes.set(xlabel="sparsification rate p", ylabel=says)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
    return figure


@use_style
def planes(found: Sequence[Deviations]) -> "Figure":
    """A panel for each rate, with equal scales in both directions."""
    figure = new_figure(3.4 * len(found), 3.6)
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, one in zip(panels, found, strict=True):
        most = float(np.quantile(np.abs(one.plane), 0.995)) or 1.0
        axes.plot(*one.plane.T, color=BLUE, marker=".", markersize=3, linestyle="none", alpha=0.5)
        axes.axhline(0, color=LIGHT)
        axes.axvline(0, color=LIGHT)
        axes.set(xlim=(-most, most), ylim=(-most, most), aspect="equal")
        axes.set_title("no mask" if not one.sparsity else f"mask of p = {one.sparsity:g}", fontsize="medium")
        axes.set_xlabel("first random direction")
    panels[0].set_ylabel("second random direction")
    return figure


@use_style
def mask_counts(found: Counts) -> "Figure":
    """Bars of the shares, a line of what independent masks give."""
    figure = new_figure(6.0, 3.2)
    axes = figure.subplots()
    counts = np.arange(len(found.shares))
    axes.bar(counts, found.shares, color=LIGHT, width=0.8, label=f"masks of the run, ranking={found.ranking}")
    axes.plot(counts, found.expected, color=RED, marker="o", markersize=4, label="independent random masks")
    seen = counts[np.maximum(found.shares, found.expected) > 1e-4]
    across = f"how often a coordinate was frozen, of {found.masks} masks"
    axes.set(xlim=(seen.min() - 0.7, seen.max() + 0.7), xlabel=across, ylabel="share of the coordinates")
    legend_outside(figure, [axes], "outside upper left", 2)
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
        axes.set(xlabel="in unit" if W.ndim == 2 else "in channel and tap", ylabel="out unit")
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


def _label_left(panels: Sequence["Axes"], text: str) -> None:
    for axes in panels[::3]:
        axes.set_ylabel(text)
