"""The clip: sums of per-example gradients, in which no example moves more than the mechanism's
sensitivity.

The input gradients are masked already (``per_example_gradients`` returns kept coordinates only), so
the same coordinates are clipped, summed and made noisy.
"""

import math
from collections.abc import Sequence
from functools import reduce

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedlsg.frame import Frame
from fedlsg.gradients import GhostGradients, without_autocast
from fedlsg.privacy.device_sums import GROUP_ROUNDING, reads_once, sum_in_groups, upper_norms
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.tensors import in_memory_order, keeps_digits, own_order, weighted_sum

Gradients = Sequence[Tensor | GhostGradients]

NARROW_SUM = 32
"""Largest number of examples that are summed in float32. Rounding adds at most n (n + 1) / 2 *
2^-24 C to the difference that one example makes: 3.1e-5 C at 32. At 256 aligned examples, 2.3e-4 C
were measured."""


def clipped_sum(
    gradients: Sequence[Float[Tensor, "batch *kept"] | GhostGradients],
    mechanism: Mechanism,
    *,
    wide: bool = False,
    shuffled: int = 0,
) -> Float[Tensor, " kept"]:
    """Sum of the examples' clipped gradients: of one (B, *kept) tensor a block, concatenated to a
    flat vector.

    Guarantee: each example moves the sum by at most ``mechanism.sensitivity`` in L2 (before the
    rounding of the sum itself): factors come from float64 norms of the very numbers that are summed
    and are rounded down. An example with a non-finite coordinate or norm contributes exactly zero.
    An empty batch gives zeros. A caller's autocast is switched off for the products: it would round
    more than the clip's margin covers. ``GhostGradients`` are for a joint clip only; their norms
    are upper bounds. The sum is taken and returned in float32 at least, and in float64 if ``wide``.
    The factors are the same in both, so an example adds the same whether it has many neighbours or
    few.
    ``shuffled``: the public number of rows of a microbatch, by the caller's word that its rows are
    in a uniformly random secret order; 0: they are not. A sum on a GPU then reads them once
    (``device_sums``), and clips to C less what its rounding may add.
    """
    if not mechanism.clips:
        dtype = torch.float64 if wide else narrow_type(gradients)
        return torch.cat(
            [
                block.sum(0, dtype=dtype).flatten()
                for block in gradients
                if isinstance(block, Tensor)
            ]
        )
    norms = clip_norms(gradients, mechanism)
    return _clipped_sum(gradients, norms, mechanism, wide=wide, shuffled=shuffled)


def clipped_sums(
    gradients: Sequence[Float[Tensor, "batch *kept"] | GhostGradients],
    mechanism: Mechanism,
    runs: Sequence[range],
    *,
    slot: int = 0,
) -> Sequence[Float[Tensor, " kept"]]:
    """The clipped sum of each run of rows, such as those of one client; in float64 where it has
    many examples.

    ``slot``: rows of each run's place, where all have as many, from public numbers: then one
    product a block sums them.
    Guarantees as ``clipped_sum``, and a row outside of a run changes no bit of its sum, whatever
    its numbers are; nor does the length of another run, which is secret: it does not decide how
    runs are summed.
    """
    norms = clip_norms(gradients, mechanism)
    narrow = narrow_type(gradients)
    exact = narrow == torch.float64 or keeps_digits(norms.device.type)
    if exact and 0 < slot <= NARROW_SUM and all(block.dtype == narrow for block in gradients):
        return _sums_of_slots(
            gradients, norms, mechanism, [len(run) for run in runs], slot
        ).unbind()
    sums = []
    for run in runs:
        parts = [
            b.part(run.start, run.stop)
            if isinstance(b, GhostGradients)
            else b[run.start : run.stop]
            for b in gradients
        ]
        sums.append(
            _clipped_sum(
                parts, norms[:, run.start : run.stop], mechanism, wide=len(run) > NARROW_SUM
            )
            if run
            else torch.zeros(
                sum(math.prod(b.shape[1:]) for b in parts), dtype=narrow, device=norms.device
            )
        )
    return sums


