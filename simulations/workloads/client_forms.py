"""Clients in the forms in which people have them; each becomes ``Parts``, the client of each row.

    train=       a list or dict of data sets, one a client     -> ``open_clients``
    partition=   row numbers by client, an owner for each row,
                 Subsets, a partitioner of flwr-datasets       -> ``given_parts``

Several data sets become one, and the owners of its rows: one reader reads it, once. An epsilon
holds for a row that comes once, so a row of two clients is refused in every form: numbers of rows
by ``check_disjoint``, data sets by the origin of their rows (``check_once``).
"""

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from fedlsg.rows.data_loader import dataset_of
from fedlsg.rows.origin import check_parts, own_copy, parts_of, parts_of_inputs
from fedlsg.rows.row_memory import RowParts, earlier_rows, joined
from fedlsg.simulations.workloads.base.parts import Parts, check_disjoint, distinct_names, label_of
from fedlsg.simulations.workloads.base.split import hold_out
from fedlsg.simulations.workloads.partition import parts_of_owners
from fedlsg.simulations.workloads.rows import Rows
from fedlsg.simulations.workloads.rows.column_memory import parts_of_table
from fedlsg.simulations.workloads.rows.columns import LABEL, Table, is_table, text_of
from fedlsg.simulations.workloads.rows.image_folders import ImageFolder
from fedlsg.simulations.workloads.rows.loaders import is_splits
from fedlsg.simulations.workloads.rows.read import (
    array_of,
    check_same_order,
    open_data,
    take,
    unwrapped,
)

ROW = "fedlsg: number of the row"
"""The column by which a partitioner's rows are found again."""


# -- train=: a data set for each client


def data_sets(data: Any, test: Any = None) -> tuple[tuple[str, ...] | None, list[Any]] | None:
    """The data sets of clients, and their names where a dict has them; None for one data set.

    A dict of data sets has one a client, but for splits. So has a list, where no other reading is
    possible: two arrays, or two tables without a common column, are inputs and targets, and a list
    of pairs is one of examples unless their inputs have one dimension more than those of ``test``.
    """
    data = _frames_of_groups(data)
    if isinstance(data, Mapping):
        if is_splits(data) or not _all_data_sets(data.values()):
            return None
        return distinct_names(list(data), "train"), list(data.values())
    if not isinstance(data, list | tuple) or not _all_data_sets(data):
        return None
    if (
        isinstance(data, tuple)
        and len(data) == 2
        and any(isinstance(data_set, list) for data_set in data)
    ):
        return None
    frames = [data_set for data_set in data if hasattr(data_set, "iloc")]
    if len(data) == 2 and len(frames) == 2:  # else (inputs, targets)
        shared = set(frames[0].columns) & set(frames[1].columns)
        return (
            (None, list(data)) if shared and (isinstance(data, list) or LABEL in shared) else None
        )
    pairs = [data_set for data_set in data if _is_pair(data_set)]
    mixed = isinstance(data, list) and 0 < len(pairs) < len(data)  # a message names the two forms
    return (None, list(data)) if not pairs or mixed or _pairs_of_rows(pairs, test) else None


def _frames_of_groups(data: Any) -> Any:
    """A dict of the frames of ``frame.groupby(column)`` or ``group_by``; other data as they are."""
    if "GroupBy" not in type(data).__name__ or not hasattr(data, "__iter__"):
        return data
    frames = {
        name[0] if isinstance(name, tuple) and len(name) == 1 else name: frame
        for name, frame in data
    }
    if other := [type(one).__name__ for one in frames.values() if not is_table(one)]:
        raise ValueError(
            f"train={type(data).__name__} has a {other[0]} a client: group the whole frame, as "
            "frame.groupby(column)"
        )
    size, grouped = len(getattr(data, "obj", ())), sum(map(len, frames.values()))
    if grouped < size:
        raise ValueError(
            f"train={type(data).__name__} leaves out {size - grouped} of {size} rows, whose group "
            "is missing: fill in the column, or leave those rows out of the frame"
        )
    return frames


