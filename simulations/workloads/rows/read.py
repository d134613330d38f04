"""Data of a user's own in any form that ``fedlsg.Workload`` takes, as rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlsg.rows import RowDraws, check_distinct
from fedlsg.rows.collate import in_own_memory
from fedlsg.simulations.workloads.base import Progress
from fedlsg.simulations.workloads.rows import (
    Columns,
    Fields,
    Rows,
    as_targets,
    as_tensor,
    of_stored,
)
from fedlsg.simulations.workloads.rows.columns import (
    LABEL,
    Table,
    agreed,
    check_finite,
    find_inputs,
    is_table,
    text_of,
)
from fedlsg.simulations.workloads.rows.image_folders import read_image_folder, stack
from fedlsg.simulations.workloads.rows.table_files import NoFileError, is_table_file, read_npz
from fedlsg.simulations.workloads.rows.transform import (
    AT_ONCE,
    PROBES,
    Prepare,
    check_same_item,
    is_same_item,
    prefers_texts,
)
from fedlsg.user_code.objects import generators_in

FORMS = (
    "expected (inputs, targets), a torch Dataset, a datasets.Dataset, a table, or the path of a "
    ".csv or .parquet file (.tsv, .jsonl, .npz) or of a folder of images"
)


def read_splits(splits: Mapping[str, Any], columns: Columns) -> tuple[dict[str, Rows], Columns]:
    """Rows of train (where it is here) and of test, and how to read more rows of their form.

    Columns are matched by name, in the order of train, or of test alone. Classes and the scale of
    pixels are those of test, which is public. Raises ValueError as ``read_rows``, and for tables of
    other columns.
    """
    opened = {name: open_data(data, name) for name, data in splits.items()}
    if tables := [data for data in opened.values() if isinstance(data, Table)]:
        columns = _with_texts(tables[-1], agreed(tables, columns))
    test = read_rows(opened["test"], columns, "test")
    later = replace(columns, like=test)
    return {
        "test": test,
        **{name: read_rows(data, later, name) for name, data in opened.items() if name != "test"},
    }, later


def _with_texts(table: Table, columns: Columns) -> Columns:
    """The inputs of a file as texts, where they look like numbers and the transform takes texts."""
    names = columns.inputs or ()
    if (
        columns.transform is None
        or not table.is_csv
        or any(name in columns.texts for name in names)
    ):
        return columns
    values = [table.values(name)[:PROBES] for name in names]
    if any(value.dtype.kind not in "iuf" or value.ndim > 1 for value in values):
        return columns
    numbers = torch.from_numpy(np.stack(values, axis=1).astype(np.float32))
    texts = prefers_texts(
        columns.transform, numbers, [list(map(str, value.tolist())) for value in values]
    )
    return replace(columns, texts=(*columns.texts, *names)) if texts else columns


def open_data(data: Any, what: str) -> Any:
    """Data with columns as a ``Table``, of a path, too; other data as they are."""
    if isinstance(data, str | Path):
        path = Path(data).expanduser()
        if is_table_file(path):
            return Table.of_file(path, what)
        return path
    if (
        isinstance(data, tuple | list)
        and len(data) == 2
        and hasattr(data[0], "iloc")
        and hasattr(data[0], "columns")
    ):
        _check_same_order(data[0], data[1], what)
        return replace(Table.of(data[0], f"{what} inputs"), targets=data[1])
    return Table.of(data, what) if is_table(data) else data


def read_rows(data: Any, columns: Columns, what: str) -> Rows:
    """The rows of ``data``; ``what`` names the argument in errors: "train" or "test".

    Raises ValueError for data of another form, OSError for a path that cannot be read.
    """
    data = open_data(data, what)
    if isinstance(data, Table):
        return _table(data, columns)
    if isinstance(data, Path):
        if data.is_dir():
            return read_image_folder(data, columns, what)
        if not data.exists():
            raise NoFileError(
                f"{what}={str(data)!r}: there is no such file or folder (from {Path.cwd()})"
            )
        if data.suffix.lower() == ".npz":
            return _pair(*read_npz(data), columns, what)
    elif (
        isinstance(data, tuple | list) and data and all(isinstance(one, str | Path) for one in data)
    ):
        raise ValueError(
            f"{what} has {len(data)} paths: give one file, or one frame, such as pandas.concat of "
            "them"
        )
    elif isinstance(data, tuple | list) and len(data) == 2:
        return _pair(data[0], data[1], columns, what)
    elif isinstance(data, Mapping) and data and all(map(is_table, data.values())):  # a DatasetDict
        raise ValueError(
            f"{what} has the splits {', '.join(data)}: give one of them, such as "
            f"data[{next(iter(data))!r}]"
        )
    elif hasattr(data, "__getitem__") and not isinstance(data, Tensor | np.ndarray | Mapping):
        return _dataset(data, columns, what)
    elif hasattr(data, "__iter__") and not isinstance(data, Tensor | np.ndarray | Mapping):
        raise ValueError(
            f"{what}={type(data).__name__} has no length: a private step draws examples by number; "
            "give a Dataset with __len__ and __getitem__, or (inputs, targets)"
        )
    raise ValueError(
        f"{what}={repr(str(data)) if isinstance(data, str | Path) else type(data).__name__}: "
        f"{FORMS}"
    )


def _table(table: Table, columns: Columns) -> Rows:
    """Rows of a table: the target column, the input columns, and the columns that may form
    clients.
    """
    what, inputs = table.what, find_inputs(table, columns)
    wanted = () if table.targets is not None else columns.targets or (LABEL,)
    table = table.as_texts(
        [one for one in (*inputs, *wanted) if one in columns.texts and not table.is_text(one)]
    )
    values = {name: table.values(name) for name in (*inputs, *wanted)}
    found = (
        _array(table.targets, f"{what} targets")
        if not wanted
        else _joined([values[name] for name in wanted], what)
    )
    published = table.published.get(wanted[0], ()) if len(wanted) == 1 else ()
    targets, classes = (
        _numbered(found, published, columns, what) if wanted else as_targets(found, columns, what)
    )
    if len(targets) != table.size:
        raise ValueError(
            f"{what}: expected as many inputs as targets, got {table.size} and {len(targets)}"
        )
    stored, white = _inputs(
        {name: values[name] for name in inputs}, replace(columns, inputs=inputs), what
    )
    groups = {
        name: values[name] if name in values else table.values(name) for name in table.columns
    }
    groups = {
        name: text_of(column)
        for name, column in groups.items()
        if column.ndim == 1 and (name in columns.more or name in wanted or name not in inputs)
    }
    # of a Series
    if not wanted and getattr(table.targets, "name", None) is not None and np.ndim(found) == 1:
        groups.setdefault(str(table.targets.name), text_of(np.asarray(found)))
    if lists := [name for name in columns.more if name in table.columns and name not in groups]:
        raise ValueError(
            f"{what}: column {lists[0]!r} holds lists: give each row its client, a text or a number"
        )
    left = tuple(name for name in table.columns if name not in (*inputs, *wanted, *columns.more))
    shown = tuple(f"{name!r} (an index)" if name in table.indexes else repr(name) for name in left)
    return of_stored(
        stored,
        targets,
        replace(columns, inputs=inputs),
        what,
        columns=groups,
        classes=classes,
        names=inputs,
        target_names=wanted,
        white=white,
        left_out=shown,
    )


def _numbered(
    found: Any, published: tuple[str, ...], columns: Columns, what: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Targets as numbers, and the names of their classes. Numbers of published names become those
    of the run's own.
    """
    if found.dtype.kind == "b":
        found, published = found.astype(np.int64), ("False", "True")
    if not published:
        return as_targets(found, columns, what)
    known = columns.classes or (published if columns.like is None else columns.like.classes)
    columns = replace(columns, classes=known)
    if found.dtype.kind not in "iu":
        return as_targets(found, columns, what)
    if not 0 <= int(found.min()) <= int(found.max()) < len(published):
        row = int(np.flatnonzero((found < 0) | (found >= len(published)))[0])
        raise ValueError(
            f"{what} has the class {found[row]} in row {row}, of 0 to {len(published) - 1}"
        )
    if known == published:
        return as_targets(found, columns, what)[0], known
    return as_targets([published[number] for number in found], columns, what)


