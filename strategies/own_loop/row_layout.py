"""The layout of rows in memory: a model that calls ``view`` works for one and fails for another.

Rows that were permuted, cut out or expanded keep their layout when a batch of them is indexed.
Made-up rows get the layout of the data, so that a model that fails on it fails before a charge.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Layout(NamedTuple):
    """The order and density of axes in memory.

    order: axes from the widest stride to the narrowest.
    steps: one for each axis of ``order``: 1 if it is dense, 2 if there are gaps, 0 if one number is
        repeated along it.
    """

    order: tuple[int, ...]
    steps: tuple[int, ...]


def layout_of(rows: Tensor) -> Layout:
    """The layout of rows (B, ...), B >= 1. Axes of length 1 count as the widest: no stride."""
    dense = Layout(tuple(range(rows.ndim)), (1,) * rows.ndim)
    if rows.layout != torch.strided or rows.is_contiguous():
        return dense
    strides, sizes = rows.stride(), rows.shape
    width = {axis: math.inf if sizes[axis] == 1 else strides[axis] for axis in dense.order}
    order = sorted(dense.order, key=lambda axis: -width[axis])
    steps: dict[int, int] = {}
    dense_stride = 1  # of the next wider axis, if there is no gap
    for axis in reversed(order):
        if sizes[axis] == 1:
            steps[axis] = 1
        elif strides[axis] == 0:
            steps[axis] = 0 if axis else 1  # rows differ, even if these are one row
        else:
            steps[axis] = 1 if strides[axis] == dense_stride else 2
            dense_stride = strides[axis] * sizes[axis]
    return Layout(tuple(order), tuple(steps[axis] for axis in order))


def laid_out(rows: Tensor, layout: Layout) -> Tensor:
    """The rows in a layout; along an axis that repeats one number, it is the first one."""
    if rows.ndim != len(layout.order) or layout == layout_of(rows):
        return rows
    first = rows
    for axis, step in zip(*layout, strict=True):
        if step == 0:
            first = first.narrow(axis, 0, 1)
    # each axis has a second one of length 2 for a gap, else 1; its first half is the rows
    sizes: list[int] = []
    for axis, step in zip(*layout, strict=True):
        sizes += [first.shape[axis], max(step, 1)]
    store = first.new_zeros(sizes)[(slice(None), 0) * rows.ndim]
    permuted = store.permute([layout.order.index(axis) for axis in range(rows.ndim)])
    return permuted.copy_(first).expand(rows.shape)
