"""The clients that ``train=`` gives: a list or dict of data sets, one for each client.

The data sets become one, with ``Parts``, the client of each row: one reader reads it, once. An
epsilon holds for a row that comes once, so a row of two clients is refused by the origin of rows
(``check_once``). Clients of one data set are in ``given_partition``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset

from fedlsg.rows.origin import check_parts, own_copy, parts_of, parts_of_inputs
from fedlsg.rows.row_memory import RowParts, earlier_rows, joined
from fedlsg.simulations.workloads.base.parts import Parts, distinct_names, label_of
from fedlsg.simulations.workloads.base.split import hold_out
from fedlsg.simulations.workloads.rows.column_memory import parts_of_table
from fedlsg.simulations.workloads.rows.columns import LABEL, Table, is_table
from fedlsg.simulations.workloads.rows.image_folders import ImageFolder
from fedlsg.simulations.workloads.rows.loaders import is_splits
from fedlsg.simulations.workloads.rows.read import array_of, open_data, take, unwrapped


def data_sets(data: Any, test: Any = None) -> tuple[tuple[str, ...] | None, list[Any]] | None:
    """(names of clients, their data sets), None for data of one data set.

    Names are None for a list. A dict of data sets has one for each client, unless it has splits.
    So does a list that cannot be read otherwise: two arrays, or two tables without a common column,
    are inputs and targets. A list of pairs has examples, unless their inputs have one dimension
    more than those of ``test``.
    """
    data = _frames_of_groups(data)
    if isinstance(data, Mapping):
        if is_splits(data) or not _all_data_sets(data.values()):
            return None
        return distinct_names(list(data), "train"), list(data.values())
    if not isinstance(data, list | tuple) or not _all_data_sets(data):
        return None
    return (None, list(data)) if _has_clients(data, test) else None


def _has_clients(data: Sequence[Any], test: Any) -> bool:
    """Whether several data sets are those of clients, and not inputs and targets, or examples."""
    is_list = isinstance(data, list)
    if not is_list and len(data) == 2 and any(isinstance(data_set, list) for data_set in data):
        return False
    if len(data) == 2 and all(hasattr(frame, "iloc") for frame in data):
        shared = set(data[0].columns) & set(data[1].columns)
        return bool(shared) and (is_list or LABEL in shared)
    pairs = [data_set for data_set in data if _is_pair(data_set)]
    mixed = is_list and 0 < len(pairs) < len(data)  # clients, whose two forms a message names
    return not pairs or mixed or _pairs_of_rows(pairs, test)


def _frames_of_groups(data: Any) -> Any:
    """A dict of the frames of ``frame.groupby(column)`` or ``group_by``; other data as they are."""
    if "GroupBy" not in type(data).__name__ or not hasattr(data, "__iter__"):
        return data
    frames = {}
    for name, frame in data:
        is_single = isinstance(name, tuple) and len(name) == 1
        frames[name[0] if is_single else name] = frame
    if others := [type(frame).__name__ for frame in frames.values() if not is_table(frame)]:
        raise ValueError(
            f"train={type(data).__name__} has a {others[0]} a client: group the whole frame, as "
            "frame.groupby(column)"
        )
    size = len(getattr(data, "obj", ()))
    grouped = sum(map(len, frames.values()))
    if grouped < size:
        raise ValueError(
            f"train={type(data).__name__} leaves out {size - grouped} of {size} rows, whose group "
            "is missing: fill in the column, or leave those rows out of the frame"
        )
    return frames


def _all_data_sets(data: Any) -> bool:
    """Whether all of ``data`` are data sets; some, but not all, may be ``[]``."""
    filled = [item for item in data if not _is_empty(item)]
    return bool(filled) and all(map(_is_data_set, filled))


def _is_empty(item: Any) -> bool:
    return isinstance(item, list | tuple) and not len(item)


def _is_data_set(item: Any) -> bool:
    if isinstance(item, list | tuple):
        return _is_pair(item) or _is_list_of_examples(item)
    if isinstance(item, Mapping):
        return is_splits(item)
    return isinstance(item, str | Path | Dataset | DataLoader) or is_table(item)


def _is_pair(item: Any) -> bool:
    """Whether it is (inputs, targets) of several rows."""
    return (
        isinstance(item, list | tuple)
        and len(item) == 2
        and _is_array(item[1])
        and (_is_array(item[0]) or _is_fields(item[0]))
    )


def _is_list_of_examples(item: Any) -> bool:
    """Whether it is a list of examples, each (input, target)."""
    return isinstance(item, list) and all(isinstance(row, tuple) and len(row) == 2 for row in item)


def _is_array(part: Any) -> bool:
    """Whether a part of a pair has one row for each example."""
    shape = getattr(part, "shape", None)
    return bool(len(shape)) if shape is not None else isinstance(part, list)


def _is_fields(part: Any) -> bool:
    """Whether a part of a pair is a dict of arrays."""
    return isinstance(part, Mapping) and bool(part) and all(map(_is_array, part.values()))


def _shape(inputs: Any) -> tuple[int, ...]:
    """The shape of inputs; of a dict, that of its first array; of a list, (its length,)."""
    first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    return (len(first),) if isinstance(first, list) else tuple(first.shape)


def _pairs_of_rows(pairs: Sequence[Any], test: Any) -> bool:
    """Whether pairs are data sets of clients, and not examples.

    They are if their inputs have as many dimensions as those of ``test``. Without a pair as test,
    if their shapes differ and each pair has as many inputs as targets.
    """
    shapes = [_shape(pair[0]) for pair in pairs]
    if _is_pair(test):
        return len(shapes[0]) == len(_shape(test[0]))
    return len(set(shapes)) > 1 and all(
        shape[0] == len(pair[1]) for shape, pair in zip(shapes, pairs, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class Opened:
    """Opened splits, and the clients of train.

    splits: opened data of "train" and "test", the one that is here.
    parts: the clients of a list or dict of data sets; None for one data set.
    kept: numbers of the given rows of train that are not held out for a test; None if none are.
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
    kept, held = (rows.numpy() for rows in hold_out(rows_in(train, "train"), holdout, name))
    return Opened(
        splits={"train": take(train, kept, "train"), "test": take(train, held, "train")},
        parts=None if parts is None else parts.pick(kept),
        kept=kept,
    )