def _joined(columns: list[np.ndarray], what: str) -> np.ndarray:
    """One column of targets as it is; several, of numbers, as (N, columns)."""
    if len(columns) == 1:
        return columns[0]
    if any(column.dtype.kind not in "biuf" or column.ndim > 1 for column in columns):
        raise ValueError(f"{what}: expected numbers in each of several target columns")
    return np.stack(columns, axis=1)


def _inputs(
    values: Mapping[str, np.ndarray], columns: Columns, what: str
) -> tuple[Any, float | None]:
    """One array of numbers (N, columns) or of images, or a list of texts, of pairs of texts, or of
    other things.
    """
    arrays, names = list(values.values()), list(values)
    if all(array.dtype.kind in "biuf" for array in arrays):
        if len(arrays) == 1 and arrays[0].ndim > 1:
            return arrays[0], None
        if lists := [name for name in names if values[name].ndim > 1]:
            raise ValueError(
                f"{what}: column {lists[0]!r} holds lists, others numbers: inputs= names those of "
                "one kind"
            )
        whole = np.empty((len(arrays[0]), len(arrays)), dtype=np.float32)
        with np.errstate(over="ignore"):  # too large for float32 is infinite, and found
            for place, array in enumerate(arrays):
                whole[:, place] = array
        if columns.transform is None:
            check_finite(whole, names, what)
        return whole, None
    if numbers := [name for name, array in values.items() if array.dtype.kind in "biuf"]:
        texts = {name: array for name, array in values.items() if name not in numbers}
        shown = ", ".join(f"{name} ({_first_text(array)})" for name, array in texts.items())
        raise ValueError(
            f"{what}: columns {shown} are no numbers, {', '.join(numbers)} are: inputs= names "
            "those of one kind"
        )
    if len(arrays) == 1 and (
        isinstance(arrays[0][0], dict | bytes) or hasattr(arrays[0][0], "convert")
    ):
        images = ((f"the image in row {row} of {what}", one) for row, one in enumerate(arrays[0]))
        return stack(images, columns, what)
    for name, array in values.items():
        if lacking := [row for row, one in enumerate(array) if one is None]:
            raise ValueError(
                f"{what}: column {name!r} has a missing value in row {lacking[0]}: fill it in, or "
                "leave the row out"
            )
    return list(arrays[0]) if len(arrays) == 1 else list(zip(*map(list, arrays), strict=True)), None


