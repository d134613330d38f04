"""Data with columns: .csv and .parquet files, pandas tables, ``datasets.Dataset``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedlsg.choices import did_you_mean
from simulations.workloads.own.image_folder import stacked
from simulations.workloads.own.rows import Columns, Rows, as_targets, of_stored, pixels

LABEL = "label"
"""The column of the targets, if none is named."""


def is_table(data: Any) -> bool:
    """Whether data have columns and a length: a ``datasets.Dataset``, or a table of pandas or pyarrow."""
    columns = hasattr(data, "column_names") or (hasattr(data, "columns") and hasattr(data, "iloc"))
    return columns and hasattr(data, "__len__") and hasattr(data, "__getitem__")


def read_table_file(path: Path, columns: Columns, what: str) -> Rows:
    """Rows of a .csv or .parquet file. Raises OSError or ValueError, naming it, for one that cannot be read."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    if not path.exists():
        raise FileNotFoundError(f"{what}={str(path)!r}: there is no such file")
    try:
        table = csv.read_csv(path) if path.suffix == ".csv" else parquet.read_table(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{what}={str(path)!r} cannot be read: {error}") from None
    return read_table(table, columns, f"{what}={path.name}")


def read_table(data: Any, columns: Columns, what: str) -> Rows:
    """Rows of a table: the target column, the input columns, and the columns that may form clients."""
    names = [str(name) for name in (data.column_names if hasattr(data, "column_names") else data.columns)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{what} has two columns of the same name, {twice[0]!r}: give each its own")
    if not len(data):
        raise ValueError(f"{what} has no rows: expected one at least")
    wanted = columns.targets or (LABEL,)
    for name in (*wanted, *(columns.inputs or ())):
        if name not in names:
            hint = "" if name != LABEL or columns.targets else "; targets= names the column of the targets"
            raise ValueError(
                f"{what} has no column {name!r}{did_you_mean(name, names)}; it has {', '.join(names)}{hint}"
            )
    inputs = columns.inputs or tuple(name for name in names if name not in (*wanted, *columns.more))
    if not inputs:
        raise ValueError(f"{what} has no column but {', '.join(map(repr, wanted))}: inputs= names those of the inputs")
    values = {name: _column(data, name) for name in (*inputs, *wanted)}
    others = [name for name in names if name not in values]
    more = {name: _column(data, name) for name in others}
    groups = {name: column for name, column in more.items() if column.ndim == 1 and _is_complete(column)}
    if lacking := [name for name in columns.more if name in more and name not in groups]:
        raise ValueError(f"{what}: column {lacking[0]!r} has missing values or lists: give each row its client")
    targets = as_targets(_targets([values[name] for name in wanted], what), what)
    stored = _inputs({name: values[name] for name in inputs}, columns, what)
    images = isinstance(stored, np.ndarray) and stored.dtype == np.uint8 and stored.ndim == 4
    return of_stored(stored, targets, columns, what, more=groups, default=pixels if images else None)


def _targets(columns: list[np.ndarray], what: str) -> np.ndarray:
    """One column as it is; several, of numbers, as (N, columns)."""
    if len(columns) == 1:
        return columns[0]
    if any(column.dtype.kind not in "biuf" or column.ndim > 1 for column in columns):
        raise ValueError(f"{what}: expected numbers in each of several target columns")
    return np.stack(columns, axis=1)


def _inputs(values: Mapping[str, np.ndarray], columns: Columns, what: str) -> Any:
    """One array of numbers (N, columns), or a list of texts, of pairs of texts, or of other things."""
    arrays = list(values.values())
    if all(array.dtype.kind in "biuf" for array in arrays):
        if missing := [name for name, array in values.items() if array.dtype.kind == "f" and np.isnan(array).any()]:
            raise ValueError(f"{what}: column {missing[0]!r} has missing values: fill them, or leave the rows out")
        if len(arrays) == 1 and arrays[0].ndim > 1:
            return arrays[0]
        return np.stack([array.astype(np.float32) for array in arrays], axis=1)
    if numbers := [name for name, array in values.items() if array.dtype.kind in "biuf"]:
        texts = [name for name in values if name not in numbers]
        raise ValueError(
            f"{what}: columns {', '.join(texts)} are no numbers, {', '.join(numbers)} are: inputs= names those of one "
            "kind"
        )
    if len(arrays) == 1 and hasattr(arrays[0][0], "convert"):  # images of Pillow
        return stacked(arrays[0], columns.image_size, what)
    return list(arrays[0]) if len(arrays) == 1 else list(zip(*map(list, arrays), strict=True))


def _is_complete(column: np.ndarray) -> bool:
    """Whether a client can be formed of each value."""
    if column.dtype.kind == "f":
        return not np.isnan(column).any()
    return column.dtype.kind != "O" or len({type(value) for value in column} - {str}) == 0


def _column(data: Any, name: str) -> np.ndarray:
    found = data[name]
    if hasattr(found, "to_numpy"):  # pyarrow, pandas
        column = np.asarray(found.to_numpy())
    else:
        things = list(found)
        column = np.empty(len(things), dtype=object)
        column[:] = things
    if column.dtype.kind != "O" or not len(column):
        return column
    first = column[0]
    if all(isinstance(value, bool | int | float | np.number) for value in column):
        return np.asarray(column.tolist())
    if isinstance(first, list | np.ndarray | torch.Tensor):
        try:
            return np.stack([np.asarray(value) for value in column])
        except ValueError:
            raise ValueError(f"column {name!r} holds lists of different lengths: give every row one shape") from None
    return column