def open_clients(data: Any, what: str, test: Any = None) -> tuple[Any, Parts | None]:
    """One opened data set for the reader, with the clients that have its rows.

    The clients are None if the data are one data set.
    Raises ValueError, naming the clients, for a row of two of them, for a client without rows, and
    for data sets of several kinds. For one data set, it raises for a row that comes twice.
    """
    several = data_sets(data, test)
    if several is None:
        data = unwrapped(data, what)
        rows = open_data(data, what)
        # other forms are checked while they are read
        if what == "train" and (isinstance(rows, Table) or _is_pair(rows)):
            check_parts(_parts_of_rows(data, rows), what)
        return rows, None
    names, items = several
    titles = [f"{what}[{label_of(client, names)}]" for client in range(len(items))]
    for client, (item, title) in enumerate(zip(items, titles, strict=True)):
        if _is_empty(item):
            raise ValueError(
                f"{title}: client {label_of(client, names)} has no rows: leave that client out"
            )
    bare = [unwrapped(item, title) for item, title in zip(items, titles, strict=True)]
    for item, title in zip(bare, titles, strict=True):
        if isinstance(item, str | Path) and Path(item).expanduser().is_dir():
            raise ValueError(
                f"{title}={str(item)!r}: the data of one client are a table, a .npz file or a "
                "Dataset; images of several clients are one folder, whose metadata.csv has a "
                "column for the client"
            )
    opened = [open_data(item, title) for item, title in zip(bare, titles, strict=True)]
    sizes = [rows_in(rows, title) for rows, title in zip(opened, titles, strict=True)]
    if what == "train":  # test, which is public, may have a row twice
        check_once(bare, opened, titles)
    parts = Parts(np.repeat(np.arange(len(sizes)), sizes), len(sizes), names)
    return _joined(opened, titles, what), parts


def rows_in(data: Any, title: str) -> int:
    """The number of rows of opened data.

    Raises ValueError, with the ``title`` of the data, for data without a length or without rows.
    """
    if isinstance(data, Table | ImageFolder):
        return data.size
    try:
        size = len(data[1] if _is_pair(data) else data)
    except (TypeError, NotImplementedError):
        raise ValueError(
            f"{title}={type(data).__name__} has no length: give a Dataset with __len__"
        ) from None
    if not size:
        raise ValueError(f"{title} has no rows: leave that client out")
    return size


def _joined(opened: Sequence[Any], titles: Sequence[str], what: str) -> Any:
    """One data set with the rows of all, in order. ``titles``: of each client's data."""
    kinds = list(map(_kind, opened))
    for title, kind in zip(titles, kinds, strict=True):
        if kind != kinds[0]:
            raise ValueError(
                f"{titles[0]} is a {kinds[0]}, {title} a {kind}: give the data of all clients in "
                "one form"
            )
    if isinstance(opened[0], Table):
        table = Table.joined(opened, what)
        if all(rows.targets is None for rows in opened):
            return table
        targets = [array_of(rows.targets, f"{what} targets") for rows in opened]
        return replace(table, targets=_values_joined(targets, "targets", titles))
    if _is_pair(opened[0]):
        return tuple(
            _values_joined([pair[side] for pair in opened], name, titles)
            for side, name in enumerate(("inputs", "targets"))
        )
    return ConcatDataset(opened)


