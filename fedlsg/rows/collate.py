"""Check single rows, and collate rows of one form to a batch.

A row is a pair (inputs, targets): tensors, arrays, numbers, or dicts of them. A dict with one of
the usual names of a target is read as such a pair.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from fedlsg.tensors import BY_NAME

NUMBERS = (Tensor, bool, int, float)
MOST = frozenset((*NUMBERS, np.ndarray))
"""Types of most parts of rows, which are certainly no dicts."""
TARGETS = ("label", "labels", "target", "targets")
"""Names of the target in an item that is a dict, as Flower's templates and ``datasets`` have it."""
FUNCTION = "an own function of positions that returns (inputs, targets)"
"""Advice in messages."""


def check_row(row: Any, what: str) -> tuple[Any, Any]:
    """A row as a pair. Raises ValueError, naming the data by ``what``, if it is none."""
    if type(row) is tuple and len(row) == 2 and type(row[0]) in MOST and type(row[1]) in MOST:
        return row
    row = _pair_of(row) if isinstance(row, Mapping) else row
    if not isinstance(row, tuple | list) or len(row) != 2:
        raise ValueError(
            f"expected items (inputs, targets) from {what}, got {_shown(row)}: {BY_NAME}; "
            f"give such items, dicts with a target named {' or '.join(TARGETS)}, or {FUNCTION}"
        )
    for name, part in zip(("inputs", "targets"), row, strict=True):
        for key, value in part.items() if isinstance(part, Mapping) else [("", part)]:
            if not isinstance(value, NUMBERS) and not hasattr(value, "__array__"):
                raise ValueError(
                    f"the {name}{key and f' {key!r}'} of {what} are of type "
                    f"{type(value).__name__}: give a tensor, an array or a number for each "
                    "example, or a dict of them (texts by a tokenizer, lists by torch.tensor; "
                    f"leave out what the model does not read); {BY_NAME}"
                )
    return row[0], row[1]


def _pair_of(row: Mapping[str, Any]) -> Any:
    """(inputs, target) of a dict with one target, where a single input loses its name; else the
    dict.
    """
    inputs = {name: value for name, value in row.items() if name not in TARGETS}
    targets = [value for name, value in row.items() if name in TARGETS]
    if len(targets) != 1 or not inputs:
        return row
    return (inputs if len(inputs) > 1 else next(iter(inputs.values()))), targets[0]


def inputs_of(row: Any) -> Any:
    """The inputs of an item; the whole item if it is no pair."""
    if type(row) is tuple and len(row) == 2:
        return row[0]
    row = _pair_of(row) if isinstance(row, Mapping) else row
    return row[0] if isinstance(row, tuple | list) and len(row) == 2 else row


def _shown(row: Any) -> str:
    """The type of an item, and the names of a dict."""
    names = f" of {', '.join(map(str, row))}" if isinstance(row, Mapping) else ""
    return f"{type(row).__name__}{names}"


def in_own_memory(part: Any) -> Any:
    """A copy of a part of a row, because code may fill one buffer for all rows.

    A tensor becomes a plain one, because functions of another class would see the batch.
    """
    if isinstance(part, Tensor):
        return (part if type(part) is Tensor else part.as_subclass(Tensor)).clone()
    if type(part) not in MOST and isinstance(part, Mapping):
        return {name: in_own_memory(value) for name, value in part.items()}
    return part.copy() if isinstance(part, np.ndarray) else part


def form_of(part: Any) -> Any:
    """Names, types and shapes of a part of a row: parts of equal form can be put together."""
    if isinstance(part, Tensor):
        return type(part), part.shape, part.dtype
    if type(part) not in MOST and isinstance(part, Mapping):
        return tuple((name, form_of(value)) for name, value in part.items())
    return type(part), getattr(part, "shape", None), getattr(part, "dtype", None)


def tensors_of(part: Any, dtype: torch.dtype) -> Any:
    """A part of a row as tensors; float64 values of python and numpy get ``dtype``."""
    if isinstance(part, Tensor):
        return part
    if isinstance(part, Mapping):
        return {name: tensors_of(value, dtype) for name, value in part.items()}
    try:
        value = torch.as_tensor(part)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"expected tensors, arrays or numbers in a row, got {type(part).__name__}: give "
            "torch.as_tensor(numpy.array(part))"
        ) from error
    return value.to(dtype) if value.dtype == torch.float64 else value


def collate(rows: Sequence[tuple[Any, Any]], what: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """The rows as one batch. Raises ValueError, naming the data, for rows of several forms."""
    try:
        inputs, targets = (default_collate([row[side] for row in rows]) for side in (0, 1))
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"the items of {what} cannot be put together to one batch: {error}; give numbers or "
            f"tensors, or {FUNCTION}"
        ) from error
    return _as(inputs, rows[0][0], dtype), _as(targets, rows[0][1], dtype)


def _as(part: Any, first: Any, dtype: torch.dtype) -> Any:
    """A collated part, in ``dtype`` if python or numpy made it as float64.

    ``first``: the same part of the first row before it was collated.
    """
    if isinstance(part, Mapping):
        return {name: _as(value, first[name], dtype) for name, value in part.items()}
    is_wide = isinstance(part, Tensor) and part.dtype == torch.float64
    return part.to(dtype) if is_wide and not isinstance(first, Tensor) else part