def _all_data_sets(data: Any) -> bool:
    """Whether all are data sets, one at least; ``[]`` is one without rows."""
    empty = [isinstance(data_set, list | tuple) and not len(data_set) for data_set in data]
    return not all(empty) and all(
        none or _is_data_set(data_set) for none, data_set in zip(empty, data, strict=True)
    )


def _is_data_set(one: Any) -> bool:
    if isinstance(one, list | tuple):
        return _is_pair(one) or _is_list_of_examples(one)
    if isinstance(one, Mapping):
        return is_splits(one)
    return isinstance(one, str | Path | Dataset | DataLoader) or is_table(one)


def _is_pair(one: Any) -> bool:
    """Whether it is (inputs, targets) of several rows."""
    return (
        isinstance(one, list | tuple)
        and len(one) == 2
        and _is_array(one[1])
        and (_is_array(one[0]) or _is_fields(one[0]))
    )


def _is_list_of_examples(one: Any) -> bool:
    """Whether it is a list of examples, each (input, target)."""
    return isinstance(one, list) and all(isinstance(row, tuple) and len(row) == 2 for row in one)


def _is_array(part: Any) -> bool:
    """Whether a part of a pair has a row an example."""
    shape = getattr(part, "shape", None)
    return bool(len(shape)) if shape is not None else isinstance(part, list)


def _is_fields(part: Any) -> bool:
    return isinstance(part, Mapping) and bool(part) and all(map(_is_array, part.values()))


def _shape(inputs: Any) -> tuple[int, ...]:
    first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    return (len(first),) if isinstance(first, list) else tuple(first.shape)


