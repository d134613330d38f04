"""Compare rows that user code made in a batch with the same rows made alone, column by column.

A column is one coordinate of a row. Each column has its own scale, so that a small one counts next
to a unix time. Rows that are only moved or changed elementwise are equal bit for bit. Products of
matrices are rounded differently in other batches, so that a column of floating point numbers may
differ by ``ROUNDING`` units in the last place.

    tolerance = 64 eps (largest - smallest value of the column) + 8 eps (largest absolute value of
    the column)

over the examples alone. What it cannot find: mixing below the tolerance, about 1e-5 of a column in
float32.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor

ROUNDING = 64
"""Allowed difference, in units in the last place of a column's spread."""
COARSEST = 0.02
"""Largest allowed part of a column's spread, for types with few bits."""


def differing(alone: Shaped[Tensor, "k *row"], together: Shaped[Tensor, "k *row"]) -> list[int]:
    """Columns of the flattened rows in which they differ; row i of both is one example.

    [0] if the types differ.
    """
    if alone.dtype != together.dtype:
        return [0]
    a, b = _real_rows(alone), _real_rows(together)
    wrong = ~((a == b) | (a.isnan() & b.isnan()))
    if a.is_floating_point() and bool(wrong.any()):
        eps = float(torch.finfo(a.dtype).eps)
        a, b = a.double(), b.double()
        finite = a.isfinite()
        most = torch.where(finite, a, -torch.inf).amax(0)
        least = torch.where(finite, a, torch.inf).amin(0)
        size = torch.maximum(least.abs(), most.abs())
        spread = min(ROUNDING * eps, COARSEST) * (most - least)
        allowed = spread + ROUNDING / 8 * eps * size
        wrong &= ~((a - b).abs() <= allowed)
    columns: list[int] = wrong.any(0).nonzero().flatten().tolist()
    return columns


def _real_rows(x: Tensor) -> Tensor:
    """Flattened rows of real numbers, on the CPU: two for a complex one."""
    x = x.detach().cpu()
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    return x.flatten(1) if x.ndim > 1 else x.unsqueeze(1)


def row_differs(alone: Sequence[Tensor], together: Sequence[Tensor]) -> list[int] | None:
    """Columns in which rows differ from the same examples alone; None if shapes do not fit.

    A batch of texts is padded to its longest, at the end or at the start. Padding, which has one
    value, is not compared. Rows of different shapes are compared one by one, up to the first that
    differs.
    """
    shapes = {row.shape for row in alone}
    if len(shapes) == 1 and shapes == {row.shape for row in together}:
        return differing(torch.stack(list(alone)), torch.stack(list(together)))
    for row, padded in zip(alone, together, strict=True):
        parts = _parts(padded, row)
        columns = [differing(row.unsqueeze(0), part.unsqueeze(0)) for part in parts]
        if not columns:
            return None
        if all(columns):
            return columns[0]
    return []


def _parts(padded: Tensor, row: Tensor) -> list[Tensor]:
    """The parts of ``padded`` with the shape of ``row``, at its start or end, if only padding is
    outside of them.
    """
    if padded.ndim != row.ndim:
        return []
    before = [long - short for short, long in zip(row.shape, padded.shape, strict=True)]
    if min(before, default=0) < 0:
        return []
    at_start = tuple(slice(0, size) for size in row.shape)
    at_end = tuple(slice(start, None) for start in before)
    return [padded[part] for part in (at_start, at_end) if _is_padding(padded, part)]


def _is_padding(padded: Tensor, part: tuple[slice, ...]) -> bool:
    """Whether everything outside the part has one value, or is NaN."""
    outside = torch.ones_like(padded, dtype=torch.bool)
    outside[part] = False
    values = padded[outside]
    return not len(values) or bool(((values == values[0]) | values.isnan()).all())
