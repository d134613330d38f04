"""The sum of the examples' gradients of a batch, each clipped to norm C.

Inputs are per-example gradients of the kept coordinates, one tensor for each block of a frame: the
same coordinates are clipped, summed and made noisy. Norms and factors are in ``clip_norms``.

An example whose gradient is not finite must add exactly zero. Only the device knows whether there
is one, and a host that asks must wait. So the sum is first computed as if all were finite. The host
asks last, and computes the sum again if some are not.
"""

import math
from collections.abc import Sequence
from functools import reduce

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedlsg.gradients import GhostGradients, without_autocast
from fedlsg.gradients.device_sums import GROUP_ROUNDING, sum_in_groups
from fedlsg.privacy.clip_norms import Gradients, clip_factors, clip_norms
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.tensors import in_memory_order, keeps_digits, own_order, reads_once, weighted_sum

NARROW_SUM = 32
"""Largest number n of examples that are summed in float32. Rounding adds at most n (n + 1) / 2 *
2^-24 C to the difference that one example makes: 3.1e-5 C at n = 32. With 256 parallel gradients,
2.3e-4 C were measured.
"""


def clipped_sum(
    gradients: Sequence[Float[Tensor, "batch *kept"] | GhostGradients],
    mechanism: Mechanism,
    *,
    wide: bool = False,
    shuffled: int = 0,
) -> Float[Tensor, " kept"]:
    """Sum of the examples' clipped gradients, the blocks one after the other in a flat vector.

    wide: take and return the sum in float64, else in float32 at least. The factors are the same in
        both: an example adds the same whether it has many neighbours or few.
    shuffled: the public number of rows of a microbatch, if its rows are in a uniformly random
        secret order; else 0. A sum on a GPU then reads large blocks once (``device_sums``), and
        clips to C less what its rounding may add.
    Guarantee: each example moves the sum by at most ``mechanism.sensitivity`` in L2, before the
    rounding of the sum itself: factors come from float64 norms of the very numbers that are summed,
    and are rounded down. An example with a non-finite coordinate or norm adds exactly zero. An
    empty batch gives zeros.
    A caller's autocast is switched off for the products: it would round more than the margin of the
    factors covers. ``GhostGradients`` are for a joint clip only; their norms are upper bounds.
    A mechanism that does not clip gets the plain sum.
    """
    if not mechanism.clips:
        dtype = torch.float64 if wide else narrow_type(gradients)
        # ghost gradients exist only under a joint clip
        blocks = [block for block in gradients if isinstance(block, Tensor)]
        return torch.cat([block.sum(0, dtype=dtype).flatten() for block in blocks])
    norms = clip_norms(gradients, mechanism)
    return _sum_of_finite(gradients, norms, mechanism, wide=wide, shuffled=shuffled)


def clipped_sums(
    gradients: Sequence[Float[Tensor, "batch *kept"] | GhostGradients],
    mechanism: Mechanism,
    runs: Sequence[range],
    *,
    slot: int = 0,
) -> Sequence[Float[Tensor, " kept"]]:
    """``clipped_sum`` of each run of rows, such as the rows of one client among those of a pass.

    A run of more than NARROW_SUM examples is summed in float64.
    slot: rows of each run's place, if all places have equally many, which is public; else 0. With
        few rows a place, one product a block then sums all runs.
    Guarantees: those of ``clipped_sum``. A row outside of a run changes no bit of its sum, whatever
    its numbers are. Nor does the length of another run: it is secret, and does not decide how runs
    are summed.
    """
    norms = clip_norms(gradients, mechanism)
    narrow = narrow_type(gradients)
    exact = narrow == torch.float64 or keeps_digits(norms.device.type)
    if exact and 0 < slot <= NARROW_SUM and all(block.dtype == narrow for block in gradients):
        counts = [len(run) for run in runs]
        return _sums_of_slots(gradients, norms, mechanism, counts, slot).unbind()
    sums = []
    for run in runs:
        if run:
            rows = [rows_of(block, run) for block in gradients]
            norms_of_run = norms[:, run.start : run.stop]
            wide = len(run) > NARROW_SUM
            sums.append(_sum_of_finite(rows, norms_of_run, mechanism, wide=wide))
        else:
            kept = sum(kept_numbers(gradients))
            sums.append(torch.zeros(kept, dtype=narrow, device=norms.device))
    return sums


def rows_of(block: Tensor | GhostGradients, run: range) -> Tensor | GhostGradients:
    """The gradients of consecutive examples."""
    if isinstance(block, GhostGradients):
        return block.part(run.start, run.stop)
    return block[run.start : run.stop]


def kept_numbers(gradients: Gradients) -> list[int]:
    """The number of kept coordinates of each block."""
    return [math.prod(block.shape[1:]) for block in gradients]


def narrow_type(gradients: Gradients) -> torch.dtype:
    """The type of a sum that is not ``wide``: float32 at least."""
    return reduce(torch.promote_types, {block.dtype for block in gradients}, torch.float32)


