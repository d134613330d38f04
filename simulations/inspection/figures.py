"""The figures of an inspection: stable ranks, residuals, clipping, energy, random masks, intensity
maps.
"""

from collections.abc import Iterable, Sequence
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
"""Layers in figures with a panel for each layer: evenly spread over the depth of the model."""
ROUNDS = 4
"""Rounds in the figure of carriers at most: the first, the last, and some in between."""
MAP_SIDE = 400
"""Rows and columns of an intensity map at most; larger matrices show the largest entry of each
tile.
"""
SHORTEST_NORM = 1e-3
"""Shorter norms than this share of C are drawn here: the clip does not change them."""
LINES = {
    "method": (RED, "*", "-"),
    "gradient": (BLACK, "o", "-"),
    "gradient at W_0": (BLUE, "s", "--"),
    "W - W_0": (RED, "o", "-"),
    "W": (GREEN, "^", "-"),
    "random": (GREY, "x", ":"),
}
MARKS = {
    "random": (GREY, "x"),
    "W": (GREEN, "^"),
    "W - W_0": (RED, "o"),
    "updates": (ORANGE, "D"),
    "probe: leaves": (BLUE, "s"),
    "probe: tokens": (BLUE, "s"),
    "probe: pink": (SKY, "v"),
    "private data": (BLACK, "*"),
}
"""Carriers by what they are made from; others have the next look."""
OTHER_MARK = (BLUE, "P")
CHOICES = {"top": (RED, "^"), "bottom": (BLUE, "v"), "random": (GREY, "x")}
OTHER_CHOICE = (GREEN, "o")
SPARSITY = Axis(label="sparsity p: share that is frozen")
Charts = tuple[Chart, ...]


def figures(
    found: Inspection, subject: Subject, maps: Sequence[str]
) -> "dict[str, Charts | Figure]":
    """Every figure by file name; ``maps`` names the layers of intensity maps."""
    return {
        **({"carriers": kept_energy(found.kept)} if found.kept else {}),
        "stable-rank": stable_ranks(found.layers),
        "residual": residuals(found.residuals),
        "clipping": clips(found),
        "energy": energies(found.energies),
        **({} if found.sparsified is None else masked(found.sparsified)),
        **{
            f"intensity-{name}": intensity(name, subject.weights[name], found.gradients[name])
            for name in maps
        },
    }


def masked(found: Sparsified) -> "dict[str, Charts | Figure]":
    """Figures of random masks by file name."""
    counts = {} if found.counts is None else {"mask-counts": mask_counts(found.counts)}
    drawn = {"sparsified-ratios": ratios(found)} if any(found.measured) else {}
    return {**drawn, "deviations": planes(found.deviations), **counts}


def spread(names: Sequence[Any], count: int) -> list[Any]:
    """At most ``count`` of the names, or numbers, in their order, evenly spread from the first to
    the last.
    """
    if len(names) <= count:
        return list(names)
    if count == 1:
        return [names[0]]
    return [names[round(i * (len(names) - 1) / (count - 1))] for i in range(count)]


def stable_ranks(layers: Sequence[LayerRow]) -> Charts:
    """Two marks for each layer: its stable rank, and its full rank."""
    full = [(min(layer.shape), at) for at, layer in enumerate(layers)]
    stable = [(layer.stable_rank, at) for at, layer in enumerate(layers)]
    series = (
        _points(full, "full rank min(m, n)", GREY, "s", line=False, filled=False),
        _points(stable, "stable rank", BLUE, "o", line=False),
    )
    y = _layers_axis([f"{layer.layer}  {layer.shape[0]} x {layer.shape[1]}" for layer in layers])
    x = Axis(label="stable rank of the batch gradient", log=True)
    return (Chart(title="Stable ranks", x=x, y=y, series=series, height=120 + 30 * len(layers)),)


def _layers_axis(names: Sequence[str]) -> Axis:
    ticks = tuple((float(place), name) for place, name in enumerate(names))
    return Axis(ticks=ticks, low=-0.5, high=len(names) - 0.5, down=True)