def _kind(data: Any) -> str:
    """The form of opened data, in words."""
    if isinstance(data, Table):
        return "table" if data.targets is None else "pair of a table and its targets"
    return "pair (inputs, targets)" if _is_pair(data) else "Dataset"


def _values_joined(values: Sequence[Any], what: str, titles: Sequence[str]) -> Any:
    """Arrays, tensors, lists, or dicts of them, one after the other."""
    values = [
        array_of(value, f"{title} {what}") for value, title in zip(values, titles, strict=True)
    ]
    first = values[0]
    if isinstance(first, Mapping):
        for value in values:
            if not isinstance(value, Mapping) or value.keys() != first.keys():
                keys = list(value) if isinstance(value, Mapping) else type(value).__name__
                raise ValueError(
                    f"{what} of the clients: expected {', '.join(map(str, first))} of all, got "
                    f"{keys}"
                )
        return {
            name: _values_joined([value[name] for value in values], f"{what} {name}", titles)
            for name in first
        }
    if all(isinstance(value, list) for value in values):
        return list(chain.from_iterable(values))
    shapes = [tuple(value.shape[1:]) if hasattr(value, "shape") else None for value in values]
    for shape, title in zip(shapes, titles, strict=True):
        if None not in (shape, shapes[0]) and shape != shapes[0]:
            raise ValueError(
                f"{what} of the clients do not fit together: a row of {titles[0]} has the shape "
                f"{shapes[0]}, one of {title} {shape}: give all clients the same columns, in one "
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


def check_once(bare: Sequence[Any], opened: Sequence[Any], titles: Sequence[str]) -> None:
    """Raise ValueError, naming the clients, for a row that two data sets hold, or one twice.

    A row is known by the place of its inputs in memory or in a mapped file. In a Dataset it is
    known through ``Subset``, in a frame that was cut from another one by its label in the index.
    Equal values alone are not refused: two people may have them.

    bare: the data sets as they were given, without their wrappers.
    opened: the same, opened.
    titles: of each in messages.
    """
    files = [Path(item).expanduser() for item in bare if isinstance(item, str | Path)]
    seen = []
    for file in files:
        identity = file.stat()[1:3] if file.exists() else file  # inode and device
        if identity in seen:
            raise ValueError(
                f"{', '.join(titles)}: two clients have the file {file.name}, and epsilon holds "
                "for a row that comes once: give each client its own"
            )
        seen.append(identity)
    sizes = [rows_in(data, title) for data, title in zip(opened, titles, strict=True)]
    parts = [_parts_of_rows(item, data) for item, data in zip(bare, opened, strict=True)]
    places = joined(parts, sizes)
    earlier = earlier_rows(places)
    again = np.flatnonzero(earlier >= 0)
    repeated = (int(earlier[again[0]]), int(again[0])) if len(again) else _same_labels(bare)
    if repeated is None:
        return
    # numbers among all rows to rows of a client
    rows = np.concatenate([np.arange(size) for size in sizes])
    holders = np.repeat(np.arange(len(sizes)), sizes)
    first, second = repeated
    raise ValueError(
        f"{titles[holders[second]]} has the row {rows[second]} that {titles[holders[first]]} has "
        f"as row {rows[first]}{f' ({len(again)} in all)' if len(again) else ''}, and epsilon "
        "holds for a row that comes once: give each row to one client, once; "
        f"{own_copy(places, first, second)}"
    )


def _parts_of_rows(bare: Any, opened: Any) -> RowParts:
    """Where the inputs of each row of a data set are."""
    if isinstance(opened, Table):
        return parts_of_table(bare, opened)
    if _is_pair(opened):
        return parts_of_inputs(opened[0])
    return parts_of(opened, np.arange(len(opened)))


def _same_labels(bare: Sequence[Any]) -> tuple[int, int] | None:
    """The first two rows of frames with one label in the index and equal values; None without.

    Rows are numbers among all rows. Two frames that both number their rows from 0 are not compared:
    they are of different files, and not cut from one frame.
    """
    if not all(hasattr(frame, "iloc") and hasattr(frame, "columns") for frame in bare):
        return None
    cut = [not np.array_equal(np.asarray(frame.index), np.arange(len(frame))) for frame in bare]
    if not any(cut):
        return None
    seen: dict[Any, tuple[int, int, int]] = {}  # client, row and number of the first of a label
    number = 0
    for client, frame in enumerate(bare):
        for row, label in enumerate(frame.index):
            first_client, first_row, first = seen.setdefault(label, (client, row, number))
            may_be_same = first != number and (cut[client] or cut[first_client])
            if may_be_same and frame.iloc[row].equals(bare[first_client].iloc[first_row]):
                return first, number
            number += 1
    return None
