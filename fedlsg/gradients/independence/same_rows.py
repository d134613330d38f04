"""Compare rows that user code made in company with the same rows made alone, column by column.

A column is one coordinate of a row. Its unit is its own: a small column counts next to a unix time.
Rows that are only moved or changed elementwise are equal bit for bit. Products of matrices are
rounded differently in other batches, so that a column of floating point numbers may differ by
``ROUNDING`` units in the last place.

    tolerance = 64 eps (largest - smallest value of the column) + 8 eps (largest absolute value of
    the column)

over the examples alone. What it cannot find: mixing below the tolerance, about 1e-5 of a column in
float32.
"""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor

ROUNDING = 64
COARSEST = 0.02
"""Largest relative tolerance, of types with few bits."""


def differing(alone: Shaped[Tensor, "k *row"], together: Shaped[Tensor, "k *row"]) -> list[int]:
    """Columns of the flattened rows in which they differ; row i of both is one example."""
    if alone.dtype != together.dtype:
        return [0]
    a, b = (_numbers(x) for x in (alone, together))
    wrong = ~((a == b) | ((a != a) & (b != b)))
    if a.is_floating_point() and bool(wrong.any()):
        eps = float(torch.finfo(a.dtype).eps)
        a, b = a.double(), b.double()
        most = torch.where(a.isfinite(), a, -torch.inf).amax(0)
        least = torch.where(a.isfinite(), a, torch.inf).amin(0)
        size = torch.maximum(least.abs(), most.abs())
        allowed = min(ROUNDING * eps, COARSEST) * (most - least) + ROUNDING / 8 * eps * size
        wrong &= ~((a - b).abs() <= allowed)
    columns: list[int] = wrong.any(0).nonzero().flatten().tolist()
    return columns


def _numbers(x: Tensor) -> Tensor:
    x = x.detach().cpu()
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return x.flatten(1) if x.ndim > 1 else x.unsqueeze(1)


def row_differs(alone: Sequence[Tensor], together: Sequence[Tensor]) -> list[int] | None:
    """Columns in which rows differ from the same examples alone; None if shapes do not fit.

    A batch of texts is padded to its longest, at the end or at the start: the padding, of one
    value, is left out.
    """
    shapes = {row.shape for row in alone}
    if len(shapes) == 1 and shapes == {row.shape for row in together}:
        return differing(torch.stack(list(alone)), torch.stack(list(together)))
    for own, padded in zip(alone, together, strict=True):
        parts = list(_parts(padded, own))
        found = [differing(own.unsqueeze(0), part.unsqueeze(0)) for part in parts]
        if not found:
            return None
        if all(found):
            return found[0]
    return []


def _parts(row: Tensor, like: Tensor) -> Iterator[Tensor]:
    """The parts of ``row`` of the shape of ``like``, at its start or end, with one value around."""
    sizes = list(zip(like.shape, row.shape, strict=row.ndim == like.ndim))
    if row.ndim != like.ndim or any(own > padded for own, padded in sizes):
        return
    for part in (
        tuple(slice(0, own) for own, _ in sizes),
        tuple(slice(padded - own, padded) for own, padded in sizes),
    ):
        rest = torch.ones_like(row, dtype=torch.bool)
        rest[part] = False
        values = row[rest]
        if not len(values) or bool(((values == values[0]) | (values != values)).all()):
            yield row[part]