def _pairs_of_rows(pairs: Sequence[Any], test: Any) -> bool:
    """Whether pairs are the data of clients, and not examples."""
    shapes = [_shape(pair[0]) for pair in pairs]
    if _is_pair(test):
        return len(shapes[0]) == len(_shape(test[0]))
    return len(set(shapes)) > 1 and all(
        shape[0] == len(pair[1]) for shape, pair in zip(shapes, pairs, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class Opened:
    """Opened splits, the clients that train has by itself, and the rows of train that are not held
    out for a test.
    """

    splits: Mapping[str, Any]
    parts: Parts | None
    kept: np.ndarray | None = None


def open_splits(given: Mapping[str, Any], name: str, holdout: float | None) -> Opened:
    """Train (where it is here) and test, opened. Without test, a share of train is its test split.

    Held-out rows are chosen before anything is read: classes and scales are those of test, and
    rows that are trained on decide neither. Raises ValueError without test and holdout.
    """
    test = given.get("test")
    opened = {split: open_clients(data, split, test) for split, data in given.items()}
    splits, parts = {split: data for split, (data, _) in opened.items()}, None
    if "train" in opened:
        parts = opened["train"][1]
    if test is not None:
        return Opened(splits=splits, parts=parts)
    if holdout is None or "train" not in splits:
        raise ValueError(
            "test is missing: give test=, or holdout=0.2 in a simulation, which takes that share "
            "of the rows of train as test rows"
        )
    train = splits["train"]
    kept, held = (rows.numpy() for rows in hold_out(_size(train, "train"), holdout, name))
    return Opened(
        splits={"train": take(train, kept, "train"), "test": take(train, held, "train")},
        parts=None if parts is None else parts.pick(kept),
        kept=kept,
    )


def open_clients(data: Any, what: str, test: Any = None) -> tuple[Any, Parts | None]:
    """Opened data, for the reader; of several data sets one, with the clients that have its rows.

    Raises ValueError, naming the clients, for a row of two of them, for a client without rows, and
    for data sets of several kinds. Of one data set, for a row that comes twice.
    """
    several = data_sets(data, test)
    if several is None:
        data = unwrapped(data, what)
        rows = open_data(data, what)
        if what == "train" and (isinstance(rows, Table) or _is_pair(rows)):  # else as it is read
            check_parts(_parts_of_rows(data, rows), what)
        return rows, None
    names, items = several
    called = [f"{what}[{label_of(client, names)}]" for client in range(len(items))]
    for client, (item, call) in enumerate(zip(items, called, strict=True)):
        if isinstance(item, list | tuple) and not len(item):
            raise ValueError(
                f"{call}: client {label_of(client, names)} has no rows: leave that client out"
            )
    bare = [unwrapped(item, call) for item, call in zip(items, called, strict=True)]
    for item, call in zip(bare, called, strict=True):
        if isinstance(item, str | Path) and Path(item).expanduser().is_dir():
            raise ValueError(
                f"{call}={str(item)!r}: the data of one client are a table, a .npz file or a "
                "Dataset; images of several clients are one folder, whose metadata.csv has a "
                "column for the client"
            )
    opened = [open_data(item, call) for item, call in zip(bare, called, strict=True)]
    sizes = [_size(rows, call) for rows, call in zip(opened, called, strict=True)]
    if what == "train":  # test, which is public, may have a row twice
        check_once(bare, opened, called)
    parts = Parts(np.repeat(np.arange(len(sizes)), sizes), len(sizes), names)
    return _joined(opened, called, what), parts


def _size(one: Any, called: str) -> int:
    if isinstance(one, Table | ImageFolder):
        return one.size
    try:
        size = len(one[1] if _is_pair(one) else one)
    except (TypeError, NotImplementedError):
        raise ValueError(
            f"{called}={type(one).__name__} has no length: give a Dataset with __len__"
        ) from None
    if not size:
        raise ValueError(f"{called} has no rows: leave that client out")
    return size


def _joined(opened: Sequence[Any], called: Sequence[str], what: str) -> Any:
    """One data set with the rows of all, in order."""
    kinds = dict.fromkeys(_kind(rows) for rows in opened)
    if len(kinds) > 1:
        first = [_kind(rows) for rows in opened].index(list(kinds)[1])
        raise ValueError(
            f"{called[0]} is a {_kind(opened[0])}, {called[first]} a {_kind(opened[first])}: give "
            "the data of all clients in one form"
        )
    if isinstance(opened[0], Table):
        table = Table.joined(opened, what)
        if all(rows.targets is None for rows in opened):
            return table
        targets = [array_of(rows.targets, f"{what} targets") for rows in opened]
        return replace(table, targets=_values_joined(targets, "targets", called))
    if _is_pair(opened[0]):
        return tuple(
            _values_joined([pair[side] for pair in opened], name, called)
            for side, name in enumerate(("inputs", "targets"))
        )
    return ConcatDataset(opened)


def _kind(one: Any) -> str:
    if isinstance(one, Table):
        return "table" if one.targets is None else "pair of a table and its targets"
    return "pair (inputs, targets)" if _is_pair(one) else "Dataset"


def _values_joined(values: Sequence[Any], what: str, called: Sequence[str]) -> Any:
    """Arrays, tensors, lists, or dicts of them, one after the other. ``called``: each client's
    data.
    """
    values = [array_of(value, f"{call} {what}") for value, call in zip(values, called, strict=True)]
    first = values[0]
    if isinstance(first, Mapping):
        if other := [one for one in values if not _has_keys(one, first)]:
            keys = list(other[0]) if isinstance(other[0], Mapping) else type(other[0]).__name__
            raise ValueError(
                f"{what} of the clients: expected {', '.join(map(str, first))} of all, got {keys}"
            )
        return {
            name: _values_joined([one[name] for one in values], f"{what} {name}", called)
            for name in first
        }
    if all(isinstance(value, list) for value in values):
        return list(chain.from_iterable(values))
    shapes = [tuple(value.shape[1:]) if hasattr(value, "shape") else None for value in values]
    for shape, call in zip(shapes, called, strict=True):
        if None not in (shape, shapes[0]) and shape != shapes[0]:
            raise ValueError(
                f"{what} of the clients do not fit together: a row of {called[0]} has the shape "
                f"{shapes[0]}, one of {call} {shape}: give all clients the same columns, in one "
                "order, or images of one size"
            )
    try:
        if all(isinstance(value, Tensor) for value in values):
            return torch.cat([value.detach() for value in values])
        arrays = [np.asarray(value) for value in values]
        if len({array.dtype.kind in "OUS" for array in arrays}) > 1:
            raise TypeError("some are texts, others numbers")
        return np.concatenate(arrays)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(
            f"{what} of the clients do not fit together: {error}; give all one kind and one shape"
        ) from None


def _has_keys(one: Any, first: Mapping[Any, Any]) -> bool:
    return isinstance(one, Mapping) and one.keys() == first.keys()


def check_once(bare: Sequence[Any], opened: Sequence[Any], called: Sequence[str]) -> None:
    """Raise ValueError, naming the clients, for a row that two data sets hold, or one twice.

    A row is known by the place of its inputs in memory or in a mapped file, in a Dataset through
    ``Subset``, in a frame that was cut from another one by its label in the index. Equal values
    alone are not refused: two people may have them.
    """
    files = [Path(one).expanduser() for one in bare if isinstance(one, str | Path)]
    known = [file.stat()[1:3] if file.exists() else file for file in files]  # inode and device
    if twice := [file for place, file in enumerate(files) if known[place] in known[:place]]:
        raise ValueError(
            f"{', '.join(called)}: two clients have the file {twice[0].name}, and epsilon holds "
            "for a row that comes once: give each client its own"
        )
    sizes = [_size(one, call) for one, call in zip(opened, called, strict=True)]
    rows = np.concatenate([np.arange(size) for size in sizes])
    holders = np.repeat(np.arange(len(sizes)), sizes)
    parts = [_parts_of_rows(one, table) for one, table in zip(bare, opened, strict=True)]
    places = joined(parts, sizes)
    earlier = earlier_rows(places)
    again = np.flatnonzero(earlier >= 0)
    repeated = [(int(earlier[row]), int(row)) for row in again[:1]] or _same_labels(bare)
    for one, other in repeated:
        raise ValueError(
            f"{called[holders[other]]} has the row {rows[other]} that {called[holders[one]]} has "
            f"as row {rows[one]}{f' ({len(again)} in all)' if len(again) else ''}, and epsilon "
            "holds for a row that comes once: give each row to one client, once; "
            f"{own_copy(places, one, other)}"
        )


def _parts_of_rows(bare: Any, opened: Any) -> RowParts:
    """Where the inputs of each row of a data set are."""
    if isinstance(opened, Table):
        return parts_of_table(bare, opened)
    if _is_pair(opened):
        return parts_of_inputs(opened[0])
    return parts_of(opened, np.arange(len(opened)))


def _same_labels(bare: Sequence[Any]) -> list[tuple[int, int]]:
    """The first two rows of frames with one label in the index and equal values, as numbers among
    all rows. Frames that number their rows from 0 are files of their own.
    """
    if not all(hasattr(labels, "iloc") and hasattr(labels, "columns") for labels in bare):
        return []
    cut = [not np.array_equal(np.asarray(labels.index), np.arange(len(labels))) for labels in bare]
    if not any(cut):
        return []
    seen: dict[Any, tuple[int, int, int]] = {}
    count = 0
    for client, frame in enumerate(bare):
        for row, label in enumerate(frame.index):
            other, place, number = seen.setdefault(label, (client, row, count))
            known = number != count and (cut[client] or cut[other])
            if known and frame.iloc[row].equals(bare[other].iloc[place]):
                return [(number, count)]
            count += 1
    return []


# -- partition=: the rows of each client of one data set

EXPECTED = (
    "partition: expected a scheme, a column, lists of row numbers (one a client), a dict of them, "
    "or an owner for each row"
)


def check_form(partition: Any) -> None:
    """Raise ValueError, with the form that works, for what is not a partition; no data are read."""
    fix = ""
    if isinstance(partition, int):
        fix = f"give clients={partition} for that many"
    elif hasattr(partition, "__next__"):
        fix = "it can be read once only, and each process reads it: give list(...) of it"
    elif callable(partition):
        fix = "give what it returns"
    elif not hasattr(partition, "__iter__") and not is_partitioner(partition):
        fix = "give one of these"
    elif is_table(partition) or is_splits(partition):
        fix = (
            "owners of rows are one column of it, frame[column]; the data of clients are train=, a "
            "list or dict of tables"
        )
    if fix:
        raise ValueError(f"{EXPECTED}, got {type(partition).__name__}; {fix}")


def is_partitioner(partition: Any) -> bool:
    """Whether it deals rows as the partitioners of flwr-datasets do."""
    kind = type(partition)  # the object's own number of clients is unknown without data
    return hasattr(kind, "load_partition") and hasattr(kind, "num_partitions")


def given_parts(partition: Any, data: Any, opened: Opened, rows: Rows) -> Parts:
    """The clients that ``partition`` says of the rows of train.

    data, opened, rows: train as it was given, as it was opened, and as it was read. Numbers count
    the rows of ``data``; a partitioner deals those that are not held out.
    Raises ValueError, naming the client or row and the fix, for numbers of rows that overlap, are
    none, or leave a row out. Rows that a partitioner leaves out are nobody's.
    """
    if is_partitioner(partition):
        columns = _columns(opened.splits["train"], rows)
        return _dealt(partition, columns, len(rows.targets))
    kept = opened.kept
    if kept is None:
        return _numbered(partition, data, len(rows.targets))
    return _numbered(
        partition, data, len(rows.targets) + _size(opened.splits["test"], "test")
    ).pick(kept)


def check_owners_order(data: Any, owners: Any, what: str, called: str) -> None:
    """Raise ValueError for a Series of owners whose index is that of a frame in another order."""
    frame = data[0] if isinstance(data, tuple | list) and len(data) else data
    if hasattr(owners, "iloc") and hasattr(frame, "iloc"):
        check_same_order(frame, owners, what, called)


def _numbered(partition: Any, data: Any, size: int) -> Parts:
    """The clients of row numbers or of owners."""
    if hasattr(partition, "ngroups"):  # of pandas
        partition = partition.indices
    if isinstance(partition, Mapping) or _is_series_of_lists(partition):
        return _by_name(partition, data, size)
    partition = _without_second_axis(partition, size)
    if (owners := _owners(partition)) is None:
        return _of_lists(list(partition), None, data, size)
    check_owners_order(data, partition, "partition", "owners")
    if len(owners) != size:
        raise ValueError(
            f"partition has one owner for each of {len(owners)} rows, and train has {size}: give "
            "one for each row, lists of row numbers, or the name of one column"
        )
    parts = parts_of_owners(owners, "owners")
    if len(parts) == size > 1:
        raise ValueError(
            f"partition has {size} numbers or texts that are all different, so each row would be a "
            "client: for one client give [rows], for a client each row [[row] for row in rows]"
        )
    return parts


def _is_series_of_lists(partition: Any) -> bool:
    return hasattr(partition, "iloc") and any(
        np.ndim(first) or isinstance(first, set) for first in partition.iloc[:1]
    )


def _without_second_axis(partition: Any, size: int) -> Any:
    """Owners in an array (N, 1) as (N,). One of whole numbers that are all different is a row for
    each client, as a list of lists would be.
    """
    if getattr(partition, "shape", None) != (size, 1):
        return partition
    column = np.asarray(partition)[:, 0]
    rows = column.dtype.kind in "iu" and len(np.unique(column)) == size
    return partition if rows else column


def _owners(partition: Any) -> np.ndarray | None:
    """A column (N,) of owners; None for lists of rows."""
    if isinstance(partition, list | tuple | range):
        if not len(partition) or not all(map(_is_scalar, partition)):
            return None
        numbers = all(isinstance(part, int | np.integer) for part in partition)
        return np.array(partition, dtype=np.int64) if numbers else _named(partition)
    array = np.asarray(partition)
    if array.ndim != 1 or not all(map(_is_scalar, array[:1])):
        return None
    if array.dtype.kind == "M":
        days = array.astype("datetime64[D]")
        array = days if (np.isnat(array) | (days == array)).all() else array.astype("M8[us]")
    return array if array.dtype.kind in "biufU" else _named(array.tolist())


def _named(owners: Sequence[Any]) -> np.ndarray:
    """Owners as a column: numbers as they are, and names, dates and other things as texts."""
    column = np.empty(len(owners), dtype=object)
    for row, owner in enumerate(owners):
        missing = owner is None or owner != owner
        if isinstance(owner, bytes):
            column[row] = owner.decode(errors="backslashreplace")
        else:
            column[row] = owner if missing or isinstance(owner, NUMBERS) else str(owner)
    return text_of(column)


NUMBERS = (bool, int, float, np.generic)


def _is_scalar(one: Any) -> bool:
    """Whether it is one thing, which may be an owner, and not the rows of a client."""
    if one is None or isinstance(one, str | bytes | np.generic):
        return True
    return not (hasattr(one, "__iter__") or isinstance(one, slice | Dataset))


def _by_name(given: Any, data: Any, size: int) -> Parts:
    items = list(given.items())
    if items and all(_is_scalar(rows) for _, rows in items):
        raise ValueError(
            "partition is a dict of one value for each key: expected lists of row numbers by "
            "client; an owner for each row is a list, [owner[row] for row in range(len(train))]"
        )
    if set(given.keys()) >= LEAF:
        raise ValueError(
            "partition is a dict in LEAF's form: give train={user: (data['x'], data['y']) for "
            "user, data in given['user_data'].items()}"
        )
    names = distinct_names([name for name, _ in items], "partition")
    return _of_lists([rows for _, rows in items], names, data, size)


LEAF = {"users", "user_data"}
"""Keys of a file of the LEAF benchmark."""


def _of_lists(
    lists: Sequence[Any],
    names: tuple[str, ...] | None,
    data: Any,
    size: int,
    *,
    whole: bool = True,
) -> Parts:
    """The clients of these rows; every row is a client's if ``whole``."""
    rows = [np.arange(size)[part] if isinstance(part, slice) else part for part in lists]
    listed = [_row_numbers(part, label_of(k, names), data) for k, part in enumerate(rows)]
    check_disjoint(listed, size, names)
    sizes = [len(part) for part in listed]
    owner = np.full(size, -1)
    owner[torch.cat([torch.arange(0), *listed]).numpy()] = np.repeat(np.arange(len(sizes)), sizes)
    if whole and sum(sizes) != size:
        raise ValueError(
            f"partition=given has {sum(sizes)} of {size} training rows: give every row to a "
            "client, or leave the others out of the training data"
        )
    return Parts(owner, len(sizes), names)


def _row_numbers(part: Any, label: str, data: Any) -> Tensor:
    """The rows of one client as int64 (n,)."""
    if isinstance(part, DataLoader):
        part = dataset_of(part, f"client {label} of partition")
    if isinstance(part, Subset):
        part = _rows_of_subset(part, label, data)
    elif hasattr(part, "get_indexer"):  # groupby(...).groups of pandas
        part = _rows_of_labels(part, label, data)
    elif isinstance(part, set | frozenset):
        part = sorted(part)
    got, fix = type(part).__name__, "give one list of row numbers a client"
    if is_table(part) or isinstance(part, Dataset | Mapping):
        fix = "data sets of clients are train=[...], one a client, without partition="
    else:
        try:
            numbers = np.asarray(part)
        except ValueError:  # lists of different lengths
            numbers = np.asarray(None)
            fix = "give one array a client, such as the second of each pair of KFold().split(...)"
        if not numbers.size and numbers.ndim == 1:
            return torch.zeros(0, dtype=torch.int64)
        if numbers.ndim == 1 and numbers.dtype.kind in "iu":
            return torch.from_numpy(numbers.astype(np.int64))
        got = f"{numbers.dtype} of shape {numbers.shape}"
        owners = "an owner for each row is one flat list, such as ['north', 'south', 'north']"
        fix = {
            "b": "give np.flatnonzero(mask)",
            "f": "give rows.astype(int)",
            "U": owners,
            "S": owners,
        }.get(numbers.dtype.kind, fix)
    raise ValueError(
        f"partition: expected lists of row numbers, got {got} for client {label}: {fix}"
    )


def _rows_of_subset(part: Any, label: str, data: Any) -> np.ndarray:
    """Numbers of the rows of ``data`` that a Subset of it, or of a Subset of it, has."""
    origin = data.dataset if isinstance(data, DataLoader) else data
    rows = np.arange(len(part))
    while isinstance(part, Subset) and part is not origin:
        chosen = np.asarray(part.indices, dtype=np.int64)[rows]
        part = part.dataset
        rows = chosen + len(part) * (chosen < 0)
    if part is not origin:
        raise ValueError(
            f"partition: client {label} is a Subset of another Dataset than train: give the list "
            "of Subsets as train=, without partition="
        )
    return rows


def _rows_of_labels(part: Any, label: str, data: Any) -> np.ndarray:
    frame = data[0] if isinstance(data, tuple | list) else data
    index: Any = getattr(frame, "index", None)
    if not hasattr(index, "get_indexer") or not index.is_unique:
        raise ValueError(
            f"partition: client {label} has labels of an index and not row numbers: give "
            "frame.groupby(column).indices"
        )
    return np.asarray(index.get_indexer(part))


def _columns(opened: Any, rows: Rows) -> dict[str, Any]:
    """The columns that a partitioner may read: those of a table, or the targets as ``label``."""
    import pyarrow as pa

    labels = {LABEL: rows.targets.numpy()} if rows.targets.ndim == 1 else {}
    columns: dict[str, Any] = {**labels, **rows.columns}
    for name, column in opened.columns.items() if isinstance(opened, Table) else ():
        if isinstance(column, pa.ChunkedArray) and not pa.types.is_nested(column.type):
            columns[name] = column
    return columns


def _dealt(partitioner: Any, columns: Mapping[str, Any], size: int) -> Parts:
    """The clients of a partitioner of flwr-datasets, on a copy of it: it draws as it would have.

    It sees the columns with one more, the number of each row, by which its rows are found again
    whatever it sorts and leaves out.
    """
    import pyarrow as pa

    try:
        from datasets import Dataset as HubDataset
    except ImportError:
        raise ValueError(
            "partition: a partitioner of flwr-datasets needs the hub extra (pip install "
            "'fedlsg[hub]')"
        ) from None
    kind = type(partitioner).__name__
    partitioner_copy = deepcopy(partitioner)
    if getattr(partitioner_copy, "is_dataset_assigned", bool)():
        raise ValueError(
            f"partition: this {kind} has a data set already: give a new one, or train=["
            "p.load_partition(k) for k in range(p.num_partitions)] without partition="
        )

    def work(step: Callable[..., Any], *given: Any) -> Any:
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # a bar of progress
                return step(*given)
        except Exception as error:
            raise ValueError(
                f"partition: {kind} fails: {type(error).__name__}: {error}; the columns are "
                f"{', '.join(columns)}"
            ) from error

    partitioner_copy.dataset = HubDataset(pa.table({**columns, ROW: np.arange(size)}))
    clients = range(work(getattr, partitioner_copy, "num_partitions"))
    dealt = [work(partitioner_copy.load_partition, client) for client in clients]
    if any(ROW not in part.column_names for part in dealt):
        raise ValueError(
            f"partition: {kind} gives clients columns of all rows (vertical), and clients here "
            "have whole rows: give a partitioner of rows"
        )
    known = getattr(partitioner_copy, "partition_id_to_natural_id", None) or {}
    names = (
        distinct_names([known[client] for client in clients], "partition")
        if len(known) == len(clients)
        else None
    )
    rows = [np.asarray(part[ROW], dtype=np.int64) for part in dealt]
    return _of_lists(rows, names, None, size, whole=False)
