"""Data of a user's own in any form that ``fedlsg.Workload`` takes, as rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from fedlsg.rows import RowDraws, check_distinct
from fedlsg.rows.collate import in_own_memory
from fedlsg.rows.data_loader import dataset_of
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
    join_targets,
    number_targets,
    text_of,
)
from fedlsg.simulations.workloads.rows.image_folders import ImageFolder, read_image_folder, stack
from fedlsg.simulations.workloads.rows.loaders import is_saved, is_splits, load_saved
from fedlsg.simulations.workloads.rows.table_files import NoFileError, is_table_file, read_npz
from fedlsg.simulations.workloads.rows.transform import (
    AT_ONCE,
    BY_COLUMN,
    PROBE_ROWS,
    Prepare,
    check_same_item,
    is_same_item,
    prefers_texts,
)
from fedlsg.user_code.objects import generators_in

FORMS = (
    "expected (inputs, targets), a torch Dataset, a datasets.Dataset, a table, or the path of a "
    ".csv or .parquet file (.tsv, .jsonl, .npz), of a folder of images or of save_to_disk"
)

TABLE, TABLE_AND_TARGETS, FOLDER, PAIR, DATASET = (
    "a table",
    "a table with its targets apart",
    "a folder of images, which are the inputs",
    "a pair (inputs, targets)",
    "a Dataset of pairs",
)
NAMED_IN: Mapping[str, tuple[str, ...]] = {
    TABLE: ("inputs", "targets"),
    TABLE_AND_TARGETS: ("inputs",),
    FOLDER: ("targets",),
    PAIR: (),
    DATASET: (),
}
"""The arguments that name columns of data of each form; the others are refused."""


def form_of(data: Any) -> str:
    """The form of opened data."""
    if isinstance(data, Table):
        return TABLE if data.targets is None else TABLE_AND_TARGETS
    if isinstance(data, ImageFolder):
        return FOLDER
    return PAIR if isinstance(data, tuple | list) and len(data) == 2 else DATASET


def check_named(opened: Mapping[str, Any], columns: Columns) -> None:
    """Raise ValueError for a given argument that names columns, and that none of these data has a
    use for.
    """
    forms = {name: form_of(data) for name, data in opened.items()}
    for argument in dict.fromkeys(name for names in NAMED_IN.values() for name in names):
        names = getattr(columns, argument)
        if names is not None and not any(argument in NAMED_IN[form] for form in forms.values()):
            whose, form = next(iter(forms.items()))
            shown = repr(names[0]) if len(names) == 1 else list(names)
            raise ValueError(
                f"{argument}={shown} names columns, and {whose} is {form}: leave {argument} out"
            )


def read_splits(splits: Mapping[str, Any], columns: Columns) -> tuple[dict[str, Rows], Columns]:
    """Rows of train (where it is here) and of test, and how to read more rows of their form.

    Columns are matched by name, in the order of train, or of test alone. Classes and the scale of
    pixels are those of test, which is public. Raises ValueError as ``read_rows``, for tables of
    other columns, for names of columns in data without them, and for names of classes that are
    numbers.
    """
    opened = {name: open_data(data, name) for name, data in splits.items()}
    if len(opened) > 1:  # clients of a deployment may have data of another form than test
        check_named(opened, columns)
    if tables := [data for data in opened.values() if isinstance(data, Table)]:
        columns = _with_texts(tables[-1], agreed(tables, columns))
    test = read_rows(opened["test"], columns, "test")
    if columns.classes and not test.classes:
        raise ValueError(
            f"classes={list(columns.classes)} names classes of targets that are texts, and those "
            "of test are numbers: leave classes out, or give texts"
        )
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
    values = [table.values(name)[:PROBE_ROWS] for name in names]
    if any(value.dtype.kind not in "iuf" or value.ndim > 1 for value in values):
        return columns
    numbers = torch.from_numpy(np.stack(values, axis=1).astype(np.float32))
    texts = prefers_texts(
        columns.transform, numbers, [list(map(str, value.tolist())) for value in values]
    )
    return replace(columns, texts=(*columns.texts, *names)) if texts else columns


def unwrapped(data: Any, what: str) -> Any:
    """The Dataset of a DataLoader, the split of a ``DatasetDict`` with the argument's name, what
    ``save_to_disk`` has saved; other data as they are.
    """
    if isinstance(data, str | Path) and is_saved(path := Path(data).expanduser()):
        data = load_saved(path)
    if isinstance(data, DataLoader):
        return dataset_of(data, what)
    if not is_splits(data):
        return data
    split = "test" if what.partition("[")[0] == "test" else "train"
    if split not in data:
        raise ValueError(
            f"{what} has the splits {', '.join(data)}, and none named {split!r}: give one of them, "
            f"such as data[{next(iter(data))!r}]"
        )
    return data[split]


def open_data(data: Any, what: str) -> Any:
    """Data with columns as a ``Table``, a .npz file as a pair, and a folder of images as an
    ``ImageFolder``, of a path, too; other data as they are.
    """
    data = unwrapped(data, what)
    if isinstance(data, str | Path):
        return _open_path(Path(data).expanduser(), what)
    if (
        isinstance(data, tuple | list)
        and len(data) == 2
        and hasattr(data[0], "iloc")
        and hasattr(data[0], "columns")
    ):
        check_same_order(data[0], data[1], what)
        return replace(Table.of(data[0], f"{what} inputs"), targets=data[1])
    return Table.of(data, what) if is_table(data) else data


def _open_path(path: Path, what: str) -> Any:
    """Raises ValueError for what is neither a file of rows nor a folder."""
    if is_table_file(path):
        return Table.of_file(path, what)
    called = f"{what}={str(path)!r}"
    if path.is_dir():
        return ImageFolder.of(path, called)
    if not path.exists():
        raise NoFileError(f"{called}: there is no such file or folder (from {Path.cwd()})")
    if path.suffix.lower() == ".npz":
        return read_npz(path)
    raise ValueError(f"{called}: {FORMS}")


def take(data: Any, rows: np.ndarray, what: str) -> Any:
    """These rows of opened data, in this order. Raises ValueError for what has no rows by
    number.
    """
    if isinstance(data, Table | ImageFolder):
        return data.take(rows)
    if isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data[0], tuple):
        return tuple(_taken(part, rows) for part in data)
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise ValueError(
            f"holdout without test chooses rows of tables, arrays and Datasets, and {what} is "
            f"{type(data).__name__}: give test="
        )
    return Subset(data, rows.tolist())


def _taken(part: Any, rows: np.ndarray) -> Any:
    if isinstance(part, Mapping):
        return {name: _taken(value, rows) for name, value in part.items()}
    if hasattr(part, "iloc"):
        return part.iloc[rows]
    return part[rows] if hasattr(part, "shape") else [part[row] for row in rows.tolist()]


def read_rows(data: Any, columns: Columns, what: str) -> Rows:
    """The rows of ``data``; ``what`` names the argument in errors: "train" or "test".

    Raises ValueError for data of another form, OSError for a path that cannot be read.
    """
    data = open_data(data, what)
    if isinstance(data, Table):
        return _table(data, columns)
    if isinstance(data, ImageFolder):
        return read_image_folder(data, columns, what)
    if isinstance(data, tuple | list) and len(data) == 2:
        return _pair(data[0], data[1], columns, what)
    if hasattr(data, "__getitem__") and not isinstance(data, Tensor | np.ndarray | Mapping):
        return _dataset(data, columns, what)
    if hasattr(data, "__iter__") and not isinstance(data, Tensor | np.ndarray | Mapping):
        raise ValueError(
            f"{what}={type(data).__name__} has no length: a private step draws examples by number; "
            "give a Dataset with __len__ and __getitem__, or (inputs, targets)"
        )
    raise ValueError(f"{what}={type(data).__name__}: {FORMS}")


def _table(table: Table, columns: Columns) -> Rows:
    """Rows of a table: the target column, the input columns, and the columns that may form
    clients.
    """
    what, inputs = table.what, find_inputs(table, columns)
    wanted = () if table.targets is not None else columns.targets or (LABEL,)
    table = table.as_texts(
        [
            one
            for one in columns.texts
            if (one in (*inputs, *wanted) or (table.is_csv and one in table.columns))
            and not table.is_text(one)
        ]
    )
    values = {name: table.values(name) for name in (*inputs, *wanted)}
    values_of_targets = (
        array_of(table.targets, f"{what} targets")
        if not wanted
        else join_targets([values[name] for name in wanted], what)
    )
    published = table.published.get(wanted[0], ()) if len(wanted) == 1 else ()
    targets, classes = (
        number_targets(values_of_targets, published, columns, what)
        if wanted
        else as_targets(values_of_targets, columns, what)
    )
    if len(targets) != table.size:
        raise ValueError(
            f"{what}: expected as many inputs as targets, got {table.size} and {len(targets)}"
        )
    stored, how = _inputs(
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
    if (
        not wanted
        and getattr(table.targets, "name", None) is not None
        and np.ndim(values_of_targets) == 1
    ):
        groups.setdefault(str(table.targets.name), text_of(np.asarray(values_of_targets)))
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
        left_out=shown,
        **how,
    )


def _inputs(
    values: Mapping[str, np.ndarray], columns: Columns, what: str
) -> tuple[Any, dict[str, Any]]:
    """One array of numbers (N, columns) or of images; or a list of texts or other things, of tuples
    of them for several columns. Numbers among them may be missing (NaN), and things (None).
    """
    arrays, names = list(values.values()), list(values)
    numbers = [name for name in names if values[name].dtype.kind in "biuf"]
    if len(numbers) == len(names) == 1 and arrays[0].ndim > 1:
        return arrays[0], {}
    if len(numbers) == len(names) and all(array.ndim == 1 for array in arrays):
        whole = np.empty((len(arrays[0]), len(arrays)), dtype=np.float32)
        with np.errstate(over="ignore"):  # too large for float32 is infinite, and found
            for place, array in enumerate(arrays):
                whole[:, place] = array
        if columns.transform is None:
            check_finite(whole, names, what)
        return whole, {}
    if numbers and columns.transform is None:
        raise ValueError(_several_kinds(values, numbers, what))
    if len(arrays) == 1 and (
        isinstance(arrays[0][0], dict | bytes) or hasattr(arrays[0][0], "convert")
    ):
        images = (
            (f"the image in row {row} of {what}", row_array)
            for row, row_array in enumerate(arrays[0])
        )
        return stack(images, columns, what)
    for name, array in values.items():
        lacking = (
            [] if numbers else [row for row, row_array in enumerate(array) if row_array is None]
        )
        if lacking:
            raise ValueError(
                f"{what}: column {name!r} has a missing value in row {lacking[0]}: fill it in, or "
                "leave the row out"
            )
    things = [array.tolist() if array.ndim == 1 else list(array) for array in arrays]
    return things[0] if len(things) == 1 else list(zip(*things, strict=True)), {}


def _several_kinds(values: Mapping[str, np.ndarray], numbers: Sequence[str], what: str) -> str:
    """What is wrong with columns that are not all numbers, and what to do."""
    others = [name for name in values if name not in numbers]
    if others:
        shown = ", ".join(f"{name} ({_first_text(values[name])})" for name in others)
        kinds = f"columns {shown} are no numbers, {', '.join(numbers)} are"
    else:
        lists = next(name for name in numbers if values[name].ndim > 1)
        kinds = f"column {lists!r} holds lists, others numbers"
    return f"{what}: {kinds}: {BY_COLUMN}; inputs= names columns of one kind, to use these alone"


def _first_text(array: np.ndarray) -> str:
    """The first of some things that is not a number, with its row."""
    for row, item in enumerate(array):
        try:
            float(item)
        except (TypeError, ValueError):
            return f"row {row}: {item!r}"
    return f"row 0: {array[0]!r}"


def _pair(inputs: Any, targets: Any, columns: Columns, what: str) -> Rows:
    inputs, targets = array_of(inputs, f"{what} inputs"), array_of(targets, f"{what} targets")
    stored = (
        {name: as_tensor(value, f"{what} inputs {name}") for name, value in inputs.items()}
        if isinstance(inputs, Mapping)
        else inputs
    )
    values = list(stored.values()) if isinstance(stored, dict) else [stored]
    wanted, classes = as_targets(targets, columns, what)
    sizes = {len(value) for value in values}
    if sizes != {len(wanted)} or not len(wanted):
        lengths = " and ".join(map(str, sorted(sizes)))
        none = " (no rows)" if sizes == {0} else ""
        raise ValueError(
            f"{what}: expected as many inputs as targets, and one row at least, got {lengths} and "
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


def array_of(part: Any, what: str) -> Any:
    """The values of columns of pandas or pyarrow, by the rules of tables; anything else as it
    is.
    """
    if not hasattr(part, "iloc") and type(part).__module__.partition(".")[0] != "pyarrow":
        return part
    table = Table.of_columns(part, what)
    return join_targets([table.values(name) for name in table.columns], what)


def check_same_order(inputs: Any, targets: Any, what: str, called: str = "targets") -> None:
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
            f"{what}: inputs and {called} have the same index in another order, so rows would get "
            f"the {called} of others: give {called}.loc[inputs.index]"
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
        images, how = stack(
            ((f"the image {what}[{row}]", one) for row, one in enumerate(inputs)), columns, what
        )
        return of_stored(images, wanted, columns, what, classes=classes, **how)
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
        stacked = torch.stack([torch.as_tensor(item) for item in items])
    except (RuntimeError, TypeError, ValueError) as error:
        texts = any(isinstance(item, str) for item in items)
        fix = "make numbers of texts in __getitem__" if texts else "give every example one shape"
        raise ValueError(f"{what} cannot be stacked: {error}; {fix}") from None
    return (
        stacked.float()
        if stacked.dtype == torch.float64 and not isinstance(items[0], Tensor)
        else stacked
    )
