"""Statistics of gradients from the papers: stable ranks, residuals, clipping, energy of units.

The batch gradient is neither clipped nor noisy. ``clip_rows`` measures how many examples a clip
shortens, under the run's own mask and others (Ito et al. 2024): per-example gradients, frames,
masks and clip factors are those of a client's step; only the noise is missing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64
from torch import Tensor

from fedlsg.carriers.statistics import (
    Clipping,
    block_squares,
    clipping,
    kept_energy,
    principal_carriers,
    random_energy,
    residual,
    select_kept,
    stable_rank,
)
from fedlsg.frame import Coordinates, Frame
from fedlsg.frame.forms import TANGENT
from fedlsg.lowrank import decompose, flatten_kernel, project, random_carriers
from fedlsg.masks import Direction, Mask, keep_units, unit_importance
from fedlsg.method import Compression, Method
from fedlsg.privacy import Mechanism
from fedlsg.randomness import public_generator
from fedlsg.simulations.inspection import (
    Costs,
    Rows,
    Subject,
    Weights,
    batch_gradient,
    passes,
    unmasked,
)
from fedlsg.simulations.inspection.energy import KeptRows
from fedlsg.simulations.inspection.sparsified import Sparsified, sparsified

Squares = Float64[Tensor, "blocks batch"]
"""Squared norms of the blocks of examples' gradients."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ClipRow:
    """The clip of all examples under one mask.

    sparsity: of the mask.
    choice: as in ``EnergyRow``, or the kind of the mask; "all" keeps everything.
    kept: coordinates that the mask keeps.
    clipping: norms and clip factors.
    shares: by parameter, its share of the squared norm of an example, mean over examples.
    """

    sparsity: float
    choice: str
    kept: int
    clipping: Clipping
    shares: Mapping[str, float]


def own_clip(subject: Subject, frame: Frame, rows: Rows) -> ClipRow:
    """The clip in the frame of the run, by the pass of a client."""
    squares = torch.cat([block_squares(blocks) for blocks in passes(subject, frame, rows)], dim=1)
    mask = subject.base.method.mask
    if mask.choose is not None:  # the mask of a user's function has no rate
        rate = round(1 - frame.kept / frame.size, 3)
    else:
        rate = mask.rate(subject.base.schedule.time(subject.round))
    return _clip_row(subject, squares, frame, rate, mask.choice)


def clip_rows(
    subject: Subject, own: Frame, rows: Rows, sparsities: Sequence[float]
) -> list[ClipRow]:
    """The clip at each sparsity, from one pass without a mask (Ito et al. 2024, Listing 1)."""
    method = replace(subject.base.method, compression=Compression())
    frames = {
        (p, choice): subject.frame_of(replace(method, mask=mask))
        for p in sparsities
        for choice, mask in masks_of(method, p).items()
    }
    squares: dict[tuple[float, str], list[Squares]] = {key: [] for key in frames}
    for gradients in passes(subject, unmasked(own), rows):
        for key, frame in frames.items():
            squares[key].append(block_squares(select_kept(gradients, frame.blocks)))
    return [
        _clip_row(subject, torch.cat(squares[key], dim=1), frame, *key)
        for key, frame in frames.items()
    ]


def masks_of(method: Method, sparsity: float) -> dict[str, Mask]:
    """Other masks at a sparsity, by what they keep.

    They are masks of units if the method has carriers, else of its own kind. A method without a
    mask gets the uniform one. At sparsity 0 there is one mask, which keeps everything; embeddings
    have no other.
    """
    mask, pruned = method.mask, method.prune.active
    if sparsity == 0 and not pruned:
        return {"all": Mask()}
    if method.carrier.form.embeds:
        return {}
    if not method.carrier.refuses_units:
        units = Mask(kind="units", sparsity=sparsity)
        return {
            "top": replace(units, direction="top"),
            "bottom": replace(units, direction="bottom"),
            "random": replace(units, importance="random"),
        }
    if pruned:
        drop = "random" if mask.drop == "none" else mask.drop
        return {f"drop {drop}": Mask(kind="drop", sparsity=sparsity, drop=drop)}
    if mask.kind in ("magnitude", "drop"):
        return {mask.kind: replace(mask, sparsity=sparsity, cooling=False, sparsity_from=0.0)}
    return {"uniform": Mask(kind="uniform", sparsity=sparsity)}


def _clip_row(
    subject: Subject, squares: Squares, frame: Frame, sparsity: float, choice: str
) -> ClipRow:
    dtype = next(iter(subject.weights.values())).dtype
    return ClipRow(
        sparsity=sparsity,
        choice=choice,
        kept=frame.kept,
        clipping=clipping(
            squares, subject.base.method.mechanism, dtype=dtype, coordinates=frame.kept
        ),
        shares=length_shares(squares, frame),
    )


