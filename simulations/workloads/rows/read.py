"""Data in any form that ``fedlsg.Workload`` takes are opened, and read as ``Rows``."""

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
    Table,
    agree_inputs,
    check_finite,
    find_inputs,
    is_table,
    join_targets,
    number_targets,
    target_names,
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
    """Raise ValueError for an argument that names columns if none of these data has them."""
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
    """Rows of test, and of train if it is among ``splits``; and how to read more rows like them.

    Columns are matched by name, in the order of train, or of test alone. Classes and the scale of
    pixels are those of test, which is public.
    Raises ValueError as ``read_rows``, for tables of other columns, for names of columns in data
    without columns, and for ``classes=`` with targets that are numbers.
    """
    opened = {name: open_data(data, name) for name, data in splits.items()}
    if len(opened) > 1:  # clients of a deployment may have data of another form than test
        check_named(opened, columns)
    if tables := [data for data in opened.values() if isinstance(data, Table)]:
        columns = _with_texts(tables[-1], agree_inputs(tables, columns))
    test = read_rows(opened["test"], columns, "test")
    if columns.classes and not test.classes:
        raise ValueError(
            f"classes={list(columns.classes)} names classes of targets that are texts, and those "
            "of test are numbers: leave classes out, or give texts"
        )
    columns = replace(columns, like=test)
    rows = {"test": test}
    if "train" in opened:
        rows["train"] = read_rows(opened["train"], columns, "train")
    return rows, columns


def _with_texts(table: Table, columns: Columns) -> Columns:
    """``columns`` with all inputs as texts, if the transform takes texts that look like numbers.

    Only a CSV file does not say which of both they are.
    """
    names = columns.inputs or ()
    if (
        columns.transform is None
        or not table.is_csv
        or any(name in columns.texts for name in names)
    ):
        return columns
    values = [table.input_values(name)[:PROBE_ROWS] for name in names]
    if any(value.dtype.kind not in "iuf" or value.ndim > 1 for value in values):
        return columns
    numbers = torch.from_numpy(np.stack(values, axis=1).astype(np.float32))
    texts = [list(map(str, value.tolist())) for value in values]
    if prefers_texts(columns.transform, numbers, texts):
        return replace(columns, texts=(*columns.texts, *names))
    return columns


def unwrapped(data: Any, what: str) -> Any:
    """Data without what holds them; other data as they are.

    That is the Dataset of a DataLoader, what ``save_to_disk`` has saved, and the split of a
    ``DatasetDict`` that has the name of the argument, ``what``.
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
    """Opened data: a ``Table``, an ``ImageFolder``, a pair (inputs, targets), or a Dataset.

    Data with columns, and files of them, become a table. A .npz file becomes a pair, and the path
    of a folder of images an image folder. Other data stay as they are.
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
    """Opened data of a path. Raises ValueError if it is neither a file of rows nor a folder."""
    if is_table_file(path):
        return Table.of_file(path, what)
    title = f"{what}={str(path)!r}"
    if path.is_dir():
        return ImageFolder.of(path, title)
    if not path.exists():
        raise NoFileError(f"{title}: there is no such file or folder (from {Path.cwd()})")
    if path.suffix.lower() == ".npz":
        return read_npz(path)
    raise ValueError(f"{title}: {FORMS}")


def take(data: Any, rows: np.ndarray, what: str) -> Any:
    """These rows of opened data, in this order. Raises ValueError for data that are not indexed."""
    if isinstance(data, Table | ImageFolder):
        return data.take(rows)
    if isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data[0], tuple):
        return tuple(_take_part(part, rows) for part in data)
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise ValueError(
            f"holdout without test chooses rows of tables, arrays and Datasets, and {what} is "
            f"{type(data).__name__}: give test="
        )
    return Subset(data, rows.tolist())


