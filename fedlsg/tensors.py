"""Functions on tensors for several packages: batches by name, memory order, weighted sums, narrow
products.

A kernel (m, c, kh, kw) is the matrix (m, c * kh * kw) with its columns in *kernel order*: channel
by channel, each with its taps. In torch.channels_last memory the same numbers are tap by tap, each
with its channels (*memory order* there), and reading them in kernel order would copy the weight.
Products over all columns may use any order, and a matrix of r rows is cheap to reorder.
"""

import ctypes
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

Fields = Tensor | Mapping[str, Tensor]
"""A batch: a tensor, or tensors by name, examples on the first dimension."""
BY_NAME = (
    "several inputs are a dict by the names of forward's arguments, several targets a dict, too"
)
"""Advice in messages about batches."""


def each(batch: Fields, change: Callable[[Tensor], Any]) -> Any:
    """Apply a change to the tensor, or to every tensor of a batch."""
    if isinstance(batch, Tensor):
        return change(batch)
    return {name: change(t) for name, t in batch.items()}


def fields_of(batch: Fields) -> dict[str, Tensor]:
    """Tensors by name, "" for a batch that is a tensor."""
    if isinstance(batch, Tensor):
        return {"": batch}
    return {str(name): t for name, t in batch.items()}


def of_fields(fields: Mapping[str, Tensor]) -> Any:
    """The batch of these fields."""
    return fields[""] if set(fields) == {""} else dict(fields)


def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of one type and device, copied to a device at once; the host does not wait for it."""
    if not tensors or device == tensors[0].device or device.type == tensors[0].device.type == "cpu":
        return list(tensors)
    flat = torch.cat([t.flatten() for t in tensors]) if len(tensors) > 1 else tensors[0].flatten()
    pinned = device.type == "cuda" and flat.device.type == "cpu"
    copy = (flat.pin_memory() if pinned else flat).to(device, non_blocking=pinned)
    parts = copy.split([t.numel() for t in tensors])
    return [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]


def rows_of(batch: Fields, rows: Int[Tensor, " rows"]) -> Any:
    """Some rows, on the batch's device."""
    return each(batch, lambda t: t[rows.to(t.device)])


def spaced(count: int, most: int = 16) -> Int[Tensor, " places"]:
    """Up to ``most`` of the numbers 0 to count - 1, ascending and evenly spaced, first and last
    among them.
    """
    return torch.linspace(0, count - 1, min(count, most), dtype=torch.float64).round().long()


def taps_outside(W: Float[Tensor, "m *rest"]) -> bool:
    """Whether W is a kernel in channels_last memory."""
    if W.ndim != 4 or W.is_contiguous():
        return False
    return W.is_contiguous(memory_format=torch.channels_last)


def matrix_in_memory_order(W: Float[Tensor, "m *rest"]) -> Float[Tensor, "m n"]:
    """W as a matrix with its columns in memory order: a view of a contiguous or channels_last W,
    else a copy.
    """
    return W.movedim(1, -1).flatten(1) if taps_outside(W) else W.flatten(1)


def to_memory_order(A: Float[Tensor, "r n"], W: Float[Tensor, "m *rest"]) -> Float[Tensor, "r n"]:
    """The columns of A, in kernel order, in the memory order of W."""
    return A.unflatten(1, (W.shape[1], -1)).mT.flatten(1) if taps_outside(W) else A


def to_kernel_order(A: Float[Tensor, "r n"], W: Float[Tensor, "m *rest"]) -> Float[Tensor, "r n"]:
    """The columns of A, in the memory order of W, in kernel order."""
    return A.unflatten(1, (-1, W.shape[1])).mT.flatten(1) if taps_outside(W) else A


def sum_over_taps(columns: Float[Tensor, " n"], W: Float[Tensor, "m *rest"]) -> Float[Tensor, " c"]:
    """One number an in channel, from one number a column in the memory order of W."""
    outside = taps_outside(W)
    shape: Sequence[int] = (-1, W.shape[1]) if outside else (W.shape[1], -1)
    total: Tensor = columns.unflatten(0, shape).sum(0 if outside else 1)
    return total