def _first_text(array: np.ndarray) -> str:
    """The first of some things that is no number, with its row."""
    for row, one in enumerate(array):
        try:
            float(one)
        except (TypeError, ValueError):
            return f"row {row}: {one!r}"
    return f"row 0: {array[0]!r}"


def _pair(inputs: Any, targets: Any, columns: Columns, what: str) -> Rows:
    inputs, targets = _array(inputs, f"{what} inputs"), _array(targets, f"{what} targets")
    stored = (
        {name: as_tensor(value, f"{what} inputs {name}") for name, value in inputs.items()}
        if isinstance(inputs, Mapping)
        else inputs
    )
    values = list(stored.values()) if isinstance(stored, dict) else [stored]
    wanted, classes = as_targets(targets, columns, what)
    sizes = {len(value) for value in values}
    if sizes != {len(wanted)} or not len(wanted):
        found = " and ".join(map(str, sorted(sizes)))
        none = " (no rows)" if sizes == {0} else ""
        raise ValueError(
            f"{what}: expected as many inputs as targets, one at least, got {found} and "
            f"{len(wanted)}{none}"
        )
    if isinstance(stored, dict):
        return Rows(
            inputs=Fields(stored),
            targets=wanted,
            prepare=Prepare.by(columns.transform, what),
            classes=classes,
        )
    return of_stored(stored, wanted, columns, what, classes=classes)


def _array(part: Any, what: str) -> Any:
    """The values of columns of pandas or pyarrow, by the rules of tables; anything else as it
    is.
    """
    if not hasattr(part, "iloc") and type(part).__module__.partition(".")[0] != "pyarrow":
        return part
    table = Table.of_columns(part, what)
    return _joined([table.values(name) for name in table.columns], what)


def _check_same_order(inputs: Any, targets: Any, what: str) -> None:
    """Raise ValueError for inputs and targets of pandas whose indexes have the same labels in
    another order.
    """
    if (
        not hasattr(targets, "iloc")
        or len(inputs) != len(targets)
        or inputs.index.equals(targets.index)
    ):
        return
    if inputs.index.is_unique and set(inputs.index) == set(targets.index):
        raise ValueError(
            f"{what}: inputs and targets have the same index in another order, so rows would get "
            "the targets of others: give targets.loc[inputs.index]"
        )


