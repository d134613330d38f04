"""How many examples a clip shortens, under the run's own mask and others (Ito et al. 2024).

Per-example gradients, frames, masks and clip factors are those of a client's step; only the noise is missing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from fedlsg.carriers.statistics import Clipping, block_squares, clipping, select_kept
from fedlsg.frame import EVERYTHING, Frame
from fedlsg.gradients import per_example_gradients
from fedlsg.masks import Mask
from fedlsg.method import Compression, Method
from fedlsg.training import per_unit
from simulations.inspection.subject import Subject

PASS_BYTES = 2**28
"""Most bytes for per-example gradients of one microbatch; one example may take more."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ClipRow:
    """The clip of every example under one mask; ``choice`` as in EnergyRow, or the kind of the mask.

    shares: the mean share of an example's squared length that each parameter has: what decides its norm.
    """

    sparsity: float
    choice: str
    kept: int
    clipping: Clipping
    shares: Mapping[str, float]


def own_clip(subject: Subject, frame: Frame, rows: Int64[Tensor, " n"]) -> ClipRow:
    """The clip in the frame of the run: the same pass that a client does."""
    squares = torch.cat([block_squares(g) for g in passes(subject, frame, rows)], dim=1)
    mask = subject.base.method.mask
    own_share = round(1 - frame.kept / frame.size, 3)
    rate = own_share if mask.choose is not None else mask.rate(subject.base.schedule.time(subject.round))
    return _clip_row(subject, squares, frame, rate, mask.choice)


def clip_rows(subject: Subject, own: Frame, rows: Int64[Tensor, " n"], sparsities: Sequence[float]) -> list[ClipRow]:
    """The clip at each sparsity, from one pass without a mask (Ito et al. 2024, Listing 1)."""
    variants = [
        (p, choice, subject.frame_of(method)) for p, choice, method in masks_of(subject.base.method, sparsities)
    ]
    collected: list[list[Float64[Tensor, "blocks batch"]]] = [[] for _ in variants]
    for gradients in passes(subject, unmasked(own), rows):
        for parts, (_, _, frame) in zip(collected, variants, strict=True):
            parts.append(block_squares(select_kept(gradients, frame.blocks)))
    return [
        _clip_row(subject, torch.cat(parts, dim=1), frame, p, choice)
        for parts, (p, choice, frame) in zip(collected, variants, strict=True)
    ]


def masks_of(method: Method, sparsities: Sequence[float]) -> Iterator[tuple[float, str, Method]]:
    """The method under other masks: units from top, bottom and at random where it has carriers; else its own kind.

    A method without a mask gets the uniform one. At p = 0 there is one mask, which keeps everything; embeddings take
    no other. Error feedback is left out: masks do not work with it.
    """
    own, method = method.mask, replace(method, compression=Compression())
    for p in sparsities:
        if p == 0 and not method.prune.active:
            yield p, "all", replace(method, mask=Mask())
        elif method.carrier.form.embeds:
            continue
        elif not method.carrier.refuses_units:
            for direction in ("top", "bottom"):
                yield p, direction, replace(method, mask=Mask(kind="units", sparsity=p, direction=direction))
            yield p, "random", replace(method, mask=Mask(kind="units", sparsity=p, importance="random"))
        elif method.prune.active:
            drop = "random" if own.drop == "none" else own.drop
            yield p, f"drop {drop}", replace(method, mask=Mask(kind="drop", sparsity=p, drop=drop))
        elif own.kind in ("magnitude", "drop"):
            yield p, own.kind, replace(method, mask=replace(own, sparsity=p, cooling=False, sparsity_from=0.0))
        else:
            yield p, "uniform", replace(method, mask=Mask(kind="uniform", sparsity=p))


def unmasked(frame: Frame) -> Frame:
    """The same coordinates, all kept."""
    return replace(frame, blocks=tuple(replace(block, keep=EVERYTHING) for block in frame.blocks))


def passes(subject: Subject, frame: Frame, rows: Int64[Tensor, " n"]) -> Iterator[list[Float[Tensor, "batch kept"]]]:
    """The gradients that are clipped, by microbatch: as in ``client_step``."""
    local = subject.base.local
    fits = max(1, PASS_BYTES // (4 * frame.kept))
    size = max(1, min(local.microbatch_size, fits) // subject.copies)
    losses = subject.base.workload.loss
    with subject.same_dropout():
        for inputs, targets in subject.batches(rows, size):
            gradients = per_example_gradients(subject.model, losses, inputs, targets, frame, precision=local.precision)
            yield per_unit(gradients, frame, subject.copies)


def _clip_row(
    subject: Subject, squares: Float64[Tensor, "blocks batch"], frame: Frame, sparsity: float, choice: str
) -> ClipRow:
    measured = clipping(
        squares, subject.base.method.mechanism, dtype=next(iter(subject.weights.values())).dtype, coordinates=frame.kept
    )
    return ClipRow(
        sparsity=sparsity, choice=choice, kept=frame.kept, clipping=measured, shares=length_shares(squares, frame)
    )


def length_shares(squares: Float64[Tensor, "blocks batch"], frame: Frame) -> dict[str, float]:
    """Mean share of an example's squared length by parameter, over examples that have a finite one; adds up to 1."""
    total = squares.sum(0)
    usable = total.isfinite() & (total > 0)
    means = (squares[:, usable] / total[usable]).mean(1).tolist()
    shares: dict[str, float] = dict.fromkeys((block.parameter for block in frame.blocks), 0.0)
    for block, share in zip(frame.blocks, means, strict=True):
        shares[block.parameter] += share
    return shares
