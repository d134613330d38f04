"""The papers' statistics of one subject: stable ranks, projection residuals, clipping, energy of units.

The batch gradient is neither clipped nor noisy. ``clip_rows`` measures what a clip does to single examples.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlsg.carriers.statistics import kept_energy, principal_carriers, random_energy, residual, stable_rank
from fedlsg.forms import TANGENT
from fedlsg.frame import Coordinates
from fedlsg.lowrank import decompose, flatten_kernel, project, random_carriers
from fedlsg.masks import Direction, keep_units, unit_importance
from fedlsg.randomness import public_generator
from simulations.inspection.clips import ClipRow, clip_rows, own_clip
from simulations.inspection.energy import KeptRow
from simulations.inspection.retrain import Costs
from simulations.inspection.sparsified import Sparsified, sparsified
from simulations.inspection.subject import Subject, batch_gradient

SOURCES = {
    "own": "the method's own function of public values",
    "self": "the gradient itself, r-SVD (Yu et al. 2021, Eq. 6)",
    "start gradient": "the gradient of the same batch at W_0, r-SVD (Yu et al. 2021, Eq. 5)",
    "history": "the update W - W_0, power method (what rgp projects on)",
    "weight": "the weight W, power method (what lsg projects on)",
    "random": "nothing: random carriers (what rgp-random projects on)",
}
LARGEST_RANK = 64


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One layer: ``shape`` as a matrix, stable rank and length of its batch gradient, how the method treats it."""

    layer: str
    treated: str
    shape: tuple[int, int]
    stable_rank: float
    gradient_norm: float
    weight_norm: float


@dataclass(frozen=True, kw_only=True)
class ResidualRow:
    """Share of the batch gradient of a layer that carriers of ``rank`` from ``source`` lose."""

    layer: str
    source: str
    rank: int
    residual: float


@dataclass(frozen=True, kw_only=True)
class EnergyRow:
    """Energy of a layer's batch gradient in kept units; ``carriers``: energy of (dL, dR), NaN if not carried.

    ``choice`` top keeps the units of largest importance, bottom those of smallest; random is the mean over draws.
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
    """All results. ``own``: the clip in the frame of the run itself.

    If asked for, ``costs`` of noise and clip, and the energy ``kept`` by carriers; for random masks over all
    coordinates, what is ``sparsified``.
    """

    examples: int
    layers: list[LayerRow]
    residuals: list[ResidualRow]
    energies: list[EnergyRow]
    own: ClipRow
    clips: list[ClipRow]
    gradients: dict[str, Tensor]
    costs: Costs | None = None
    kept: Sequence[KeptRow] = ()
    sparsified: Sparsified | None = None


def inspect(subject: Subject, *, examples: int, sparsities: Sequence[float], ranks: Sequence[int] | None) -> Inspection:
    """Measure everything. ``ranks`` None: powers of two, and the method's own.

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
        with subject.at_start():
            before = batch_gradient(subject, rows)
    own = subject.frame
    return Inspection(
        examples=len(rows),
        layers=layer_rows(subject, gradients),
        residuals=[row for name in subject.layers for row in residual_rows(subject, name, gradients, before, ranks)],
        energies=[row for name in subject.layers for row in energy_rows(subject, name, gradients[name], sparsities)],
        own=own_clip(subject, own, rows),
        clips=clip_rows(subject, own, rows, sparsities),
        gradients={name: gradients[name] for name in subject.layers},
        sparsified=sparsified(subject, rows, sparsities),
    )


def layer_rows(subject: Subject, gradients: dict[str, Tensor]) -> list[LayerRow]:
    """The matrices of the model, with the stable rank of each batch gradient (Yu et al. 2021, Fig. 2)."""
    found = []
    for name in subject.layers:
        m, n = flatten_kernel(gradients[name]).shape
        treated = "classifier" if name == subject.classifier else "dense"
        found.append(
            LayerRow(
                layer=name,
                treated="carried" if name in subject.state.public.carried else treated,
                shape=(m, n),
                stable_rank=stable_rank(gradients[name]),
                gradient_norm=float(gradients[name].norm()),
                weight_norm=float(subject.weights[name].norm()),
            )
        )
    return found


def residual_rows(
    subject: Subject,
    name: str,
    gradients: dict[str, Tensor],
    before: dict[str, Tensor] | None,
    ranks: Sequence[int] | None,
) -> Iterator[ResidualRow]:
    """Residuals of one layer over ranks (Yu et al. 2021, Fig. 3). ``before``: gradients at W_0 if W has moved."""
    dW, W, W_0 = gradients[name], subject.weights[name], subject.start[name]
    m, n = flatten_kernel(dW).shape
    largest = min(m, n, LARGEST_RANK)
    carrier = subject.base.method.carrier
    own = next(c for c in subject.frame.coordinates if c.name == name)
    if carrier.functions and own.L is not None and own.R is not None:
        yield ResidualRow(layer=name, source="own", rank=carrier.rank, residual=residual(dW, own.L, own.R, own.form))
    powers = [2**k for k in range(largest.bit_length()) if 2**k <= largest]
    wanted = sorted({*powers, carrier.rank} if ranks is None else set(ranks))
    wanted = [rank for rank in wanted if 1 <= rank <= min(m, n)]
    if not wanted:
        return
    exact = {"self": principal_carriers(dW, wanted[-1])}
    moved = before is not None and not torch.equal(W, W_0)
    if moved and before is not None:
        exact["start gradient"] = principal_carriers(before[name], wanted[-1])
    for rank in wanted:
        pairs = {source: (L[:, :rank], R[:rank]) for source, (L, R) in exact.items()}
        draw = public_generator(subject.state.seed, "inspect", name, rank)
        for source, A in {"history": W - W_0, "weight": W}.items():
            if source == "weight" or moved:
                pairs[source] = decompose(A, rank, generator=draw, power_steps=carrier.power_steps)
        pairs["random"] = random_carriers((m, n), rank, generator=draw, like=dW)
        for source in SOURCES:
            if source in pairs:
                yield ResidualRow(layer=name, source=source, rank=rank, residual=residual(dW, *pairs[source]))


def energy_rows(subject: Subject, name: str, dW: Tensor, sparsities: Sequence[float]) -> Iterator[EnergyRow]:
    """How much of the gradient of a layer is in the units that LSG would keep, and in the others."""
    out, into = unit_importance(subject.weights[name])
    where = next(c for c in subject.frame.coordinates if c.name == name)
    for p in sparsities:
        for choice in ("top", "bottom", "random"):
            direction: Direction = "bottom" if choice == "bottom" else "top"
            rows, columns = (keep_units(importance, p, direction) for importance in (out, into))
            if choice == "random":
                share, carriers = random_energy(tuple(dW.shape), len(rows), len(columns)), math.nan
            else:
                share, carriers = kept_energy(dW, rows, columns), carried_energy(dW, where, rows, columns)
            yield EnergyRow(layer=name, sparsity=p, choice=choice, **vars(share), carriers=carriers)


def carried_energy(dW: Tensor, where: Coordinates, rows: Tensor, columns: Tensor) -> float:
    """Share of ||dL||^2 + ||dR||^2 in kept rows of dL and kept columns of dR; NaN for a layer that has neither."""
    if where.L is None or where.R is None or where.form is not TANGENT:
        return math.nan
    dL, dR = project(dW, where.L, where.R)
    units = dR.double().square().sum(0).reshape(dW.shape[1], -1).sum(1)
    total = dL.double().square().sum() + units.sum()
    kept = dL.double()[rows].square().sum() + units[columns].sum()
    return float(kept / total) if total > 0 else math.nan