def weighted_sum(
    factors: Float[Tensor, " batch"],
    block: Float[Tensor, "batch *kept"],
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "*kept"]:
    """Sum over examples of factor times row, computed in ``dtype``; None: in that of the factors.

    A block in another memory order is summed in that order, and the result keeps it. A matrix
    product under TF32 or bfloat16 would round its inputs more than the clip's margin covers, so it
    is then replaced by products and a sum.
    """
    axes = None if block.is_contiguous() else axes_in_memory(block)
    rows = block if axes is None else block.permute(0, *axes)
    flat = rows.flatten(1)
    factors = factors.to(dtype)
    exact = factors.dtype == torch.float64 or keeps_digits(flat.device.type)

    def sum_of(part: Tensor) -> Tensor:
        return factors @ part if exact else (factors.unsqueeze(1) * part).sum(0)

    if flat.dtype == factors.dtype:
        total = sum_of(flat)
    else:
        width = max(1, at_once(flat.device.type) // max(1, len(flat)))
        total = torch.cat([sum_of(part.to(factors.dtype)) for part in flat.split(width, dim=1)])
    total = total.view(rows.shape[1:])
    return total if axes is None else total.permute(own_order(block))


def axes_in_memory(t: Float[Tensor, "batch *any"]) -> list[int]:
    """The axes after the first one, those with the widest stride first."""
    if t.is_contiguous():
        return list(range(1, t.ndim))
    strides: Sequence[int] = t.stride()
    if t.ndim == 3 and strides[1] < strides[2]:
        return [2, 1]
    return sorted(range(1, t.ndim), key=lambda axis: -strides[axis])


def in_memory_order(t: Float[Tensor, "batch *any"]) -> Float[Tensor, "batch *any"]:
    """The same numbers with every example's axes in their order in memory: a view."""
    return t if t.is_contiguous() else t.permute(0, *axes_in_memory(t))


def own_order(t: Float[Tensor, "batch *any"]) -> list[int]:
    """The permutation that takes one example of ``in_memory_order(t)`` back to the order of t."""
    axes = axes_in_memory(t)
    return [axes.index(axis) for axis in range(1, t.ndim)]


AT_ONCE = 2**16
"""Coordinates that get noise, or are widened, at once: they fit in the processor's cache."""
AT_ONCE_ON_DEVICE = 2**24
"""The same on a GPU, where each part costs launches and a transfer: 128 MB in float64."""
READ_ONCE = 2**14
"""Coordinates of an example from which a copy on a GPU costs more than some launches."""
NARROW = 2**18
"""Size of the wider matrix from which oneDNN is faster, if the other one is r wide."""
WORTH_A_CALL = 2**21
"""Multiplications in one example's product from which a call for each example is faster."""


def at_once(device_type: str) -> int:
    """Coordinates that are handled at once on a device."""
    return AT_ONCE if device_type == "cpu" else AT_ONCE_ON_DEVICE


def reads_once(block: Float[Tensor, "batch *any"]) -> bool:
    """Whether a block should be read once, without a copy in float64: large float32 on a GPU.

    The answer depends on the size of an example, not on the number of examples, which is secret.
    """
    is_large = math.prod(block.shape[1:]) >= READ_ONCE
    return is_large and block.device.type != "cpu" and block.dtype == torch.float32


def keeps_digits(device_type: str) -> bool:
    """Whether torch forms products of float32 matrices from all of their digits: without TF32 or
    bfloat16.
    """
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # it was set by torch's newer interface, for some backends only
        matmul = (torch.backends.cuda if device_type == "cuda" else torch.backends.mkldnn).matmul
        return matmul.fp32_precision in ("none", "ieee")


def linear_kernel(like: Tensor) -> Callable[..., Tensor] | None:
    """oneDNN's A X^T, for which torch has no public function; None if there is none for such
    tensors.

    On CPUs that are not from Intel, MKL (torch's mm and bmm) uses narrow vectors only; oneDNN uses
    wide ones.
    """
    if like.device.type != "cpu" or like.dtype != torch.float32:
        return None
    product: Callable[..., Tensor] | None = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return product  # not every build of torch has it


@cache  # the machine does not change within a process
def mkl_uses_wide_vectors() -> bool:
    """Whether MKL (torch's mm and bmm) uses the processor's wide vectors: on CPUs from Intel."""
    processor = Path("/proc/cpuinfo")
    if not torch.backends.mkl.is_available() or not processor.exists():
        return False
    return "GenuineIntel" in processor.read_text()


def times_transposed(A: Float[Tensor, "r t"], X: Float[Tensor, "n t"]) -> Float[Tensor, "r n"]:
    """A X^T for few rows A, in half of mm's time where X is large and dense."""
    pays = X.numel() >= NARROW and X.is_contiguous() and A.dtype == X.dtype
    product = linear_kernel(X) if pays else None
    if product is None:
        return A @ X.mT
    return product(A.contiguous(), X, None, "none", [], "")


def batch_times_transposed(
    A: Float[Tensor, "batch k t"],
    X: Float[Tensor, "batch c t"],
    rows: Int[Tensor, " k"],
    *,
    out: Float[Tensor, "batch k c"],
) -> None:
    """``out`` becomes A_b X_b^T of every example, its rows in the order ``rows``.

    Large ones by oneDNN where MKL is slow, up to 1.8 times as fast (on a CPU from Intel 0.4 to 0.9
    times); its sizes do not depend on the batch, so no new kernel is built.
    """
    by_example = A[0].numel() * X.shape[1] >= WORTH_A_CALL and not mkl_uses_wide_vectors()
    product = linear_kernel(A) if by_example else None
    if product is None:
        torch.index_select(torch.bmm(A, X.mT), 1, rows, out=out)
        return
    for a, x, into in zip(A, X, out, strict=True):
        torch.index_select(product(a, x, None, "none", [], ""), 0, rows, out=into)


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Options of glibc's ``mallopt``."""
KEPT_BYTES = 2**31 - 1
"""Most freed bytes at the top of the heap that are kept."""


def keep_freed_memory() -> bool:
    """Let glibc keep up to 2 GB of freed memory; returns whether the C library accepts it.

    Peaks of memory are up to a fifth higher (22 M parameters), and nothing is returned to the
    system between them.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
