"""The clients that ``partition=`` gives: row numbers, an owner for each row, or a partitioner.

Row numbers are lists by client, a dict of them, Subsets, or groups of pandas. Owners are a column
with a value for each row. A partitioner is one of flwr-datasets. An epsilon holds for a row that
comes once, so a row of two clients is refused (``check_disjoint``).
"""

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from fedlsg.rows.data_loader import dataset_of
from fedlsg.simulations.workloads.base.parts import Parts, check_disjoint, distinct_names, label_of
from fedlsg.simulations.workloads.client_forms import Opened, rows_in
from fedlsg.simulations.workloads.partition import parts_of_owners
from fedlsg.simulations.workloads.rows import Rows
from fedlsg.simulations.workloads.rows.columns import LABEL, Table, is_table, text_of
from fedlsg.simulations.workloads.rows.loaders import is_splits
from fedlsg.simulations.workloads.rows.read import check_same_order

ROW = "fedlsg: number of the row"
"""The column by which a partitioner's rows are found again."""
NUMBERS = (bool, int, float, np.generic)
"""Types of owners that stay numbers; others become texts."""
LEAF = {"users", "user_data"}
"""Keys of a file of the LEAF benchmark."""
EXPECTED = (
    "partition: expected a scheme, a column, lists of row numbers (one a client), a dict of them, "
    "or an owner for each row"
)
"""The beginning of messages about another form."""


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
    """The clients that ``partition`` gives the rows of train.

    Row numbers and owners count the rows of ``data``. A partitioner deals the rows that are not
    held out. Rows that a partitioner leaves out have no client.

    data: train as it was given.
    opened: the same with its test rows, opened.
    rows: of train, as they were read.
    Raises ValueError, naming the client or row and the fix, for row numbers that overlap, that do
    not exist, or that leave a row out.
    """
    if is_partitioner(partition):
        columns = _columns(opened.splits["train"], rows)
        return _parts_of_partitioner(partition, columns, len(rows.targets))
    if opened.kept is None:
        return _numbered(partition, data, len(rows.targets))
    size = len(rows.targets) + rows_in(opened.splits["test"], "test")
    return _numbered(partition, data, size).pick(opened.kept)


def check_owners_order(data: Any, owners: Any, what: str, noun: str) -> None:
    """Raise ValueError for a Series of owners whose index is that of a frame in another order.

    what, noun: the argument and what it has, for the message.
    """
    frame = data[0] if isinstance(data, tuple | list) and len(data) else data
    if hasattr(owners, "iloc") and hasattr(frame, "iloc"):
        check_same_order(frame, owners, what, noun)


def _numbered(partition: Any, data: Any, size: int) -> Parts:
    """The clients that row numbers or owners give; ``size``: rows of ``data``."""
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
    """Whether it is a Series of pandas whose first value has several rows."""
    return hasattr(partition, "iloc") and any(
        np.ndim(first) or isinstance(first, set) for first in partition.iloc[:1]
    )


def _without_second_axis(partition: Any, size: int) -> Any:
    """Owners in an array (N, 1) as (N,); other partitions as they are.

    An array (N, 1) of whole numbers that are all different stays: it gives each client one row, as
    a list of lists does.
    """
    if getattr(partition, "shape", None) != (size, 1):
        return partition
    column = np.asarray(partition)[:, 0]
    has_rows = column.dtype.kind in "iu" and len(np.unique(column)) == size
    return partition if has_rows else column


def _owners(partition: Any) -> np.ndarray | None:
    """A column (N,) of owners; None for lists of rows."""
    if isinstance(partition, list | tuple | range):
        if not len(partition) or not all(map(_is_scalar, partition)):
            return None
        if all(isinstance(owner, int | np.integer) for owner in partition):
            return np.array(partition, dtype=np.int64)
        return _as_column(partition)
    array = np.asarray(partition)
    if array.ndim != 1 or not all(map(_is_scalar, array[:1])):
        return None
    if array.dtype.kind == "M":  # dates, with a time of day only if one has it
        days = array.astype("datetime64[D]")
        array = days if (np.isnat(array) | (days == array)).all() else array.astype("M8[us]")
    return array if array.dtype.kind in "biufU" else _as_column(array.tolist())


def _as_column(owners: Sequence[Any]) -> np.ndarray:
    """Owners as a column: numbers and missing values as they are, other things as texts."""
    column = np.empty(len(owners), dtype=object)
    for row, owner in enumerate(owners):
        missing = owner is None or owner != owner  # NaN and NaT differ from themselves
        if isinstance(owner, bytes):
            column[row] = owner.decode(errors="backslashreplace")
        else:
            column[row] = owner if missing or isinstance(owner, NUMBERS) else str(owner)
    return text_of(column)


