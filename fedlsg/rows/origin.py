"""Refuse data that have a row twice, also through ``Subset``, ``ConcatDataset`` and
``StackDataset``.

An epsilon holds for one row. A row that the data have ten times is clipped ten times, and moves the
sum by 10 C. A row is recognised by the place of its inputs in memory (``row_memory``): a copy of
its label does not make it another row.
"""

from collections import UserList, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

from fedlsg.rows.arrow_memory import is_hub, of_column, of_hub
from fedlsg.rows.collate import TARGETS, inputs_of
from fedlsg.rows.row_memory import (
    ATOMS,
    Integers,
    RowParts,
    common_parts,
    earlier_rows,
    joined,
    of_array,
    of_list,
    of_object,
    of_object_array,
    of_things,
    under,
)

HELD = (list, tuple, deque, UserList, dict)
"""Containers of Python, whose rows are held as they are; a dict by their numbers."""
LOOKED_THROUGH = (*HELD, Subset, ConcatDataset, StackDataset, TensorDataset)


def check_distinct(data: Any, what: str) -> None:
    """Raise ValueError for data that have a row more than once.

    data: a Dataset, a list of examples, or a pair (inputs, targets), where inputs may be a dict.
    what: the name of the data in the message.
    Tensors, arrays, the classes of torch, ``datasets``, and containers of Python are examined.
    Copies of inputs, and repetition inside other classes, are not found.
    """
    if isinstance(data, tuple):
        parts = parts_of_inputs(data[0])
    elif isinstance(data, LOOKED_THROUGH) or is_hub(data):
        parts = parts_of(data, np.arange(len(data)))
    else:
        return
    check_parts(parts, what, partial(_are_equal_rows, data) if _is_held(data) else None)


def check_parts(
    parts: RowParts, what: str, are_equal: Callable[[int, int], bool] | None = None
) -> None:
    """Raise ValueError, naming the data by ``what``, if one of the rows comes more than once.
    ``are_equal``: as ``earlier_rows`` has it.
    """
    earlier = earlier_rows(parts, are_equal)
    again = earlier[earlier >= 0]
    if not len(again):
        return
    _, counts = np.unique(again, return_counts=True)
    row = int(np.flatnonzero(earlier >= 0)[0])
    raise ValueError(
        f"{what} has {len(counts)} row{'s' * (len(counts) > 1)} more than once (one of them "
        f"{int(counts.max()) + 1} times), and epsilon holds for a row that comes once: give each "
        "row once; to give rare classes more weight, take weights in the loss, such as "
        f"nn.CrossEntropyLoss(weight=...); {own_copy(parts, int(again[0]), row)}"
    )


def _is_container(data: Any) -> bool:
    return isinstance(data, HELD) and type(data).__getitem__ in [kind.__getitem__ for kind in HELD]


def _is_held(data: Any) -> bool:
    """Whether reading a row makes nothing: it is there."""
    if isinstance(data, Subset):
        return _is_held(data.dataset)
    if isinstance(data, ConcatDataset):
        return all(map(_is_held, data.datasets))
    return _is_container(data) and not isinstance(data, tuple)


def _are_equal_rows(data: Any, one: int, other: int) -> bool:
    return _are_equal(inputs_of(data[one]), inputs_of(data[other]))


def _are_equal(one: Any, other: Any) -> bool:
    """Whether two things have equal values; not of what is neither an array nor a container."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_are_equal(one[n], other[n]) for n in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    return one is other or (isinstance(one, ATOMS) and bool(one == other))


def own_copy(parts: RowParts, one: int, other: int) -> str:
    """Advice for the case that two rows with the same parts in memory are those of two people."""
    if shared := common_parts(parts, one, other):
        names = ", ".join(map(repr, shared))
        return (
            f"rows of several people that share {names} in memory need a copy of it each (.clone())"
        )
    return (
        "rows of several people whose inputs are one object or one expanded row need a copy each "
        "(inputs.clone())"
    )


def parts_of(data: Any, rows: Integers) -> RowParts:
    """The places of the inputs of these rows of data."""
    if isinstance(data, Subset):
        inner: Any = data.dataset
        chosen = np.asarray(data.indices, dtype=np.int64)[rows]
        return parts_of(inner, chosen + len(inner) * (chosen < 0))
    if isinstance(data, ConcatDataset):
        return _of_concatenation(data, rows)
    if isinstance(data, TensorDataset | StackDataset):
        parts = {name: parts_of(member, rows) for name, member in _inputs_of(data).items()}
        return _by_name(parts) if len(parts) > 1 else next(iter(parts.values()))
    if isinstance(data, np.ndarray) and data.dtype == object and data.ndim == 1:
        return of_object_array(data, rows)
    if isinstance(data, Tensor | np.ndarray):
        return of_array(data, rows)
    if _is_container(data):
        return of_list(data, rows)
    return of_hub(data, rows) if is_hub(data) else of_object(data, rows)


def parts_of_inputs(inputs: Any) -> RowParts:
    """The places of the rows of the inputs of a pair; a dict has several parts."""
    if isinstance(inputs, Mapping):
        return _by_name({name: parts_of_inputs(value) for name, value in inputs.items()})
    rows = np.arange(len(inputs))
    if isinstance(inputs, list | tuple):
        return of_things(inputs, rows)
    if type(inputs).__module__.partition(".")[0] == "pyarrow":
        return of_column(inputs)
    if hasattr(inputs, "iloc") and isinstance(getattr(inputs, "dtype", None), np.dtype):
        inputs = inputs.to_numpy()  # of pandas: a view
    return parts_of(inputs, rows)


def _of_concatenation(data: ConcatDataset[Any], rows: Integers) -> RowParts:
    """The places of rows of a concatenation: of each part, then back in the order of ``rows``."""
    ends = np.asarray(data.cumulative_sizes)
    owners = np.searchsorted(ends, rows, side="right")
    order = np.argsort(owners, kind="stable")
    sizes = np.bincount(owners, minlength=len(ends))
    begins = ends - np.asarray([len(part) for part in data.datasets])  # type: ignore[arg-type]
    each = np.split(rows[order], np.cumsum(sizes)[:-1])
    parts = [
        parts_of(part, chosen - begin)
        for part, chosen, begin in zip(data.datasets, each, begins, strict=True)
        if len(chosen)
    ]
    back = np.empty(len(rows), dtype=np.int64)
    back[order] = np.arange(len(rows))
    several = joined(parts, sizes[sizes > 0].tolist())
    return {name: part.pick(back) for name, part in several.items()}


def _by_name(parts: Mapping[Any, RowParts]) -> RowParts:
    """The parts of several members, each under the member's name."""
    return {name: part for key, inner in parts.items() for name, part in under(key, inner).items()}


def _inputs_of(data: Any) -> dict[Any, Any]:
    """The members of a data set that are inputs, by name or number.

    They are all but the last one, or those whose name is not one of a target.
    """
    members = data.tensors if isinstance(data, TensorDataset) else data.datasets
    if isinstance(members, dict):
        inputs = {name: member for name, member in members.items() if name not in TARGETS}
        return inputs or members
    return dict(enumerate(members[:-1] if len(members) > 1 else members))