def length_shares(squares: Squares, frame: Frame) -> dict[str, float]:
    """Mean share of an example's squared norm by parameter, over examples with a finite norm.

    The shares add up to 1.
    """
    total = squares.sum(0)
    usable = total.isfinite() & (total > 0)
    means = (squares[:, usable] / total[usable]).mean(1).tolist()
    shares: dict[str, float] = dict.fromkeys((block.parameter for block in frame.blocks), 0.0)
    for block, share in zip(frame.blocks, means, strict=True):
        shares[block.parameter] += share
    return shares


SOURCES = {
    "method": "the method's own function of public values",
    "gradient": "the gradient itself, r-SVD (Yu et al. 2021, Eq. 6): the least that can be lost",
    "gradient at W_0": "the gradient of the same batch at W_0, r-SVD (Yu et al. 2021, Eq. 5)",
    "W - W_0": "the update since the start, power method (what rgp projects on)",
    "W": "the weight, power method (what lsg projects on)",
    "random": "nothing: random carriers (what rgp-random projects on)",
}
"""By source of carriers, what they are made from."""
LARGEST_RANK = 64
"""Of the ranks that are measured without a choice."""
DIRECTIONS: tuple[Direction, ...] = ("top", "bottom")
"""Choices of units by importance."""


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One layer.

    layer: name of its weight.
    treated: by the method: "carried", "dense" or "classifier".
    shape: of the weight as a matrix.
    stable_rank: of the batch gradient.
    gradient_norm: of the batch gradient.
    weight_norm: of the weight.
    """

    layer: str
    treated: str
    shape: tuple[int, int]
    stable_rank: float
    gradient_norm: float
    weight_norm: float


@dataclass(frozen=True, kw_only=True)
class ResidualRow:
    """The projection residual of carriers in one layer.

    layer: name of its weight.
    source: of the carriers, see ``SOURCES``.
    rank: of the carriers.
    residual: |dW - P dW| / |dW|.
    """

    layer: str
    source: str
    rank: int
    residual: float


@dataclass(frozen=True, kw_only=True)
class EnergyRow:
    """The energy of a layer's batch gradient in kept units.

    layer: name of its weight.
    sparsity: share of the units that is frozen.
    choice: top keeps the units of largest importance, bottom those of smallest; random is the mean
        over draws.
    rows: share of the energy in kept out units.
    columns: share of the energy in kept in units.
    either: share of the energy in kept out units or kept in units.
    carriers: share of the energy of (dL, dR); NaN if the layer is not carried.
    """

    layer: str
    sparsity: float
    choice: str
    rows: float
    columns: float
    either: float
    carriers: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Inspection:
    """All results of an inspection.

    examples: how many were read.
    layers: one row a layer.
    residuals: one row a layer, source and rank.
    energies: one row a layer, sparsity and choice.
    own: the clip in the frame of the run itself.
    clips: the clip under other masks.
    gradients: batch gradients by layer.
    mechanism: of the run.
    costs: accuracy that noise and clip cost; None if it was not measured.
    kept: energy kept by carriers; empty if it was not measured.
    sparsified: effects of random masks; None for methods without them.
    """

    examples: int
    layers: list[LayerRow]
    residuals: list[ResidualRow]
    energies: list[EnergyRow]
    own: ClipRow
    clips: list[ClipRow]
    gradients: Weights
    mechanism: Mechanism
    costs: Costs | None = None
    kept: KeptRows = ()
    sparsified: Sparsified | None = None

    @property
    def sources(self) -> list[str]:
        """Sources of the carriers in the residuals, in the order of ``SOURCES``."""
        sources = {row.source for row in self.residuals}
        return [source for source in SOURCES if source in sources]

    @property
    def others(self) -> list[ClipRow]:
        """The clips under masks that differ from the run's own."""
        own = self.own

        def repeats(row: ClipRow) -> bool:
            if row.choice == "all":
                return row.kept == own.kept
            return (row.choice, row.sparsity) == (own.choice, own.sparsity)

        return [row for row in self.clips if not repeats(row)]


def inspect(
    subject: Subject, *, examples: int, sparsities: Sequence[float], ranks: Sequence[int] | None
) -> Inspection:
    """Measure everything.

    ranks: None: powers of two, and that of the method.

    Raises ValueError for no example, a rank below 1, or a sparsity outside [0, 1).
    """
    if examples < 1:
        raise ValueError(f"expected {examples=} >= 1")
    if ranks is not None and min(ranks, default=0) < 1:
        raise ValueError(f"expected ranks >= 1, got {list(ranks)}")
    rows = subject.rows(examples)
    gradients = batch_gradient(subject, rows)
    before = None
    if subject.moved:
        with subject.at(subject.start):
            before = batch_gradient(subject, rows)
    frame = subject.frame
    return Inspection(
        examples=len(rows),
        layers=layer_rows(subject, gradients),
        residuals=[
            row
            for name in subject.layers
            for row in residual_rows(subject, name, gradients, before, ranks)
        ],
        energies=[
            row
            for name in subject.layers
            for row in energy_rows(subject, name, gradients[name], sparsities)
        ],
        own=own_clip(subject, frame, rows),
        clips=clip_rows(subject, frame, rows, sparsities),
        gradients={name: gradients[name] for name in subject.layers},
        mechanism=subject.base.method.mechanism,
        sparsified=sparsified(subject, rows, sparsities),
    )