def _is_scalar(value: Any) -> bool:
    """Whether it is one thing, which may be an owner, and not the rows of a client."""
    if value is None or isinstance(value, str | bytes | np.generic):
        return True
    return not (hasattr(value, "__iter__") or isinstance(value, slice | Dataset))


def _by_name(given: Any, data: Any, size: int) -> Parts:
    """The clients of a dict, or of a Series, from names to rows."""
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


def _of_lists(
    lists: Sequence[Any],
    names: tuple[str, ...] | None,
    data: Any,
    size: int,
    *,
    whole: bool = True,
) -> Parts:
    """The clients of these lists of rows; ``whole``: every row must have a client."""
    rows = [np.arange(size)[part] if isinstance(part, slice) else part for part in lists]
    listed = [_row_numbers(part, label_of(k, names), data) for k, part in enumerate(rows)]
    check_disjoint(listed, size, names)
    sizes = [len(part) for part in listed]
    owner = np.full(size, -1)  # no client
    no_rows = torch.arange(0)  # torch.cat needs one tensor at least
    owner[torch.cat([no_rows, *listed]).numpy()] = np.repeat(np.arange(len(sizes)), sizes)
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
    if is_table(part) or isinstance(part, Dataset | Mapping):
        raise ValueError(
            f"partition: expected lists of row numbers, got {type(part).__name__} for client "
            f"{label}: data sets of clients are train=[...], one a client, without partition="
        )
    fix = "give one list of row numbers a client"
    try:
        numbers = np.asarray(part)
    except ValueError:  # lists of different lengths
        numbers = np.asarray(None)
        fix = "give one array a client, such as the second of each pair of KFold().split(...)"
    if not numbers.size and numbers.ndim == 1:
        return torch.zeros(0, dtype=torch.int64)
    if numbers.ndim == 1 and numbers.dtype.kind in "iu":
        return torch.from_numpy(numbers.astype(np.int64))
    owners = "an owner for each row is one flat list, such as ['north', 'south', 'north']"
    fixes = {"b": "give np.flatnonzero(mask)", "f": "give rows.astype(int)"}
    fixes |= {"U": owners, "S": owners}
    raise ValueError(
        f"partition: expected lists of row numbers, got {numbers.dtype} of shape {numbers.shape} "
        f"for client {label}: {fixes.get(numbers.dtype.kind, fix)}"
    )


def _rows_of_subset(part: Any, label: str, data: Any) -> np.ndarray:
    """Numbers of the rows of ``data`` that a Subset has: of it, or of a Subset of it and so on."""
    origin = data.dataset if isinstance(data, DataLoader) else data
    rows = np.arange(len(part))
    while isinstance(part, Subset) and part is not origin:
        chosen = np.asarray(part.indices, dtype=np.int64)[rows]
        part = part.dataset
        rows = chosen + len(part) * (chosen < 0)  # negative indices count from the end
    if part is not origin:
        raise ValueError(
            f"partition: client {label} is a Subset of another Dataset than train: give the list "
            "of Subsets as train=, without partition="
        )
    return rows


def _rows_of_labels(part: Any, label: str, data: Any) -> np.ndarray:
    """Numbers of the rows of a frame that have these labels in its index."""
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


def _parts_of_partitioner(partitioner: Any, columns: Mapping[str, Any], size: int) -> Parts:
    """The clients that a partitioner of flwr-datasets makes of ``size`` rows.

    A copy of it works, so that the given one stays without data. The copy gets one more column, the
    number of each row: by it rows are found again, however they are sorted.
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

    def run(step: Callable[..., Any], *arguments: Any) -> Any:
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # hides a progress bar
                return step(*arguments)
        except Exception as error:
            raise ValueError(
                f"partition: {kind} fails: {type(error).__name__}: {error}; the columns are "
                f"{', '.join(columns)}"
            ) from error

    partitioner_copy.dataset = HubDataset(pa.table({**columns, ROW: np.arange(size)}))
    clients = range(run(getattr, partitioner_copy, "num_partitions"))
    dealt = [run(partitioner_copy.load_partition, client) for client in clients]
    if any(ROW not in part.column_names for part in dealt):
        raise ValueError(
            f"partition: {kind} gives clients columns of all rows (vertical), and clients here "
            "have whole rows: give a partitioner of rows"
        )
    known = getattr(partitioner_copy, "partition_id_to_natural_id", None) or {}
    names = None
    if len(known) == len(clients):
        names = distinct_names([known[client] for client in clients], "partition")
    rows = [np.asarray(part[ROW], dtype=np.int64) for part in dealt]
    return _of_lists(rows, names, None, size, whole=False)
