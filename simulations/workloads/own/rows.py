"""Data of a user's own as rows: inputs as they are stored, targets, and columns that may form clients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from simulations.workloads.base.workload import Inputs, Progress, Stored
from simulations.workloads.own.transform import transformed


@dataclass(frozen=True, kw_only=True)
class Columns:
    """How data with columns are read: see ``Workload``. ``more``: columns that form clients."""

    inputs: tuple[str, ...] | None
    targets: tuple[str, ...] | None
    more: tuple[str, ...]
    transform: Callable[..., Any] | None
    image_size: int | None
    progress: Progress


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """``inputs``: N stored examples; ``targets``: (N, ...); ``prepare``: from stored rows to the model's inputs.

    ``columns``: other values of the rows, by name (N,). ``classes``: names of the classes, if the data say them.
    """

    inputs: Stored
    targets: Tensor
    prepare: Callable[[Any], Inputs]
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    classes: tuple[str, ...] = ()


def of_stored(
    stored: Any,
    targets: Tensor,
    columns: Columns,
    what: str,
    *,
    more: Mapping[str, np.ndarray] | None = None,
    default: Callable[[Any], Inputs] | None = None,
) -> Rows:
    """Rows of one array, or of a list of things that a transform makes numbers of, once.

    ``default``: what prepares an array without a transform.
    """
    if not isinstance(stored, Tensor | np.ndarray) or (isinstance(stored, np.ndarray) and stored.dtype.kind in "OUS"):
        things = list(stored)
        several = bool(things) and isinstance(things[0], tuple) and len(columns.inputs or ()) > 1
        stored = transformed(things, columns.transform, several, what, columns.progress)
        columns = replace(columns, transform=None)
    if isinstance(stored, dict):
        return Rows(inputs=Fields(stored), targets=targets, prepare=Prepare(), columns=more or {})
    array = stored if isinstance(stored, Tensor) else as_tensor(stored, f"{what} inputs")
    prepare = Prepare(columns.transform or default)
    return Rows(inputs=Array(array.detach().cpu()), targets=targets, prepare=prepare, columns=more or {})


def as_tensor(value: Any, what: str) -> Tensor:
    """An array as a tensor; float64 of numpy, which few models take, as float32. Raises ValueError for what is none."""
    if isinstance(value, np.ndarray) and not value.flags.writeable:  # of pandas and pyarrow; torch warns
        value = value.copy()
    try:
        found = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{what}: expected an array or a tensor, got {type(value).__name__} ({error})") from None
    if found.ndim == 0:
        raise ValueError(f"{what}: expected one row an example, got a single number")
    return found.float() if found.dtype == torch.float64 and not isinstance(value, Tensor) else found


def as_targets(value: Any, what: str) -> Tensor:
    """Targets as a tensor; small integers as int64. Raises ValueError for texts and the like."""
    if isinstance(value, Sequence) and value and isinstance(value[0], str):
        raise ValueError(f"{what} targets are texts: give the number of each class, 0 to K - 1")
    if isinstance(value, np.ndarray) and value.dtype.kind in "OUS":
        raise ValueError(f"{what} targets are {value.dtype}: give numbers (of a class, 0 to K - 1)")
    found = as_tensor(value, f"{what} targets").detach().cpu()
    return found.long() if found.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32) else found


@dataclass(frozen=True)
class Prepare:
    """From stored rows, arrays of numpy, to the model's inputs: as tensors, through a function if there is one."""

    transform: Callable[[Any], Inputs] | None = None

    def __call__(self, stored: Any) -> Inputs:
        """The inputs of some rows. A transform is not called for none: its failure would tell that a batch is empty."""
        tensors: Inputs = (
            {name: torch.as_tensor(value) for name, value in stored.items()}
            if isinstance(stored, Mapping)
            else torch.as_tensor(stored)
        )
        if self.transform is None:
            return tensors
        first = next(iter(tensors.values())) if isinstance(tensors, dict) else tensors
        return self.transform(tensors) if len(first) else torch.zeros(0, 1)


class Array:
    """N stored rows of one tensor; numpy keeps them, so that processes of one machine share the memory."""

    def __init__(self, values: Tensor) -> None:
        self._values = values.numpy() if values.dtype != torch.bfloat16 else values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: np.ndarray) -> Any:
        return self._values[rows]


class Fields:
    """N stored rows of several tensors, by name."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self._fields = {name: Array(value.detach().cpu()) for name, value in values.items()}

    def __len__(self) -> int:
        return len(next(iter(self._fields.values())))

    def __getitem__(self, rows: np.ndarray) -> dict[str, Any]:
        return {name: values[rows] for name, values in self._fields.items()}


def pixels(images: Tensor) -> Tensor:
    """From uint8 to [0, 1], float32."""
    return images / 255
