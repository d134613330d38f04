"""The figures of an inspection: ranks, residuals, clipping, energy, masks, intensity maps."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedlsg.lowrank import flatten_kernel
from fedlsg.simulations.inspection import Subject
from fedlsg.simulations.inspection.energy import KeptRows, kinds_of
from fedlsg.simulations.inspection.measure import (
    ClipRow,
    EnergyRow,
    Inspection,
    LayerRow,
    ResidualRow,
)
from fedlsg.simulations.inspection.sparsified import Counts, Deviations, Sparsified
from fedlsg.simulations.report.drawing.chart import Axis, Chart, Series, level, spaced
from fedlsg.simulations.report.drawing.colours import BLACK, BLUE, GREEN, GREY, ORANGE, RED, SKY
from fedlsg.simulations.report.pages.figure import new_figure, use_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = 6
"""Layers at most in figures with a panel for each: evenly spread over the depth of the model."""
ROUNDS = 4
"""Rounds in the figure of carriers at most: the first, the last, and some in between."""
MAP_SIDE = 400
"""Rows and columns of an intensity map at most; of larger matrices it has the largest entry of each
tile.
"""
SHORTEST_NORM = 1e-3
"""Norms below this multiple of C are drawn at it, because a logarithmic axis has no 0."""
SOURCE_LOOKS = {
    "method": (RED, "*", "-"),
    "gradient": (BLACK, "o", "-"),
    "gradient at W_0": (BLUE, "s", "--"),
    "W - W_0": (RED, "o", "-"),
    "W": (GREEN, "^", "-"),
    "random": (GREY, "x", ":"),
}
"""Colour, marker and dashes by source of carriers."""
CARRIER_LOOKS = {
    "random": (GREY, "x"),
    "W": (GREEN, "^"),
    "W - W_0": (RED, "o"),
    "updates": (ORANGE, "D"),
    "probe: leaves": (BLUE, "s"),
    "probe: tokens": (BLUE, "s"),
    "probe: pink": (SKY, "v"),
    "private data": (BLACK, "*"),
}
"""Colour and marker by kind of carriers."""
OTHER_CARRIER_LOOK = (BLUE, "P")
"""Colour and marker of any other kind."""
CHOICE_LOOKS = {"top": (RED, "^"), "bottom": (BLUE, "v"), "random": (GREY, "x")}
"""Colour and marker by choice of units."""
OTHER_CHOICE_LOOK = (GREEN, "o")
"""Colour and marker of any other choice."""
SPARSITY_AXIS = Axis(label="sparsity p: share that is frozen")
Charts = tuple[Chart, ...]
"""Panels of one figure."""


def figures(
    found: Inspection, subject: Subject, maps: Sequence[str]
) -> "dict[str, Charts | Figure]":
    """Every figure by file name. ``maps``: names of the layers with intensity maps."""
    by_name: dict[str, Charts | Figure] = {}
    if found.kept:
        by_name["carriers"] = kept_energy(found.kept)
    by_name["stable-rank"] = stable_ranks(found.layers)
    by_name["residual"] = residuals(found.residuals)
    by_name["clipping"] = clips(found)
    by_name["energy"] = energies(found.energies)
    if found.sparsified is not None:
        by_name |= masked(found.sparsified)
    for name in maps:
        by_name[f"intensity-{name}"] = intensity(name, subject.weights[name], found.gradients[name])
    return by_name


def masked(found: Sparsified) -> dict[str, Charts]:
    """Figures of random masks by file name."""
    by_name: dict[str, Charts] = {}
    if any(found.measured):
        by_name["sparsified-ratios"] = ratios(found)
    by_name["deviations"] = planes(found.deviations)
    if found.counts is not None:
        by_name["mask-counts"] = mask_counts(found.counts)
    return by_name


def spread(names: Sequence[Any], count: int) -> list[Any]:
    """At most ``count`` of the names, in order, evenly spread from the first to the last."""
    if len(names) <= count:
        return list(names)
    if count == 1:
        return [names[0]]
    return [names[round(index * (len(names) - 1) / (count - 1))] for index in range(count)]


def stable_ranks(layers: Sequence[LayerRow]) -> Charts:
    """Two marks for each layer: its stable rank, and its full rank."""
    full = [(min(layer.shape), row) for row, layer in enumerate(layers)]
    stable = [(layer.stable_rank, row) for row, layer in enumerate(layers)]
    series = (
        _points(full, "full rank min(m, n)", GREY, "s", line=False, filled=False),
        _points(stable, "stable rank", BLUE, "o", line=False),
    )
    y = _layers_axis([f"{layer.layer}  {layer.shape[0]} x {layer.shape[1]}" for layer in layers])
    x = Axis(label="stable rank of the batch gradient", log=True)
    return (Chart(title="Stable ranks", x=x, y=y, series=series, height=120 + 30 * len(layers)),)


def _layers_axis(names: Sequence[str]) -> Axis:
    """A vertical axis with a row for each layer, the first one on top."""
    ticks = tuple((float(row), name) for row, name in enumerate(names))
    return Axis(ticks=ticks, low=-0.5, high=len(names) - 0.5, down=True)


def residuals(rows: Sequence[ResidualRow]) -> Charts:
    """A chart for each layer: residual over rank, a line for each source of carriers."""
    sources = {row.source for row in rows}
    charts = []
    for name, of_layer in _by_layer(rows):
        series = [
            _points(
                ((row.rank, row.residual) for row in of_layer if row.source == source),
                source,
                *look,
            )
            for source, look in SOURCE_LOOKS.items()
            if source in sources
        ]
        ranks = sorted({row.rank for row in of_layer})
        x = Axis(
            label="rank",
            log=True,
            ticks=spaced([(float(rank), f"{rank}") for rank in ranks], log=True),
        )
        y = Axis(label="projection residual", low=0.0, high=1.0)
        charts.append(Chart(title=name, x=x, y=y, series=series, height=260))
    return tuple(charts)


def _points(
    points: Iterable[Sequence[float]],
    name: str = "",
    colour: str = BLUE,
    marker: str = "",
    dashes: str = "-",
    **more: Any,
) -> Series:
    """A series from pairs of x and y."""
    pairs = list(points)
    x = [pair[0] for pair in pairs]
    y = [pair[1] for pair in pairs]
    return Series(x=x, y=y, name=name, colour=colour, marker=marker, dashes=dashes, **more)


def _by_layer(rows: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """The layers that have a panel, each with its rows."""
    shown = spread(list(dict.fromkeys(row.layer for row in rows)), PANELS)
    return [(name, [row for row in rows if row.layer == name]) for name in shown]


def clips(found: Inspection) -> Charts:
    """The distribution of norms of single examples, and if the run clips the clipped share."""
    norms = norm_distribution(found)
    return (norms, clipped_shares(found.clips)) if found.mechanism.clips else (norms,)


def norm_distribution(found: Inspection) -> Chart:
    """The distribution of norms under the run's mask, and without a mask if that differs."""
    mechanism = found.mechanism
    clip_norm = mechanism.clip_norm
    masks = [(row, GREY, "nothing frozen") for row in found.others if row.choice == "all"][:1]
    masks.append((found.own, RED, _mask_words(found.own)))
    series = []
    for row, colour, name in masks:
        norms = np.sort(np.maximum(row.clipping.lengths, SHORTEST_NORM * clip_norm)).tolist()
        shares = (np.arange(1, len(norms) + 1) / len(norms)).tolist()
        series.append(Series(x=norms, y=shares, name=name, colour=colour, steps=True))
    if mechanism.clips and mechanism.clip != "per-block":  # this one has a limit for each block
        series.append(level(clip_norm, f"clip norm C = {clip_norm:g}", BLACK, upright=True))
    return Chart(
        title="Norms of single examples",
        x=Axis(label="norm of an example's gradient", log=True),
        y=Axis(label="share of examples with a smaller norm", low=0.0, high=1.0),
        series=series,
        height=300,
    )