def _sums_of_slots(
    gradients: Gradients,
    norms: Float[Tensor, "norms batch"],
    mechanism: Mechanism,
    counts: Sequence[int],
    slot: int,
) -> Float[Tensor, "slots kept"]:
    """The clipped sum of each slot's first rows; slot i has ``counts[i]`` of them.

    The other rows of a slot get the factor 0, so that all slots have one shape.
    """
    sizes = kept_numbers(gradients)
    rows = len(counts) * slot
    norms = norms[:, :rows]
    finite = norms.isfinite().all(0)
    in_run = (torch.arange(slot) < torch.tensor(counts).unsqueeze(1)).flatten().to(norms.device)
    factors = clip_factors(norms, mechanism.clip_norm, narrow_type(gradients), sum(sizes))
    factors = factors.masked_fill(~(in_run & finite), 0.0)
    factors = factors.unflatten(1, (-1, slot)).expand(len(sizes), -1, -1)
    # 0 times a number that is not finite is not 0: such rows are overwritten
    finite_rows = None if finite.all() else finite
    total = torch.empty(len(counts), sum(sizes), dtype=factors.dtype, device=norms.device)
    with without_autocast(norms.device.type):
        for out, factor, block in zip(total.split(sizes, 1), factors, gradients, strict=True):
            if isinstance(block, GhostGradients):
                out.copy_(block.part(0, rows).weighted_sums(factor, finite_rows))
                continue
            kept = block[:rows].reshape(len(counts), slot, -1)
            if finite_rows is not None:
                kept = kept.masked_fill(~finite_rows.view(-1, slot, 1), 0.0)
            out.copy_(torch.bmm(factor.unsqueeze(1), kept).squeeze(1))
    return total


def _sum_of_finite(
    gradients: Gradients,
    norms: Float[Tensor, "norms batch"],
    mechanism: Mechanism,
    *,
    wide: bool,
    shuffled: int = 0,
) -> Float[Tensor, " kept"]:
    """The clipped sum of the examples whose gradients and norms are finite."""
    finite = norms.isfinite().all(0)
    total = _weighted_total(gradients, norms, mechanism, None, wide=wide, shuffled=shuffled)
    if finite.all():
        return total
    # An infinite norm may be a square beyond the range of float32: take the exact one. The norms of
    # other examples stay, so that their part of the sum does not depend on this example.
    norms = torch.where(finite, norms, clip_norms(gradients, mechanism, exact=True))
    finite = norms.isfinite().all(0)
    norms = norms.masked_fill(~finite, 0.0)
    blocks = []
    for block in gradients:
        if isinstance(block, Tensor):
            block = block.masked_fill(~finite.view(-1, *[1] * (block.ndim - 1)), 0.0)
        blocks.append(block)
    return _weighted_total(blocks, norms, mechanism, finite, wide=wide, shuffled=shuffled)


def _weighted_total(
    gradients: Gradients,
    norms: Float[Tensor, "norms batch"],
    mechanism: Mechanism,
    finite: Bool[Tensor, " batch"] | None,
    *,
    wide: bool,
    shuffled: int = 0,
) -> Float[Tensor, " kept"]:
    """The sum of all rows times their clip factors.

    finite: which rows of ``GhostGradients`` count; None: all. Rows of tensors must be finite.
    """
    narrow = narrow_type(gradients)
    dtype = torch.float64 if wide else narrow
    sizes = kept_numbers(gradients)
    grouped = [shuffled > 0 and isinstance(b, Tensor) and reads_once(b) for b in gradients]
    lost = GROUP_ROUNDING if any(grouped) else 0.0
    factors = clip_factors(norms, mechanism.clip_norm, narrow, sum(sizes), lost=lost)
    # (1, B) for each block: a joint clip has one row of factors for all
    rows = [factors] * len(gradients) if len(factors) == 1 else factors.split(1)
    with without_autocast(norms.device.type):
        if torch.is_grad_enabled() and any(
            isinstance(block, Tensor) and block.requires_grad for block in gradients
        ):
            # attacks differentiate the sum, and autograd refuses products into ``out``
            sums = [
                block_sum(row[0], block, finite, dtype)
                for row, block in zip(rows, gradients, strict=True)
            ]
            return torch.cat([block.flatten() for block in sums])
        total = torch.empty(1, sum(sizes), dtype=dtype, device=norms.device)
        parts = torch.split_with_sizes(total, sizes, 1)
        for out, row, block, in_groups in zip(parts, rows, gradients, grouped, strict=True):
            _sum_block_into(out, row, block, finite, group_rows=shuffled if in_groups else 0)
    return total.squeeze(0)


def _sum_block_into(
    out: Float[Tensor, "1 numbers"],
    factors: Float[Tensor, "1 batch"],
    block: Float[Tensor, "batch *kept"] | GhostGradients,
    finite: Bool[Tensor, " batch"] | None,
    *,
    group_rows: int,
) -> None:
    """``out`` becomes the sum of a block's rows times their factors, in the type of ``out``.

    group_rows: as ``shuffled`` of ``clipped_sum``, for a block that is read once; else 0.
    """
    exact = out.dtype == torch.float64 or keeps_digits(out.device.type)
    one_type = block.dtype == out.dtype == factors.dtype
    if isinstance(block, GhostGradients) or not (group_rows or (exact and one_type)):
        part = block_sum(factors[0], block, finite, out.dtype)
        out.view(part.shape).copy_(part)
    elif block.is_contiguous() and not group_rows:
        torch.mm(factors, block.flatten(1), out=out)  # as ``weighted_sum``, without a copy
    else:
        in_order = in_memory_order(block)
        flat = in_order.flatten(1)
        part = sum_in_groups(factors[0], flat, group_rows) if group_rows else factors @ flat
        part = part.view(in_order.shape[1:]).permute(own_order(block))
        out.view(block.shape[1:]).copy_(part)


def block_sum(
    factors: Float[Tensor, " batch"],
    block: Float[Tensor, "batch *kept"] | GhostGradients,
    finite: Bool[Tensor, " batch"] | None,
    dtype: torch.dtype,
) -> Float[Tensor, "*kept"]:
    """Sum of a block's rows times their factors, in ``dtype``."""
    if isinstance(block, GhostGradients):
        return block.weighted_sum(factors, finite).to(dtype)
    return weighted_sum(factors, block, dtype)