def _sums_of_slots(
    gradients: Gradients,
    norms: Float[Tensor, "blocks batch"],
    mechanism: Mechanism,
    counts: Sequence[int],
    slot: int,
) -> Float[Tensor, "slots kept"]:
    """The clipped sums of the first ``counts`` rows of each slot; the others have the factor 0."""
    rows, sizes = len(counts) * slot, [math.prod(block.shape[1:]) for block in gradients]
    norms, finite = norms[:, :rows], norms[:, :rows].isfinite().all(0)
    inside = (torch.arange(slot) < torch.tensor(counts).unsqueeze(1)).flatten().to(norms.device)
    factors = clip_factors(norms, mechanism.clip_norm, narrow_type(gradients), sum(sizes))
    factors = (
        factors.masked_fill(~(inside & finite), 0.0)
        .unflatten(1, (-1, slot))
        .expand(len(sizes), -1, -1)
    )
    total = torch.empty(len(counts), sum(sizes), dtype=factors.dtype, device=norms.device)
    finite_rows = None if finite.all() else finite
    with without_autocast(norms.device.type):
        for out, factor, block in zip(total.split(sizes, 1), factors, gradients, strict=True):
            if isinstance(block, GhostGradients):
                out.copy_(block.part(0, rows).weighted_sums(factor, finite_rows))
            else:
                kept = block[:rows].reshape(len(counts), slot, -1)
                if finite_rows is not None:
                    kept = kept.masked_fill(~finite_rows.view(-1, slot, 1), 0.0)
                out.copy_(torch.bmm(factor.unsqueeze(1), kept).squeeze(1))
    return total


def narrow_type(gradients: Gradients) -> torch.dtype:
    """The type of a sum that is not ``wide``: float32 at least."""
    return reduce(torch.promote_types, {block.dtype for block in gradients}, torch.float32)


def _clipped_sum(
    gradients: Gradients,
    norms: Float[Tensor, "blocks batch"],
    mechanism: Mechanism,
    *,
    wide: bool,
    shuffled: int = 0,
) -> Float[Tensor, " kept"]:
    finite = norms.isfinite().all(0)
    total = _factored_sum(gradients, norms, mechanism, None, wide=wide, shuffled=shuffled)
    # asked last: a device would idle until the host has the answer and sends the products
    if finite.all():
        return total
    # squares may have passed float32; the norms of other rows do not depend on these
    norms = torch.where(finite, norms, clip_norms(gradients, mechanism, exact=True))
    finite = norms.isfinite().all(0)
    rows = [
        block
        if isinstance(block, GhostGradients)  # its ``weighted_sum`` leaves those out itself
        else block.masked_fill(~finite.view(-1, *[1] * (block.ndim - 1)), 0.0)
        for block in gradients
    ]
    norms = norms.masked_fill(~finite, 0.0)
    return _factored_sum(rows, norms, mechanism, finite, wide=wide, shuffled=shuffled)


def _factored_sum(
    gradients: Gradients,
    norms: Float[Tensor, "blocks batch"],
    mechanism: Mechanism,
    finite: Bool[Tensor, " batch"] | None,
    *,
    wide: bool,
    shuffled: int = 0,
) -> Float[Tensor, " kept"]:
    narrow = narrow_type(gradients)
    dtype = torch.float64 if wide else narrow
    sizes = [math.prod(block.shape[1:]) for block in gradients]
    groups = [shuffled > 0 and isinstance(b, Tensor) and reads_once(b) for b in gradients]
    lost = GROUP_ROUNDING if any(groups) else 0.0
    factors = clip_factors(norms, mechanism.clip_norm, narrow, sum(sizes), lost=lost)
    rows = (
        [factors] * len(gradients)
        if len(factors) == 1
        else [factors[i : i + 1] for i in range(len(factors))]
    )
    each = list(zip(rows, gradients, strict=True))
    with without_autocast(norms.device.type):
        if torch.is_grad_enabled() and any(
            isinstance(block, Tensor) and block.requires_grad for block in gradients
        ):
            # for attacks
            return torch.cat(
                [part_of(row[0], block, finite, dtype).flatten() for row, block in each]
            )
        total = torch.empty(sum(sizes), dtype=dtype, device=norms.device)
        exact = dtype == torch.float64 or keeps_digits(norms.device.type)
        parts = torch.split_with_sizes(total.unsqueeze(0), sizes, 1)
        for own, (row, block), grouped in zip(parts, each, groups, strict=True):
            if grouped and isinstance(block, Tensor):
                lying = in_memory_order(block)
                part = sum_in_groups(row[0], lying.flatten(1), shuffled).view(lying.shape[1:])
                own.view(block.shape[1:]).copy_(part.permute(own_order(block)))
            elif (  # no second copy to join
                not exact
                or isinstance(block, GhostGradients)
                or not block.dtype == dtype == row.dtype
            ):
                part = part_of(row[0], block, finite, dtype)
                own.view(part.shape).copy_(part)
            elif block.is_contiguous():
                torch.mm(row, block.flatten(1), out=own)  # ``weighted_sum``, in place
            else:
                lying = in_memory_order(block)
                part = torch.mm(row, lying.flatten(1)).view(lying.shape[1:])
                own.view(block.shape[1:]).copy_(part.permute(own_order(block)))
    return total