def clipped_shares(rows: Sequence[ClipRow]) -> Chart:
    """The clipped share of examples over sparsity; every line begins with the mask "all"."""
    lines = []
    for choice in dict.fromkeys(row.choice for row in rows if row.choice != "all"):
        points = [
            (row.sparsity, row.clipping.clipped) for row in rows if row.choice in (choice, "all")
        ]
        look = CHOICE_LOOKS.get(choice, OTHER_CHOICE_LOOK)
        lines.append(_points(sorted(points), f"{choice} kept", *look))
    return Chart(
        title="Examples that are clipped",
        x=SPARSITY_AXIS,
        y=Axis(label="share of examples clipped", low=0.0, high=1.0),
        series=lines,
        height=300,
    )


def energies(rows: Sequence[EnergyRow]) -> Charts:
    """A chart for each layer: energy of the gradient in kept rows and columns over sparsity."""
    charts = []
    for name, of_layer in _by_layer(sorted(rows, key=lambda row: row.sparsity)):
        series = []
        for choice, (colour, _) in CHOICE_LOOKS.items():
            kept = [row for row in of_layer if row.choice == choice]
            out = [(row.sparsity, row.rows) for row in kept]
            into = [(row.sparsity, row.columns) for row in kept]
            series.append(_points(out, f"{choice} out units", colour, "o"))
            series.append(_points(into, f"{choice} in units", colour, "s", "--"))
        y = Axis(label="share of the gradient's energy kept", low=0.0, high=1.0)
        charts.append(Chart(title=name, x=SPARSITY_AXIS, y=y, series=series, height=260))
    return tuple(charts)


