"""From the positions of a Poisson batch to inputs and targets: of tensors, of a torch Dataset, of an own function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from fedlsg.gradients import Batch as Inputs
from fedlsg.gradients import batch_size
from fedlsg.training import Batch, Positions

SMALL = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32)
Check = Callable[[Inputs, Inputs], None]
Data = Dataset[Any] | tuple[Any, Any]
"""A map-style dataset of (inputs, targets), or inputs and targets whose first dimension is the examples."""


def unchecked(inputs: Inputs, targets: Inputs) -> None:
    """Any rows will do."""


def batches_of(
    data: Data, *, num_examples: int, device: torch.device, dtype: torch.dtype = torch.float32, check: Check = unchecked
) -> Batch:
    """A batch function over ``data``: int64 positions (B,) -> (inputs, targets) on ``device``.

    ``data``: a pair of tensors or arrays, batch first (inputs may be a dict of them), or a map-style torch Dataset
    whose items are (inputs, targets) and are put together by ``default_collate``. Arrays and numbers of python in
    float64, which numpy and python make of everything, get ``dtype``; tensors stay as they are, but targets of a pair
    in small integers become int64. ``check`` gets the tensors of a pair.
    Raises ValueError for a dataset without a length or of another length than ``num_examples``.
    """
    if isinstance(data, TensorDataset):
        if len(data.tensors) != 2:
            raise ValueError(f"expected a TensorDataset of inputs and targets, got one of {len(data.tensors)} tensors")
        data = (data.tensors[0], data.tensors[1])
    if isinstance(data, tuple):
        if len(data) != 2:
            raise ValueError(f"expected a pair (inputs, targets), got a tuple of {len(data)}")
        inputs, targets = _tensors(data[0], dtype, "inputs"), _classes(_tensors(data[1], dtype, "targets"))
        size = batch_size(inputs, targets)
        batch: Batch = Stored(inputs, targets, device)
    else:
        size, batch = _length(data), Items(data, device, dtype, at_once=hasattr(data, "__getitems__"))
    if size != num_examples:
        raise ValueError(f"expected {num_examples=} examples, the data set has {size}: noise and epsilon depend on it")
    if isinstance(data, tuple):
        check(inputs, targets)
    return batch


@dataclass(frozen=True, eq=False)
class Stored:
    """The batch function of tensors: it only moves rows."""

    inputs: Inputs
    targets: Inputs
    device: torch.device

    def __call__(self, rows: Positions) -> tuple[Inputs, Any]:
        """Inputs and targets of the positions."""
        return _on((rows_of(self.inputs, rows), rows_of(self.targets, rows)), self.device)


@dataclass(frozen=True, eq=False)
class Items:
    """The batch function of a Dataset. Without ``at_once`` it makes one item at a time, which sees no other."""

    data: Any
    device: torch.device
    dtype: torch.dtype
    at_once: bool

    def __call__(self, rows: Positions) -> tuple[Inputs, Any]:
        """Inputs and targets of the positions."""
        return _on(collate(self.data, rows, dtype=self.dtype), self.device)


def _tensors(part: Any, dtype: torch.dtype, what: str) -> Inputs:
    if isinstance(part, Mapping):
        return {name: _tensor(value, dtype, f"{what} {name}") for name, value in part.items()}
    return _tensor(part, dtype, what)


def _tensor(value: Any, dtype: torch.dtype, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    try:
        found = torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{what}: expected numbers, got {type(value).__name__} ({error})") from None
    return found.to(dtype) if found.dtype == torch.float64 else found


def _classes(targets: Inputs) -> Inputs:
    """Small integers as int64, which losses take as the numbers of classes."""
    if not isinstance(targets, Tensor):
        return {name: value.long() if value.dtype in SMALL else value for name, value in targets.items()}
    return targets.long() if targets.dtype in SMALL else targets


def rows_of(part: Inputs, rows: Positions) -> Any:
    """Some rows, on the part's device."""
    if isinstance(part, Tensor):
        return part[rows.to(part.device)]
    return {name: value[rows.to(value.device)] for name, value in part.items()}


def named(what: str, part: Inputs) -> list[tuple[str, Tensor]]:
    """The tensors of a part by their names in messages."""
    return [(what, part)] if isinstance(part, Tensor) else [(f"{what} {name}", value) for name, value in part.items()]


def _length(data: Any) -> int:
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise ValueError(
            f"{type(data).__name__} has no length or no positions: a Poisson batch draws from all examples; give a "
            "map-style Dataset (__len__ and __getitem__), a pair of tensors, or an own function of positions"
        )
    return len(data)


def collate(data: Any, rows: Positions, *, dtype: torch.dtype = torch.float32) -> tuple[Inputs, Inputs]:
    """The items at ``rows`` as one batch. Raises ValueError for items that are no pairs, or of several shapes."""
    places = rows.tolist()
    items = data.__getitems__(places) if hasattr(data, "__getitems__") else [data[place] for place in places]
    if not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise ValueError(
            f"expected items (inputs, targets) from {type(data).__name__}, got {type(items[0]).__name__}; give an own "
            "function of positions that returns (inputs, targets)"
        )
    inputs, targets = (_as(part, first, dtype) for part, first in zip(_joined(items, data), items[0], strict=True))
    return inputs, targets


def _joined(items: list[Any], data: Any) -> Any:
    try:
        return default_collate(items)
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"the items of {type(data).__name__} cannot be put together to one batch: {error}; give every example one "
            "shape and one type, numbers or tensors (pad texts), or an own function of positions"
        ) from error


def _as(part: Any, first: Any, dtype: torch.dtype) -> Any:
    """What was collated, in ``dtype`` where it was no tensor and became float64; ``first``: of the first item."""
    if isinstance(part, Mapping) and isinstance(first, Mapping):
        return {name: _as(value, first[name], dtype) for name, value in part.items()}
    made = isinstance(part, Tensor) and part.dtype == torch.float64 and not isinstance(first, Tensor)
    return part.to(dtype) if made else part


def _on(batch: tuple[Inputs, Inputs], device: torch.device) -> tuple[Any, Any]:
    return tuple(  # type: ignore[return-value]
        part.to(device) if isinstance(part, Tensor) else {name: value.to(device) for name, value in part.items()}
        for part in batch
    )


def guarded(batch: Callable[[Positions], Any]) -> Batch:
    """A user's batch function, called with one position at least, and held to one row for each position.

    An example that came twice would count twice in the clipped sum. The message says nothing of the batch's size.
    """

    def of(positions: Positions) -> tuple[Inputs, Any]:
        if not len(positions):  # nothing reads an empty batch but its size
            return torch.zeros(0, 1), torch.zeros(0)
        given = batch(positions)
        if not isinstance(given, tuple | list) or len(given) != 2 or not all(map(_is_batch, given)):
            raise ValueError(
                "expected a batch function from int64 positions (B,) to (inputs, targets): tensors, or dicts of tensors"
            )
        inputs, targets = given
        if batch_size(inputs, targets) != len(positions):
            raise ValueError("expected one row of inputs and targets for each position, in the same order")
        return inputs, targets

    return of


def _is_batch(part: Any) -> bool:
    return isinstance(part, Tensor) or (
        isinstance(part, Mapping) and len(part) > 0 and all(isinstance(value, Tensor) for value in part.values())
    )