def part_of(
    factor: Float[Tensor, " batch"],
    block: Tensor | GhostGradients,
    finite: Bool[Tensor, " batch"] | None,
    dtype: torch.dtype,
) -> Tensor:
    """The sum of one block of ``clipped_sum``."""
    if isinstance(block, GhostGradients):
        return block.weighted_sum(factor, finite).to(dtype)
    return weighted_sum(factor, block, dtype)


def clip_norms(
    gradients: Gradients, mechanism: Mechanism, *, exact: bool = False
) -> Float[Tensor, "rows batch"]:
    """The norms that the clip compares with C, in float64: a row for each block, or one of the
    whole gradient. ``exact``: as ``norms_of``.
    """
    squares = torch.stack([norms_of(block, exact=exact) for block in gradients]).square()
    return (squares.sum(0, keepdim=True) if mechanism.clip == "joint" else squares).sqrt()


def norms_of(
    block: Float[Tensor, "batch *kept"] | GhostGradients, *, exact: bool = False
) -> Float[Tensor, " batch"]:
    """Norm of each example's block in float64; an upper bound on it for ``GhostGradients`` and, not
    ``exact``, on a GPU.
    """
    if isinstance(block, GhostGradients):
        return block.norms()
    flat = in_memory_order(block).flatten(1)
    if not exact and reads_once(flat) and not flat.requires_grad:
        return upper_norms(flat)
    norms: Tensor = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
    return norms


def clip_factors(
    norms: Float[Tensor, "*any"],
    clip_norm: float,
    dtype: torch.dtype,
    coordinates: int,
    *,
    lost: float = 0.0,
) -> Float[Tensor, "*any"]:
    """min(1, C / norm), rounded down by a margin if it is below 1; 0 if it is subnormal in
    ``dtype``.

    The margin is four units in the last place of ``dtype`` for the rounding of the factor and of
    each product, and one of float64 a coordinate for the rounding of the norm: a clipped gradient
    never exceeds C. A subnormal factor has too few digits for any margin. ``lost``: of C, what the
    sum may round away on top of it.
    """
    info = torch.finfo(dtype)
    margin = 1 - 4 * info.eps - coordinates * torch.finfo(torch.float64).eps - lost
    scale = (clip_norm * margin / norms).clamp(max=1)
    return scale.masked_fill(scale < info.tiny, 0.0).to(dtype)


def clip_parts(
    units: Sequence[Float[Tensor, "batch kept"]], frame: Frame
) -> list[Float[Tensor, "batch kept"]]:
    """An example's embeddings, and its rests, scaled to ``frame.part_norm`` at most; where that is
    None, unchanged.

    ``units``: one tensor a block, times the blocks' weights. Rows that are not finite stay so: the
    joint clip drops them.
    """
    if frame.part_norm is None:
        return list(units)
    is_rest = [block.part == "rest" for block in frame.blocks]
    squares = [torch.linalg.vector_norm(u, dim=1, dtype=torch.float64).square() for u in units]
    scale = {}
    for rest in (False, True):
        norm = (
            sum(s for s, is_own_rest in zip(squares, is_rest, strict=True) if is_own_rest is rest)
            ** 0.5
        )
        scale[rest] = (frame.part_norm / norm.clamp_min(frame.part_norm)).unsqueeze(1)
    return [u * scale[rest].to(u) for u, rest in zip(units, is_rest, strict=True)]