def kept_energy(rows: KeptRows) -> Charts:
    """A chart for each rank, form and shown round, with a row of marks for each layer."""
    layers = list(dict.fromkeys(row.layer for row in rows))
    y = _layers_axis([name.removesuffix(".weight") for name in layers])
    x = Axis(label="share of the gradient's energy kept", low=0.0, high=1.0)
    charts = []
    for rank, form in dict.fromkeys((row.rank, row.form) for row in rows):
        for round in spread(sorted({row.round for row in rows}), ROUNDS):
            of_chart = [
                row for row in rows if (row.rank, row.form, row.round) == (rank, form, round)
            ]
            series = []
            for kind in kinds_of(rows):
                points = [
                    (row.energy, layers.index(row.layer))
                    for row in of_chart
                    if row.carriers == kind
                ]
                series.append(
                    _points(points, kind, *CARRIER_LOOKS.get(kind, OTHER_CARRIER_LOOK), line=False)
                )
            title = f"{form}, rank {rank}, round {round}"
            charts.append(
                Chart(title=title, x=x, y=y, series=series, height=110 + 26 * len(layers))
            )
    return tuple(charts)


def ratios(found: Sparsified) -> Charts:
    """The ratio of the noise if the run has noise, those of the clipped gradient if it clips."""
    p = np.linspace(0, max(row.sparsity for row in found.rows), 100)
    law = np.sqrt(1 - p)
    has_noise, clips = found.measured
    panels: list[tuple[str, tuple[Series, ...]]] = []
    if has_noise:
        noise = (
            Series(name="sqrt(1 - p)", x=p.tolist(), y=law.tolist(), colour=BLACK, dashes="--"),
            _ratio(found, "noise", "noise with the mask / without", BLUE, "o", line=False),
        )
        panels.append(("Length of the noise", noise))
    if clips:
        clipped = (
            _ratio(found, "relaxed", "kept coordinates, with the mask / without", RED, "o"),
            _ratio(found, "kept", "with the mask / whole gradient", GREEN, "s"),
            Series(
                name="1 / sqrt(1 - p)", x=p.tolist(), y=(1 / law).tolist(), colour=GREY, dashes=":"
            ),
        )
        panels.append(("Length of the clipped mean", clipped))
    return tuple(
        Chart(
            title=title, x=SPARSITY_AXIS, y=Axis(label="ratio", low=0.0), series=series, height=300
        )
        for title, series in panels
    )


