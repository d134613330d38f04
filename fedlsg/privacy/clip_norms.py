"""Norms of examples' gradients, and the factors by which the clip scales them.

Inputs are per-example gradients times ``Block.weight``, one tensor for each block of a frame.
Symbol: C clip norm. The sums of scaled gradients are in ``clip``.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.frame import Frame
from fedlsg.gradients import GhostGradients
from fedlsg.gradients.device_sums import upper_norms
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.tensors import in_memory_order, reads_once

Gradients = Sequence[Tensor | GhostGradients]
"""For each block (B, *kept), or the factors that such a tensor would be computed from."""


def clip_norms(
    gradients: Gradients, mechanism: Mechanism, *, exact: bool = False
) -> Float[Tensor, "clips batch"]:
    """The norms that the clip compares with C, in float64: one row for a joint clip of all blocks,
    else one row for each block.

    ``exact``: as for ``norms_of``.
    """
    norms = torch.stack([norms_of(block, exact=exact) for block in gradients])
    squares = norms.square()
    if mechanism.clip == "joint":
        squares = squares.sum(0, keepdim=True)
    return squares.sqrt()


def norms_of(
    block: Float[Tensor, "batch *kept"] | GhostGradients, *, exact: bool = False
) -> Float[Tensor, " batch"]:
    """L2 norm of each example's part of a block, in float64.

    It is an upper bound for ``GhostGradients``, and for large float32 blocks on a GPU unless
    ``exact``.
    """
    if isinstance(block, GhostGradients):
        return block.norms()
    rows = in_memory_order(block).flatten(1)
    if not exact and reads_once(rows) and not rows.requires_grad:
        return upper_norms(rows)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms


def clip_factors(
    norms: Float[Tensor, "*any"],
    clip_norm: float,
    dtype: torch.dtype,
    coordinates: int,
    *,
    lost: float = 0.0,
) -> Float[Tensor, "*any"]:
    """min(1, C / norm), made smaller by a margin, in ``dtype``.

    coordinates: how many numbers a norm is of.
    lost: the share of C that the sum may add by its own rounding.
    Guarantee: factor times gradient never exceeds (1 - lost) C. The margin is four units in the
    last place of ``dtype``, for the rounding of the factor and of each product, and one of float64
    for each coordinate, for the rounding of the norm. A subnormal factor becomes 0: it has too few
    digits for any margin.
    """
    info = torch.finfo(dtype)
    margin = 1 - 4 * info.eps - coordinates * torch.finfo(torch.float64).eps - lost
    factors = (clip_norm * margin / norms).clamp(max=1)
    return factors.masked_fill(factors < info.tiny, 0.0).to(dtype)


def clip_parts(
    units: Sequence[Float[Tensor, "batch kept"]], frame: Frame
) -> list[Float[Tensor, "batch kept"]]:
    """Scale each example's embeddings together to at most ``frame.part_norm``, and so its rests.

    For methods that split a gradient into an embedding in few coordinates and the rest that these
    do not reach. Without a ``part_norm`` nothing is scaled.
    Rows that are not finite stay so: the joint clip, which follows, drops them. It also bounds the
    norm, so that rounding needs no margin here.
    """
    bound = frame.part_norm
    if bound is None:
        return list(units)
    is_rest = [block.part == "rest" for block in frame.blocks]
    squares = [torch.linalg.vector_norm(u, dim=1, dtype=torch.float64).square() for u in units]
    scales = {}
    for rest in (False, True):
        of_part = [square for square, flag in zip(squares, is_rest, strict=True) if flag is rest]
        norms = sum(of_part) ** 0.5
        scales[rest] = (bound / norms.clamp_min(bound)).unsqueeze(1)
    return [u * scales[rest].to(u) for u, rest in zip(units, is_rest, strict=True)]