def _dataset(data: Any, columns: Columns, what: str) -> Rows:
    """A map-style Dataset of pairs, read once from the first to the last."""
    try:
        size = len(data)
    except (TypeError, NotImplementedError):
        raise ValueError(
            f"{what}={type(data).__name__} has no length: give a Dataset with __len__, or (inputs, "
            "targets)"
        ) from None
    if not size:
        raise ValueError(f"{what}={type(data).__name__} has no examples (no rows)")
    if what != "test":  # of test, which is public, each row is an example of its own
        check_distinct(data, f"{what}={type(data).__name__}")
    items = Items(data, what, RowDraws(columns.stream_of(what)))
    rows, drawn = items.read(size, columns.progress)
    return replace(_of_items(rows, columns, what), drawn=drawn)


def _of_items(rows: Sequence[Any], columns: Columns, what: str) -> Rows:
    """The rows of pairs that were read from a Dataset."""
    inputs, targets = [row[0] for row in rows], [row[1] for row in rows]
    texts = isinstance(targets[0], str)
    wanted, classes = as_targets(
        targets if texts else _stacked(targets, f"{what} targets"), columns, what
    )
    first = inputs[0]
    if isinstance(first, Mapping):
        if other := [number for number, item in enumerate(inputs) if not _has(item, first)]:
            raise ValueError(
                f"{what}[{other[0]}] has other inputs than {what}[0], {', '.join(map(str, first))}"
            )
        fields = {
            str(name): _stacked([item[name] for item in inputs], f"{what} inputs {name}")
            for name in first
        }
        return Rows(
            inputs=Fields(fields),
            targets=wanted,
            prepare=Prepare.by(columns.transform, what),
            classes=classes,
        )
    # images of Pillow
    if hasattr(first, "convert") and hasattr(first, "mode") and columns.transform is None:
        images, white = stack(
            ((f"the image {what}[{row}]", one) for row, one in enumerate(inputs)), columns, what
        )
        return of_stored(images, wanted, columns, what, classes=classes, white=white)
    stacked = isinstance(first, Tensor | np.ndarray | np.generic | int | float)
    stored = _stacked(inputs, f"{what} inputs") if stacked else inputs
    return of_stored(stored, wanted, columns, what, classes=classes)


@dataclass(frozen=True, eq=False)
class Items:
    """The items of a Dataset, each made with random draws of its own, so that no other example has
    a part in them.
    """

    data: Any
    what: str
    draws: RowDraws

    def read(self, size: int, progress: Progress) -> tuple[list[Any], bool]:
        """All items, and whether they draw. Raises ValueError for one that is another one after
        others were read.
        """
        items, tried = [], {0: b"", size // 2: b""}
        with self.draws.making():
            self._item(0, self.draws.next_key())
            self.draws.held = generators_in(self.data)  # those that the first item made as well
            for number in range(size):
                key = self.draws.next_key()
                items.append(self._item(number, key))
                if number in tried:
                    tried[number] = key
                if number % AT_ONCE == AT_ONCE - 1:
                    progress(f"{self.what}: {number + 1} of {size} examples read")
            for number, key in tried.items():
                check_same_item(items[number], self._item(number, key), f"{self.what}[{number}]")
            others = (self._item(number, self.draws.next_key()) for number in tried)
            drawn = not all(
                is_same_item(items[number], other)
                for number, other in zip(tried, others, strict=True)
            )
        return items, drawn

    def _item(self, number: int, key: bytes) -> Any:
        self.draws.begin(key)
        try:
            item = self.data[number]
        except Exception as error:
            raise ValueError(
                f"{self.what}[{number}] fails: {type(error).__name__}: {error}; give a Dataset "
                "whose __getitem__ takes 0 to len - 1"
            ) from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(
                f"{self.what}[{number}] is {type(item).__name__}: expected a pair (input, target); "
                "several inputs are a dict by the names of forward's arguments"
            )
        return in_own_memory(item[0]), in_own_memory(item[1])


def _has(item: Any, first: Mapping[Any, Any]) -> bool:
    return isinstance(item, Mapping) and item.keys() == first.keys()


def _stacked(items: Sequence[Any], what: str) -> Tensor:
    try:
        found = torch.stack([torch.as_tensor(item) for item in items])
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{what} cannot be stacked: {error}; give every example one shape"
        ) from None
    return (
        found.float()
        if found.dtype == torch.float64 and not isinstance(items[0], Tensor)
        else found
    )