def _take_part(part: Any, rows: np.ndarray) -> Any:
    """These rows of the inputs, or of the targets, of a pair."""
    if isinstance(part, Mapping):
        return {name: _take_part(value, rows) for name, value in part.items()}
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
    """Rows of a table: the target columns, the input columns, and those that may form clients."""
    what = table.what
    inputs, wanted = find_inputs(table, columns), target_names(table, columns)
    columns = replace(columns, inputs=inputs)
    texts = []
    for name in columns.texts:
        is_read = name in (*inputs, *wanted) or (table.is_csv and name in table.columns)
        if is_read and not table.is_text(name):
            texts.append(name)
    table = table.as_texts(texts)
    values = {}
    for name in (*inputs, *wanted):
        is_code = name in columns.texts or wanted == (name,)  # several targets are numbers
        values[name] = table.values(name) if is_code else table.input_values(name)
    if wanted:
        target_values = join_targets([values[name] for name in wanted], what)
        published = table.published.get(wanted[0], ()) if len(wanted) == 1 else ()
        targets, classes = number_targets(target_values, published, columns, what)
    else:
        target_values = array_of(table.targets, f"{what} targets")
        targets, classes = as_targets(target_values, columns, what)
    if len(targets) != table.size:
        raise ValueError(
            f"{what}: expected as many inputs as targets, got {table.size} and {len(targets)}"
        )
    stored, how = _inputs({name: values[name] for name in inputs}, columns, what)
    groups = {}
    for name in table.columns:
        column = values[name] if name in values else table.values(name)
        if column.ndim == 1 and (name in (*columns.more, *wanted) or name not in inputs):
            groups[name] = text_of(column)
    series_name = getattr(table.targets, "name", None)
    if not wanted and series_name is not None and np.ndim(target_values) == 1:
        groups.setdefault(str(series_name), text_of(np.asarray(target_values)))
    if lists := [name for name in columns.more if name in table.columns and name not in groups]:
        raise ValueError(
            f"{what}: column {lists[0]!r} holds lists: give each row its client, a text or a number"
        )
    left = tuple(name for name in table.columns if name not in (*inputs, *wanted, *columns.more))
    shown = tuple(f"{name!r} (an index)" if name in table.indexes else repr(name) for name in left)
    return of_stored(
        stored,
        targets,
        columns,
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
    """The inputs of a table as they are stored, and more fields of ``Rows``.

    They are one array of numbers (N, columns) or of images; or a list of texts or other things, of
    tuples of them for several columns. If a transform makes numbers of them, numbers may be missing
    (NaN). So may things next to numbers (None).
    """
    arrays = list(values.values())
    first = arrays[0]
    numbers = [name for name, array in values.items() if array.dtype.kind in "biuf"]
    if len(numbers) == len(arrays) == 1 and first.ndim > 1:
        return first, {}
    if len(numbers) == len(arrays) and all(array.ndim == 1 for array in arrays):
        whole = np.empty((len(first), len(arrays)), dtype=np.float32)
        with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite
            for place, array in enumerate(arrays):
                whole[:, place] = array
        if columns.transform is None:
            check_finite(whole, numbers, what)
        return whole, {}
    if numbers and columns.transform is None:
        raise ValueError(_several_kinds(values, numbers, what))
    if len(arrays) == 1 and (isinstance(first[0], dict | bytes) or hasattr(first[0], "convert")):
        images = ((f"the image in row {row} of {what}", image) for row, image in enumerate(first))
        return stack(images, columns, what)
    if not numbers:
        for name, array in values.items():
            for row, thing in enumerate(array):
                if thing is None:
                    raise ValueError(
                        f"{what}: column {name!r} has a missing value in row {row}: fill it in, or "
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
    """The first thing of a column that is not a number, with its row; else the first one."""
    for row, item in enumerate(array):
        try:
            float(item)
        except (TypeError, ValueError):
            return f"row {row}: {item!r}"
    return f"row 0: {array[0]!r}"


def _pair(inputs: Any, targets: Any, columns: Columns, what: str) -> Rows:
    """Rows of a pair (inputs, targets); inputs may be a dict of arrays."""
    inputs, targets = array_of(inputs, f"{what} inputs"), array_of(targets, f"{what} targets")
    fields = {"": inputs}
    if isinstance(inputs, Mapping):
        fields = {name: as_tensor(value, f"{what} inputs {name}") for name, value in inputs.items()}
    numbers, classes = as_targets(targets, columns, what)
    sizes = set(map(len, fields.values()))
    if sizes != {len(numbers)} or not len(numbers):
        lengths = " and ".join(map(str, sorted(sizes)))
        none = " (no rows)" if sizes == {0} else ""
        raise ValueError(
            f"{what}: expected as many inputs as targets, and one row at least, got {lengths} and "
            f"{len(numbers)}{none}"
        )
    if isinstance(inputs, Mapping):
        return _rows_of_fields(fields, numbers, columns, what, classes)
    return of_stored(inputs, numbers, columns, what, classes=classes)


def _rows_of_fields(
    fields: Mapping[str, Tensor],
    targets: Tensor,
    columns: Columns,
    what: str,
    classes: tuple[str, ...],
) -> Rows:
    """Rows whose inputs are several tensors by name."""
    return Rows(
        inputs=Fields(fields),
        targets=targets,
        prepare=Prepare.by(columns.transform, what),
        classes=classes,
    )


def array_of(part: Any, what: str) -> Any:
    """The values of columns of pandas or pyarrow, by the rules of tables; other data as they
    are.
    """
    if not hasattr(part, "iloc") and type(part).__module__.partition(".")[0] != "pyarrow":
        return part
    table = Table.of_columns(part, what)
    return join_targets([table.values(name) for name in table.columns], what)


def check_same_order(inputs: Any, targets: Any, what: str, noun: str = "targets") -> None:
    """Raise ValueError if inputs and targets of pandas have one index in different orders.

    what, noun: the argument, and what ``targets`` are, in the message.
    """
    if (
        not hasattr(targets, "iloc")
        or len(inputs) != len(targets)
        or inputs.index.equals(targets.index)
    ):
        return
    if inputs.index.is_unique and set(inputs.index) == set(targets.index):
        raise ValueError(
            f"{what}: inputs and {noun} have the same index in another order, so rows would get "
            f"the {noun} of others: give {noun}.loc[inputs.index]"
        )


def _dataset(data: Any, columns: Columns, what: str) -> Rows:
    """Rows of a map-style Dataset of pairs, read once from the first to the last."""
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
    pairs, drawn = items.read(size, columns.progress)
    return replace(_of_items(pairs, columns, what), drawn=drawn)


def _of_items(pairs: Sequence[Any], columns: Columns, what: str) -> Rows:
    """Rows of the pairs (input, target) that were read from a Dataset."""
    inputs: list[Any] = [item for item, _ in pairs]
    targets: Any = [target for _, target in pairs]
    if not isinstance(targets[0], str):
        targets = _stack_items(targets, f"{what} targets")
    numbers, classes = as_targets(targets, columns, what)
    first = inputs[0]
    if isinstance(first, Mapping):
        for number, item in enumerate(inputs):
            if not isinstance(item, Mapping) or item.keys() != first.keys():
                raise ValueError(
                    f"{what}[{number}] has other inputs than {what}[0], "
                    f"{', '.join(map(str, first))}"
                )
        fields = {
            str(name): _stack_items([item[name] for item in inputs], f"{what} inputs {name}")
            for name in first
        }
        return _rows_of_fields(fields, numbers, columns, what, classes)
    is_image = hasattr(first, "convert") and hasattr(first, "mode")  # of Pillow
    if is_image and columns.transform is None:
        images = ((f"the image {what}[{number}]", image) for number, image in enumerate(inputs))
        pixels, how = stack(images, columns, what)
        return of_stored(pixels, numbers, columns, what, classes=classes, **how)
    if isinstance(first, Tensor | np.ndarray | np.generic | int | float):
        stacked = _stack_items(inputs, f"{what} inputs")
        return of_stored(stacked, numbers, columns, what, classes=classes)
    return of_stored(inputs, numbers, columns, what, classes=classes)


@dataclass(frozen=True, eq=False)
class Items:
    """The items of a Dataset, each made with random draws that depend on no other example.

    data: the Dataset.
    what: the argument that it was given as.
    draws: seeds the random generators before each item.
    """

    data: Any
    what: str
    draws: RowDraws

    def read(self, size: int, progress: Progress) -> tuple[list[Any], bool]:
        """All items, and whether they differ with their draws.

        The first and the middle item are made again after all others. Raises ValueError if one is
        then different although its draws are the same.
        """
        items: list[Any] = []
        key_of_tried = {0: b"", size // 2: b""}
        with self.draws.making():
            self._item(0, self.draws.next_key())
            self.draws.held = generators_in(self.data)  # with those that the first item makes
            for number in range(size):
                key = self.draws.next_key()
                items.append(self._item(number, key))
                if number in key_of_tried:
                    key_of_tried[number] = key
                if number % AT_ONCE == AT_ONCE - 1:
                    progress(f"{self.what}: {number + 1} of {size} examples read")
            for number, key in key_of_tried.items():
                check_same_item(items[number], self._item(number, key), f"{self.what}[{number}]")
            drawn = not all(
                is_same_item(items[number], self._item(number, self.draws.next_key()))
                for number in key_of_tried
            )
        return items, drawn

    def _item(self, number: int, key: bytes) -> Any:
        """Item ``number``, a pair in memory of its own, with the draws of ``key``."""
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


def _stack_items(items: Sequence[Any], what: str) -> Tensor:
    """Numbers or arrays of all items as one tensor; float64 of Python and numpy as float32."""
    try:
        stacked = torch.stack([torch.as_tensor(item) for item in items])
    except (RuntimeError, TypeError, ValueError) as error:
        texts = any(isinstance(item, str) for item in items)
        fix = "make numbers of texts in __getitem__" if texts else "give every example one shape"
        raise ValueError(f"{what} cannot be stacked: {error}; {fix}") from None
    if stacked.dtype == torch.float64 and not isinstance(items[0], Tensor):
        return stacked.float()
    return stacked
