"""Norms and sums of gradients on a GPU in one reading, without a copy in float64.

Symbols: G (B, n) gradients in float32, f (B,) factors of the clip, u = 2^-24 rounding unit of
float32, C clip norm.

A copy in float64 is written and read again: 20 bytes a number for the norms and 20 for the sum,
where 4 are enough. So numbers are combined in float32 while they are few, which rounds little, and
the results in float64.

Norms. The norm of CHUNK coordinates x, taken in float32, is off by at most (CHUNK + 4) u |x|, in
any order of additions; squares below the smallest normal number may vanish. ``upper_norms`` adds
both: it is no less than the norm, and above it by at most 1.6e-5 of it.

Sums. A group of m = GROUP_ROWS rows is summed in float32, the groups in float64. In any order of
additions a group is off by at most m u sum_b |f_b G_b| <= m^2 u C. Rows must be in a uniformly
random secret order. Then a batch with one example more is the batch without it, in which this
example took a random place and the row of that place went to the end. All other rows keep their
places. So two groups differ, each with a rounding error before and after, and the others are
rounded alike, as all products have one shape. The sum moves by at most 4 m^2 u C =
``GROUP_ROUNDING`` C more than the example's own share. The clip is to (1 - ``GROUP_ROUNDING``) C:
the sum moves by C at most.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.tensors import keeps_digits

CHUNK = 256
"""Coordinates whose norm is taken in float32."""
GROUP_ROWS = 16
"""Rows that are summed in float32."""
ROWS = 256
"""Rows of one product, at most. All products have equally many, so that one kernel rounds all
groups.
"""
UNIT = 2.0**-24
"""u, the rounding unit of float32."""
GROUP_ROUNDING = 4 * GROUP_ROWS**2 * UNIT
"""The most that rounding of groups can add to what one example moves, relative to the clip norm."""


def upper_norms(rows: Float[Tensor, "batch n"]) -> Float[Tensor, " batch"]:
    """An upper bound on each row's norm, in float64; infinite where squares overflow float32."""
    size = rows.shape[1]
    in_chunks = size - size % CHUNK
    chunks = torch.linalg.vector_norm(rows[:, :in_chunks].unflatten(1, (-1, CHUNK)), dim=2)
    rest = torch.linalg.vector_norm(rows[:, in_chunks:], dim=1, keepdim=True)
    squares = torch.cat([chunks, rest], 1).double().square().sum(1)
    vanished = size * 2.0 * torch.finfo(torch.float32).tiny  # twice, to be safe
    return (squares + vanished).sqrt() * (1 + (CHUNK + 4) * UNIT)


def sum_in_groups(
    factors: Float[Tensor, " batch"], rows: Float[Tensor, "batch n"], most: int
) -> Float[Tensor, " n"]:
    """sum_b f_b G_b in float64, of rows in a secret random order; see the module docstring.

    most: rows that a microbatch has at most, a public number. With ROWS it decides the shape of all
        products.
    """
    size = min(ROWS, -(-most // GROUP_ROWS) * GROUP_ROWS)  # rounded up to whole groups
    total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    with all_digits(rows.device.type):
        for G, f in zip(rows.split(size), factors.split(size), strict=True):
            missing = size - len(G)
            if missing:  # the last product is filled up with zeros
                G = torch.cat([G, G.new_zeros(missing, G.shape[1])])
                f = torch.cat([f, f.new_zeros(missing)])
            groups = torch.bmm(f.view(-1, 1, GROUP_ROWS), G.view(-1, GROUP_ROWS, G.shape[1]))
            total += groups.squeeze(1).sum(0, dtype=torch.float64)
    return total


@contextmanager
def all_digits(device_type: str) -> Iterator[None]:
    """Inside, products of float32 matrices keep all digits: TF32 is off."""
    if keeps_digits(device_type):
        yield
        return
    backend: Any = (torch.backends.mkldnn if device_type == "cpu" else torch.backends.cuda).matmul
    if hasattr(backend, "fp32_precision"):
        before, backend.fp32_precision = backend.fp32_precision, "ieee"
        try:
            yield
        finally:
            backend.fp32_precision = before
        return
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
