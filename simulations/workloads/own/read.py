"""Data of a user's own in any form that ``fedlsg.Workload`` takes, as rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlsg.randomness import own_draws, seed_draws
from simulations.workloads.own.image_folder import read_image_folder
from simulations.workloads.own.rows import Columns, Fields, Prepare, Rows, as_targets, as_tensor, of_stored
from simulations.workloads.own.tables import is_table, read_table, read_table_file
from simulations.workloads.own.transform import AT_ONCE, check_same_item

FORMS = (
    "expected (inputs, targets), a torch Dataset, a datasets.Dataset, a table, or the path of a .csv or .parquet file "
    "or of a folder of images"
)


def read_rows(data: Any, columns: Columns, what: str) -> Rows:
    """The rows of ``data``; ``what`` names the argument in errors: "train" or "test".

    Raises ValueError for data of another form, OSError for a path that cannot be read.
    """
    if isinstance(data, str | Path):
        path = Path(data).expanduser()
        if path.is_dir():
            return read_image_folder(path, columns, what)
        if path.suffix in (".csv", ".parquet"):
            return read_table_file(path, columns, what)
        if not path.exists():
            raise FileNotFoundError(f"{what}={str(path)!r}: there is no such file or folder")
    elif isinstance(data, tuple | list) and len(data) == 2:
        return _pair(data[0], data[1], columns, what)
    elif isinstance(data, Mapping) and data and all(map(is_table, data.values())):  # a DatasetDict
        raise ValueError(
            f"{what} has the splits {', '.join(data)}: give one of them, such as data[{next(iter(data))!r}]"
        )
    elif is_table(data):
        return read_table(data, columns, what)
    elif hasattr(data, "__getitem__") and not isinstance(data, Tensor | np.ndarray | Mapping):
        return _dataset(data, columns, what)
    elif hasattr(data, "__iter__") and not isinstance(data, Tensor | np.ndarray | Mapping):
        raise ValueError(
            f"{what}={type(data).__name__} has no length: a private step draws examples by number; give a Dataset with "
            "__len__ and __getitem__, or (inputs, targets)"
        )
    raise ValueError(f"{what}={repr(str(data)) if isinstance(data, str | Path) else type(data).__name__}: {FORMS}")


def _pair(inputs: Any, targets: Any, columns: Columns, what: str) -> Rows:
    inputs, targets = _array(inputs, f"{what} inputs"), _array(targets, f"{what} targets")
    stored = {name: as_tensor(value, f"{what} inputs {name}") for name, value in inputs.items()} if isinstance(
        inputs, Mapping
    ) else inputs  # fmt: skip
    values = list(stored.values()) if isinstance(stored, dict) else [stored]
    wanted = as_targets(targets, what)
    sizes = {len(value) for value in values}
    if sizes != {len(wanted)} or not len(wanted):
        found = " and ".join(map(str, sorted(sizes)))
        raise ValueError(f"{what}: expected as many inputs as targets, one at least, got {found} and {len(wanted)}")
    if isinstance(stored, dict):
        return Rows(inputs=Fields(stored), targets=wanted, prepare=Prepare(columns.transform))
    return of_stored(stored, wanted, columns, what)


def _array(part: Any, what: str) -> Any:
    """The numbers of a pandas table or column; anything else as it is. Raises ValueError for a table with texts."""
    if not hasattr(part, "iloc"):
        return part
    found = part.to_numpy()
    if found.ndim > 1 and found.dtype.kind not in "biufc":
        raise ValueError(
            f"{what} are a table with columns that are no numbers: give the table itself as data, with inputs= and "
            "targets= as names of columns, or an array"
        )
    return found


def _dataset(data: Any, columns: Columns, what: str) -> Rows:
    """A map-style Dataset of pairs, read once from the first to the last."""
    try:
        size = len(data)
    except (TypeError, NotImplementedError):
        raise ValueError(
            f"{what}={type(data).__name__} has no length: give a Dataset with __len__, or (inputs, targets)"
        ) from None
    if not size:
        raise ValueError(f"{what}={type(data).__name__} has no examples")
    inputs, targets = [], []
    with own_draws("cpu"):
        for number in range(size):
            item = _item(data, number, what)
            inputs.append(item[0])
            targets.append(item[1])
            if number % AT_ONCE == AT_ONCE - 1:
                columns.progress(f"{what}: {number + 1} of {size} examples read")
        for number in (0, size // 2):
            check_same_item((inputs[number], targets[number]), _item(data, number, what), f"{what}[{number}]")
    texts = isinstance(targets[0], str)
    wanted = as_targets(targets if texts else _stacked(targets, f"{what} targets"), what)
    first = inputs[0]
    if isinstance(first, Mapping):
        if other := [number for number, item in enumerate(inputs) if not _has(item, first)]:
            raise ValueError(f"{what}[{other[0]}] has other inputs than {what}[0], {', '.join(map(str, first))}")
        fields = {str(name): _stacked([item[name] for item in inputs], f"{what} inputs {name}") for name in first}
        return Rows(inputs=Fields(fields), targets=wanted, prepare=Prepare(columns.transform))
    if not isinstance(first, Tensor | np.ndarray | np.generic | int | float):
        return of_stored(inputs, wanted, columns, what)
    return of_stored(_stacked(inputs, f"{what} inputs"), wanted, columns, what)


def _item(data: Any, number: int, what: str) -> Any:
    """An item. Its random changes are drawn from its number, so that no other example has a part in them."""
    seed_draws(number, "cpu")
    try:
        item = data[number]
    except Exception as error:
        raise ValueError(
            f"{what}[{number}] fails: {type(error).__name__}: {error}; give a Dataset whose __getitem__ takes 0 to "
            "len - 1"
        ) from error
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ValueError(f"{what}[{number}] is {type(item).__name__}: expected a pair (input, target)")
    return item


def _has(item: Any, first: Mapping[Any, Any]) -> bool:
    return isinstance(item, Mapping) and item.keys() == first.keys()


def _stacked(items: Sequence[Any], what: str) -> Tensor:
    try:
        found = torch.stack([torch.as_tensor(item) for item in items])
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{what} cannot be stacked: {error}; give every example one shape") from None
    return found.float() if found.dtype == torch.float64 and not isinstance(items[0], Tensor) else found
