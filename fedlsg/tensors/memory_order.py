"""A kernel as a matrix without a copy, for both memory formats.

A kernel (m, c, kh, kw) is the matrix (m, c * kh * kw) with its columns in *kernel order*: channel by
channel, each with its taps. In torch.channels_last memory the same numbers lie tap by tap, each with its channels
(*memory order* there), and reading them in kernel order would copy the weight. Products over all columns may take any
order, and what is r wide is cheap to reorder.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def taps_outside(W: Float[Tensor, "m *rest"]) -> bool:
    """Whether W is a kernel in channels_last memory."""
    return W.ndim == 4 and not W.is_contiguous() and W.is_contiguous(memory_format=torch.channels_last)


def matrix_in_memory_order(W: Float[Tensor, "m *rest"]) -> Float[Tensor, "m n"]:
    """W as a matrix with its columns in memory order: a view of a contiguous or channels_last W, else a copy."""
    return W.movedim(1, -1).flatten(1) if taps_outside(W) else W.flatten(1)


def to_memory_order(A: Float[Tensor, "r n"], W: Float[Tensor, "m *rest"]) -> Float[Tensor, "r n"]:
    """The columns of A, in kernel order, in the memory order of W."""
    return A.unflatten(1, (W.shape[1], -1)).mT.flatten(1) if taps_outside(W) else A


def to_kernel_order(A: Float[Tensor, "r n"], W: Float[Tensor, "m *rest"]) -> Float[Tensor, "r n"]:
    """The columns of A, in the memory order of W, in kernel order."""
    return A.unflatten(1, (-1, W.shape[1])).mT.flatten(1) if taps_outside(W) else A


def sum_over_taps(columns: Float[Tensor, " n"], W: Float[Tensor, "m *rest"]) -> Float[Tensor, " c"]:
    """One number an in channel, from one number a column in the memory order of W."""
    shape: Sequence[int] = (-1, W.shape[1]) if taps_outside(W) else (W.shape[1], -1)
    total: Tensor = columns.unflatten(0, shape).sum(0 if taps_outside(W) else 1)
    return total