def residuals(rows: Sequence[ResidualRow]) -> Charts:
    """A chart for each layer: residual against rank, a line for each source of carriers."""
    sources = {row.source for row in rows}
    charts = []
    for name, of_layer in _by_layer(rows):
        series = [
            _points(
                ((row.rank, row.residual) for row in of_layer if row.source == source),
                source,
                *look,
            )
            for source, look in LINES.items()
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
    x, y = zip(*points, strict=True) if (points := list(points)) else ((), ())
    return Series(x=x, y=y, name=name, colour=colour, marker=marker, dashes=dashes, **more)


def _by_layer(rows: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """The shown layers, each with its rows."""
    shown = spread(list(dict.fromkeys(row.layer for row in rows)), PANELS)
    return [(name, [row for row in rows if row.layer == name]) for name in shown]


def clips(found: Inspection) -> Charts:
    """The distribution of the norms of single examples, and the share that is clipped against
    sparsity where the run clips.
    """
    own, rows, mechanism = found.own, found.clips, found.mechanism
    clip_norm = mechanism.clip_norm
    dense = [(row, GREY, "nothing frozen") for row in found.others if row.choice == "all"][:1]
    series = []
    for row, colour, name in (*dense, (own, RED, _mask(own))):
        lengths = np.sort(np.maximum(row.clipping.lengths, SHORTEST_NORM * clip_norm)).tolist()
        heights = (np.arange(1, len(lengths) + 1) / len(lengths)).tolist()
        series.append(Series(x=lengths, y=heights, name=name, colour=colour, steps=True))
    if mechanism.clips and mechanism.clip != "per-block":  # which has a limit for each block
        series.append(level(clip_norm, f"clip norm C = {clip_norm:g}", BLACK, upright=True))
    x = Axis(label="norm of an example's gradient", log=True)
    y = Axis(label="share of examples with a smaller norm", low=0.0, high=1.0)
    norms = Chart(title="Norms of single examples", x=x, y=y, series=series, height=300)
    if not mechanism.clips:
        return (norms,)
    choices = dict.fromkeys(row.choice for row in rows if row.choice != "all")
    lines = [
        _points(
            sorted(
                (row.sparsity, row.clipping.clipped)
                for row in rows
                if row.choice in (choice, "all")
            ),
            f"{choice} kept",
            *CHOICES.get(choice, OTHER_CHOICE),
        )
        for choice in choices
    ]
    return norms, Chart(
        title="Examples that are clipped",
        x=SPARSITY,
        y=Axis(label="share of examples clipped", low=0.0, high=1.0),
        series=lines,
        height=300,
    )


def energies(rows: Sequence[EnergyRow]) -> Charts:
    """A chart for each layer: energy of the gradient in kept rows and columns against the share
    that is frozen.
    """
    charts = []
    for name, of_layer in _by_layer(sorted(rows, key=lambda row: row.sparsity)):
        series = []
        for choice, (colour, _) in CHOICES.items():
            kept = [row for row in of_layer if row.choice == choice]
            out, into = (
                [(row.sparsity, getattr(row, side)) for row in kept] for side in ("rows", "columns")
            )
            series.append(_points(out, f"{choice} out units", colour, "o"))
            series.append(_points(into, f"{choice} in units", colour, "s", "--"))
        y = Axis(label="share of the gradient's energy kept", low=0.0, high=1.0)
        charts.append(Chart(title=name, x=SPARSITY, y=y, series=series, height=260))
    return tuple(charts)


def kept_energy(rows: KeptRows) -> Charts:
    """A chart for each rank, form and shown round; in it a row of marks for each layer."""
    layers = list(dict.fromkeys(row.layer for row in rows))
    y = _layers_axis([name.removesuffix(".weight") for name in layers])
    x = Axis(label="share of the gradient's energy kept", low=0.0, high=1.0)
    charts = []
    for rank, form in dict.fromkeys((row.rank, row.form) for row in rows):
        for round_ in spread(sorted({row.round for row in rows}), ROUNDS):
            found = [row for row in rows if (row.rank, row.form, row.round) == (rank, form, round_)]
            series = [
                _points(
                    (
                        (row.energy, layers.index(row.layer))
                        for row in found
                        if row.carriers == kind
                    ),
                    kind,
                    *MARKS.get(kind, OTHER_MARK),
                    line=False,
                )
                for kind in kinds_of(rows)
            ]
            title = f"{form}, rank {rank}, round {round_}"
            charts.append(
                Chart(title=title, x=x, y=y, series=series, height=110 + 26 * len(layers))
            )
    return tuple(charts)


def ratios(found: Sparsified) -> Charts:
    """The ratio of the noise, and those of the clipped gradient: of a run with noise, with a
    clip.
    """
    p = [row.sparsity for row in found.rows]
    fine = np.linspace(0, max(p), 100)
    law = np.sqrt(1 - fine)
    noise = (
        Series(name="sqrt(1 - p)", x=fine.tolist(), y=law.tolist(), colour=BLACK, dashes="--"),
        _measured(found, "noise", "noise with the mask / without", BLUE, "o", line=False),
    )
    clipped = (
        _measured(found, "relaxed", "kept coordinates, with the mask / without", RED, "o"),
        _measured(found, "kept", "with the mask / whole gradient", GREEN, "s"),
        Series(
            name="1 / sqrt(1 - p)", x=fine.tolist(), y=(1 / law).tolist(), colour=GREY, dashes=":"
        ),
    )
    panels = (("Length of the noise", noise), ("Length of the clipped mean", clipped))
    measured = found.measured
    return tuple(
        Chart(title=words, x=SPARSITY, y=Axis(label="ratio", low=0.0), series=series, height=300)
        for (words, series), there in zip(panels, measured, strict=True)
        if there
    )


def _measured(
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
    """A chart for each rate, with equal scales in both directions."""
    charts = []
    for plane in found:
        most = float(np.quantile(np.abs(plane.plane), 0.995)) or 1.0
        x, y = (
            Axis(label=f"{name} random direction", low=-most, high=most)
            for name in ("first", "second")
        )
        points = _points(plane.plane.tolist(), colour=BLUE, marker="o", line=False, filled=False)
        title = f"mask of sparsity {plane.sparsity:g}" if plane.sparsity else "no mask"
        charts.append(Chart(title=title, x=x, y=y, series=(points,), height=360))
    return tuple(charts)


def mask_counts(found: Counts) -> Charts:
    """Bars of the shares, a line of what independent masks give."""
    counts = np.arange(len(found.shares))
    seen = counts[np.maximum(found.shares, found.expected) > 1e-4]
    at = seen.astype(float).tolist()
    label = f"masks of the run, ranking={found.ranking}"
    series = (
        Series(name=label, kind="bar", x=at, y=found.shares[seen].tolist(), colour=SKY),
        Series(
            name="independent random masks",
            x=at,
            y=found.expected[seen].tolist(),
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
    wide = n > 1.6 * m
    figure = (
        new_figure(9.0, 4.4)
        if not wide
        else new_figure(9.0, min(9.0, 1.6 + 2 * 7.6 * max(m / n, 0.12)))
    )
    panels = figure.subplots(2, 1) if wide else figure.subplots(1, 2)
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
    """The matrix, or the largest entry of each tile if it is large: thin lines survive that, means
    would fade them.
    """
    shape = [min(MAP_SIDE, size) for size in matrix.shape]
    pooled: Tensor = torch.nn.functional.adaptive_max_pool2d(matrix.float()[None, None], shape)[
        0, 0
    ]
    return pooled


def _mask(row: ClipRow) -> str:
    if row.sparsity == 0:
        return "nothing frozen"
    return f"the run's mask: {row.choice}, sparsity {row.sparsity:g}"