def layer_rows(subject: Subject, gradients: Weights) -> list[LayerRow]:
    """The matrices of the model, with stable ranks of batch gradients (Yu et al. 2021, Fig. 2)."""
    treated = dict.fromkeys(subject.layers, "dense") | {subject.classifier: "classifier"}
    treated |= dict.fromkeys(subject.state.public.carried, "carried")
    layers = []
    for name in subject.layers:
        dW = gradients[name]
        m, n = flatten_kernel(dW).shape
        layers.append(
            LayerRow(
                layer=name,
                treated=treated[name],
                shape=(m, n),
                stable_rank=stable_rank(dW),
                gradient_norm=float(dW.norm()),
                weight_norm=float(subject.weights[name].norm()),
            )
        )
    return layers


def residual_rows(
    subject: Subject,
    name: str,
    gradients: Weights,
    before: Weights | None,
    ranks: Sequence[int] | None,
) -> Iterator[ResidualRow]:
    """Residuals of one layer over ranks (Yu et al. 2021, Fig. 3).

    before: gradients at W_0; None if W has not moved.
    """
    dW, W, W_0 = gradients[name], subject.weights[name], subject.start[name]
    m, n = flatten_kernel(dW).shape
    largest = min(m, n, LARGEST_RANK)
    carrier = subject.base.method.carrier
    coordinates = subject.coordinates(name)
    if carrier.functions and coordinates.L is not None and coordinates.R is not None:
        yield ResidualRow(
            layer=name,
            source="method",
            rank=carrier.rank,
            residual=residual(dW, coordinates.L, coordinates.R, coordinates.form),
        )
    if ranks is None:
        ranks = [carrier.rank, *(2**power for power in range(largest.bit_length()))]
    possible = sorted({rank for rank in ranks if 1 <= rank <= min(m, n)})
    if not possible:
        return
    exact = {"gradient": principal_carriers(dW, possible[-1])}
    followed = {"W": W}  # by the power method
    if before is not None and not torch.equal(W, W_0):
        exact["gradient at W_0"] = principal_carriers(before[name], possible[-1])
        followed = {"W - W_0": W - W_0, "W": W}
    for rank in possible:
        pairs = {source: (L[:, :rank], R[:rank]) for source, (L, R) in exact.items()}
        draw = public_generator(subject.state.seed, "inspect", name, rank)
        for source, A in followed.items():
            pairs[source] = decompose(A, rank, generator=draw, power_steps=carrier.power_steps)
        pairs["random"] = random_carriers((m, n), rank, generator=draw, like=dW)
        for source, pair in pairs.items():
            yield ResidualRow(layer=name, source=source, rank=rank, residual=residual(dW, *pair))


def energy_rows(
    subject: Subject, name: str, dW: Tensor, sparsities: Sequence[float]
) -> Iterator[EnergyRow]:
    """Energy of a layer's gradient in the units that LSG would keep, and in other units."""
    out, into = unit_importance(subject.weights[name])
    coordinates = subject.coordinates(name)
    for sparsity in sparsities:
        for choice in DIRECTIONS:
            rows, columns = keep_units(out, sparsity, choice), keep_units(into, sparsity, choice)
            share = kept_energy(dW, rows, columns)
            carriers = carried_energy(dW, coordinates, rows, columns)
            yield EnergyRow(
                layer=name, sparsity=sparsity, choice=choice, **vars(share), carriers=carriers
            )
        # both choices keep equally many units
        share = random_energy(tuple(dW.shape), len(rows), len(columns))
        yield EnergyRow(
            layer=name, sparsity=sparsity, choice="random", **vars(share), carriers=math.nan
        )


def carried_energy(dW: Tensor, coordinates: Coordinates, rows: Tensor, columns: Tensor) -> float:
    """Share of ||dL||^2 + ||dR||^2 in kept rows of dL and kept columns of dR.

    NaN for a layer without them.
    """
    L, R = coordinates.L, coordinates.R
    if L is None or R is None or coordinates.form is not TANGENT:
        return math.nan
    dL, dR = project(dW, L, R)
    # by in unit: a convolution has several columns for one
    units = dR.double().square().sum(0).reshape(dW.shape[1], -1).sum(1)
    total = dL.double().square().sum() + units.sum()
    kept = dL.double()[rows].square().sum() + units[columns].sum()
    return float(kept / total) if total > 0 else math.nan