def _ratio(
    found: Sparsified, key: str, name: str, colour: str, marker: str, *, line: bool = True
) -> Series:
    """A ratio with its standard deviation over masks."""
    p, value, sd = np.array(
        [(row.sparsity, getattr(row, key), getattr(row, f"{key}_sd")) for row in found.rows]
    ).T
    low, high = (value - sd).tolist(), (value + sd).tolist()
    return _points(
        np.stack([p, value], 1).tolist(), name, colour, marker, line=line, low=low, high=high
    )


def planes(found: Sequence[Deviations]) -> Charts:
    """A chart for each rate, with equal scales in both directions, without the 0.5 % extremes."""
    charts = []
    for plane in found:
        most = float(np.quantile(np.abs(plane.plane), 0.995)) or 1.0
        x = Axis(label="first random direction", low=-most, high=most)
        y = replace(x, label="second random direction")
        points = _points(plane.plane.tolist(), colour=BLUE, marker="o", line=False, filled=False)
        title = f"mask of sparsity {plane.sparsity:g}" if plane.sparsity else "no mask"
        charts.append(Chart(title=title, x=x, y=y, series=(points,), height=360))
    return tuple(charts)


def mask_counts(found: Counts) -> Charts:
    """Bars of the measured shares, and a line of those of independent masks, from 1e-4 on."""
    visible = np.flatnonzero(np.maximum(found.shares, found.expected) > 1e-4)
    counts = visible.astype(float).tolist()
    label = f"masks of the run, ranking={found.ranking}"
    series = (
        Series(name=label, kind="bar", x=counts, y=found.shares[visible].tolist(), colour=SKY),
        Series(
            name="independent random masks",
            x=counts,
            y=found.expected[visible].tolist(),
            colour=RED,
            marker="o",
        ),
    )
    x = Axis(label=f"how often a coordinate was frozen, of {found.masks} masks", whole=True)
    y = Axis(label="share of the coordinates")
    return (Chart(title="How often coordinates were frozen", x=x, y=y, series=series, height=300),)


@use_style
def intensity(name: str, W: Tensor, dW: Tensor) -> "Figure":
    """abs(W) next to abs(dW) (Ito et al. 2023, Fig. 1): out units down, in units across.

    Values above the 99.5 % quantile are white.
    """
    from matplotlib.ticker import MaxNLocator

    m, n = flatten_kernel(W).shape
    if n > 1.6 * m:  # wide: one panel above the other, each in the shape of the matrix
        height = 1.6 + 2 * 7.6 * max(m / n, 0.12)  # inches: titles, and two maps 7.6 wide
        figure = new_figure(9.0, min(9.0, height))
        panels = figure.subplots(2, 1)
    else:
        figure = new_figure(9.0, 4.4)
        panels = figure.subplots(1, 2)
    for axes, matrix, title in zip(panels, (W, dW), ("weight |W|", "gradient |dW|"), strict=True):
        values = tiled(flatten_kernel(matrix).detach().abs().cpu()).numpy()
        top = float(np.quantile(values, 0.995)) or 1.0
        image = axes.imshow(
            values,
            cmap="inferno",
            vmin=0,
            vmax=top,
            aspect="auto",
            interpolation="nearest",
            extent=(0, n, m, 0),
        )
        axes.grid(visible=False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.set_title(title, fontsize="medium")
        axes.set(xlabel="in unit" if W.ndim == 2 else "in channel and tap", ylabel="out unit")
        figure.colorbar(image, ax=axes, pad=0.01)
    figure.suptitle(name, fontsize="medium")
    return figure


def tiled(matrix: Tensor) -> Tensor:
    """The matrix, or of a large one the largest entry of each tile: means would fade thin lines."""
    shape = [min(MAP_SIDE, size) for size in matrix.shape]
    maps: Tensor = torch.nn.functional.adaptive_max_pool2d(matrix.float()[None, None], shape)
    return maps[0, 0]


def _mask_words(row: ClipRow) -> str:
    """The run's mask in words."""
    if row.sparsity == 0:
        return "nothing frozen"
    return f"the run's mask: {row.choice}, sparsity {row.sparsity:g}"
