"""Data with columns: files of tables, pandas tables, ``datasets.Dataset``, by the names of their
columns.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedlsg.config.choices import did_you_mean
from fedlsg.simulations.workloads.rows import Columns, as_targets
from fedlsg.simulations.workloads.rows.table_files import (
    DELIMITERS,
    metadata_of,
    published_of,
    read_file,
)

LABEL = "label"
"""The column of the targets, if none is named."""
MISSPELT = 0.7
"""How alike a misspelt name is at least."""
INDEX = re.compile(r"|Unnamed: ?\d+(_level_\d+)?|__index_level_\d+__")
"""Names of columns that pandas, spreadsheets and R make of the numbers of rows."""
IDENTIFIERS = re.compile(r"index|level_\d+|id|row|row_?(id|number|num|nr)|rownames?", re.IGNORECASE)
"""Names of columns that hold one number a row where all are different."""


def is_table(data: Any) -> bool:
    """Whether data have columns and a length: a ``datasets.Dataset``, or a table of pandas or
    pyarrow.
    """
    columns = hasattr(data, "column_names") or (hasattr(data, "columns") and hasattr(data, "iloc"))
    return columns and hasattr(data, "__len__") and hasattr(data, "__getitem__")


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Columns by name: of pyarrow, or lists of things that it does not hold.

    indexes: columns that number the rows.
    published: names of the classes of a column, in order.
    path: of its file.
    targets: of a pair (table, targets), which has them apart.
    """

    columns: Mapping[str, Any]
    size: int
    what: str
    indexes: tuple[str, ...] = ()
    published: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    path: Path | None = None
    targets: Any = None

    @staticmethod
    def of_file(path: Path, what: str, texts: Sequence[str] = ()) -> "Table":
        """Raises OSError or ValueError, naming it, for a file that cannot be read."""
        return replace(Table.of(read_file(path, what, texts), f"{what}={path.name}"), path=path)

    @staticmethod
    def of(data: Any, what: str) -> "Table":
        """The columns of any table. Raises ValueError for two of one name, and for a table without
        rows.
        """
        import pyarrow as pa

        indexes: list[str] = []
        published: dict[str, tuple[str, ...]] = {}
        if hasattr(data, "iloc"):
            names = list(data.columns)
            values = [_of_pandas(data.iloc[:, place]) for place in range(data.shape[1])]
        else:
            data, published = _as_arrow(data)
            names, values = data.column_names, list(data.columns)
            indexes = [
                name
                for name in metadata_of(data, b"pandas").get("index_columns", [])
                if isinstance(name, str)
            ]
        names = [str(name).strip() for name in names]
        indexes += [name for name in names if INDEX.fullmatch(name)]
        if twice := [name for name in names if names.count(name) > 1 and name not in indexes]:
            raise ValueError(
                f"{what} has two columns of the same name, {twice[0]!r}: give each its own"
            )
        if not len(data):
            raise ValueError(f"{what} has no rows: expected one at least")
        columns = dict(zip(names, values, strict=True))
        for name, column in columns.items():
            if isinstance(column, pa.ChunkedArray) and pa.types.is_dictionary(column.type):
                categories = column.unify_dictionaries().chunk(0).dictionary.to_pylist()
                columns[name] = column.cast(column.type.value_type)
                if categories and all(isinstance(one, str) for one in categories):
                    published[name] = tuple(categories)
        return Table(
            columns=columns,
            size=len(data),
            what=what,
            indexes=tuple(dict.fromkeys(indexes)),
            published=published,
        )

    @staticmethod
    def of_columns(data: Any, what: str) -> "Table":
        """One column, or a table of any names and size, of pandas or pyarrow."""
        names = (
            list(map(str, data.columns))
            if hasattr(data, "columns") and hasattr(data, "iloc")
            else [""]
        )
        parts = [data.iloc[:, place] for place in range(len(names))] if names != [""] else [data]
        columns = {
            f"{place} {name}": _of_pandas(part)
            for place, (name, part) in enumerate(zip(names, parts, strict=True))
        }
        return Table(columns=columns, size=len(data), what=what)

    def values(self, name: str) -> np.ndarray:
        """A column of numbers (N, ...), missing ones NaN; else of things (N,), missing ones
        None.
        """
        return _values(self.columns[name], f"{self.what}: column {name!r}")

    @staticmethod
    def joined(tables: "Sequence[Table]", what: str) -> "Table":
        """The rows of several tables one after the other. Columns are matched by name.

        Raises ValueError, naming tables and column, for one that is missing or of another kind.
        """
        first = tables[0]
        for table in tables[1:]:
            for name in {**first.columns, **table.columns}:
                if name not in table.columns or name not in first.columns:
                    holder, other = (first, table) if name in first.columns else (table, first)
                    raise ValueError(
                        f"{holder.what} has the column {name!r}, which {other.what} has not: give "
                        "all clients the same columns"
                    )
        columns = {name: _joined_column(name, tables) for name in first.columns}
        published = {name: first.published[name] for name in first.published}
        for name, table in ((name, table) for name in first.columns for table in tables):
            if table.published.get(name) != first.published.get(name):
                if not first.is_text(name):
                    raise ValueError(
                        f"{first.what} and {table.what} number the classes of {name!r} "
                        "differently: give both the same ClassLabel, or texts"
                    )
                published.pop(name, None)  # categories of pandas: classes are those of test
        indexes = tuple(dict.fromkeys(name for table in tables for name in table.indexes))
        return Table(
            columns=columns,
            size=sum(table.size for table in tables),
            what=what,
            indexes=indexes,
            published=published,
        )

    def take(self, rows: np.ndarray) -> "Table":
        """These rows in this order."""
        columns = {
            name: [column[row] for row in rows] if isinstance(column, list) else column.take(rows)
            for name, column in self.columns.items()
        }
        targets = self.targets
        if targets is not None:
            targets = targets.iloc[rows] if hasattr(targets, "iloc") else np.asarray(targets)[rows]
        return replace(self, columns=columns, size=len(rows), targets=targets, path=None)

    @property
    def is_csv(self) -> bool:
        """Whether the columns come from a file that does not say their types."""
        return self.path is not None and self.path.suffix.lower() in DELIMITERS

    def is_text(self, name: str) -> bool:
        """Whether a column holds texts."""
        return str(getattr(self.columns[name], "type", "")) in (
            "string",
            "large_string",
            "string_view",
        )

    def as_texts(self, names: Sequence[str]) -> "Table":
        """The table with these columns as texts, as the file has them. Raises ValueError where
        there is none.
        """
        if not names:
            return self
        if not self.is_csv or self.path is None:
            raise ValueError(
                f"{self.what}: column {names[0]!r} has numbers, and texts in the other data: give "
                "both one kind"
            )
        return Table.of_file(self.path, self.what.partition("=")[0], names)


def find_inputs(table: Table, columns: Columns) -> tuple[str, ...]:
    """The input columns: the named ones, else all but targets, columns of clients and of row
    numbers.

    Raises ValueError, with the fix, for names that the table has not, and for a column that only
    numbers the rows.
    """
    wanted = () if table.targets is not None else columns.targets or (LABEL,)
    for name in (*wanted, *(columns.inputs or ())):
        if name not in table.columns:
            hint = (
                ""
                if name != LABEL or columns.targets
                else "; targets= names the column of the targets"
            )
            if all(re.fullmatch(r"[-+.\deE]*", one) for one in table.columns):
                hint += "; the names are numbers: give the file a first line with names"
            alike = [
                one
                for one in table.columns
                # nobody gave the name "label": a column is guessed if it is a misspelt one
                if columns.targets or SequenceMatcher(None, name, one.lower()).ratio() > MISSPELT
            ]
            near = did_you_mean(name, alike)
            raise ValueError(
                f"{table.what} has no column {name!r}{near}; it has "
                f"{', '.join(table.columns)}{hint}"
            )
    if columns.inputs is not None:
        if not columns.inputs:
            raise ValueError(
                "inputs=[] names no column: name those of the inputs, or leave it out for all"
            )
        if twice := next(
            (name for name in columns.inputs if [*columns.inputs, *wanted].count(name) > 1), None
        ):
            raise ValueError(
                f"inputs= and targets= have the column {twice!r} twice: name each once, in one of "
                "them"
            )
        return columns.inputs
    left = (*wanted, *columns.more, *table.indexes)
    inputs = tuple(name for name in table.columns if name not in left)
    if not inputs:
        raise ValueError(
            f"{table.what} has no column but {', '.join(map(repr, wanted))}: inputs= names those "
            "of the inputs"
        )
    for name in inputs:
        if _numbers_rows(name, table.columns[name]):
            raise ValueError(
                f"{table.what}: the column {name!r} numbers the rows, as an index does, and would "
                "tell a row's place: leave it out of the data, or name all columns of the inputs "
                "with inputs="
            )
    return inputs


def agreed(tables: Sequence[Table], columns: Columns) -> Columns:
    """Columns whose inputs are named, in the order of the first table, and those that are texts in
    one of the tables.

    Raises ValueError, naming it, for a column that one of them has not.
    """
    inputs = find_inputs(tables[0], columns)
    for table in tables[1:]:
        input_names = find_inputs(table, columns)
        for name in (*inputs, *input_names):
            if (name in inputs) != (name in input_names):
                here, there = (tables[0], table) if name in inputs else (table, tables[0])
                raise ValueError(
                    f"{here.what} has the column {name!r}, which {there.what} has not (it has "
                    f"{', '.join(there.columns)}): give both the same columns, or name those of "
                    "the inputs with inputs="
                )
    targets = columns.targets or (LABEL,)
    used = [*inputs, *(targets if len(targets) == 1 else ())]
    texts = [
        column
        for column in used
        if any(column in table.columns and table.is_text(column) for table in tables)
    ]
    return replace(columns, inputs=inputs, texts=(*columns.texts, *texts))


def check_finite(values: np.ndarray, names: Sequence[str], what: str) -> None:
    """Raise ValueError, naming row (from 0) and column, for a missing or infinite number among (N,
    columns).
    """
    bad = ~np.isfinite(values)
    if bad.any():
        row, place = (int(one) for one in np.argwhere(bad)[0][:2])
        raise ValueError(
            f"{what}: column {names[place]!r} has missing values, or infinite ones: "
            f"{values[row, place]} in row {row} ({int(bad.reshape(len(bad), -1).any(1).sum())} "
            "such rows): fill them, or leave the rows out; transform= may fill them in"
        )


def number_targets(
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


def join_targets(columns: list[np.ndarray], what: str) -> np.ndarray:
    """One column of targets as it is; several, of numbers, as (N, columns)."""
    if len(columns) == 1:
        return columns[0]
    if any(column.dtype.kind not in "biuf" or column.ndim > 1 for column in columns):
        raise ValueError(f"{what}: expected numbers in each of several target columns")
    return np.stack(columns, axis=1)


def text_of(values: np.ndarray) -> np.ndarray:
    """A column of things as one of texts, where all are: numpy sorts them faster. Others as they
    are.
    """
    return (
        values.astype(str)
        if values.dtype.kind == "O" and all(isinstance(value, str) for value in values)
        else values
    )


def _as_arrow(data: Any) -> tuple[Any, dict[str, tuple[str, ...]]]:
    """A table of pyarrow, and names of classes by column."""
    import pyarrow as pa

    if isinstance(data, pa.Table):
        return data, published_of(data.schema)
    features = getattr(data, "features", None) or {}
    published = {
        name: tuple(feature.names)
        for name, feature in features.items()
        if getattr(feature, "names", None)
    }
    # what a transform of its own makes of the rows
    if getattr(data, "format", {}).get("type") == "custom":
        part = data[:]
        return _Things(part), published
    return data.with_format("arrow")[:] if hasattr(data, "with_format") else _Things(
        data
    ), published


class _Things:
    """Columns of any table that gives them by name, as lists."""

    def __init__(self, data: Any) -> None:
        self.column_names = list(data.column_names if hasattr(data, "column_names") else data)
        self.columns = [_of_pandas(list(data[name])) for name in self.column_names]
        self.metadata = None

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0


def _of_pandas(column: Any) -> Any:
    """A column of pyarrow, with NaN as missing; a list where pyarrow does not take its things."""
    import pyarrow as pa

    things = (
        column.tolist()
        if str(getattr(column, "dtype", "object")) == "object" and hasattr(column, "tolist")
        else column
    )
    if isinstance(things, list) and any(
        hasattr(thing, "shape") or hasattr(thing, "convert") for thing in things[:1]
    ):
        return things
    try:
        array = pa.array(things, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return list(things)
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


def _joined_column(name: str, tables: Sequence[Table]) -> Any:
    """A column of several tables. Raises ValueError where their types do not fit together."""
    import pyarrow as pa

    parts = [table.columns[name] for table in tables]
    if all(isinstance(part, list) for part in parts):
        return [thing for part in parts for thing in part]
    kinds = dict.fromkeys(str(getattr(part, "type", "things")) for part in parts)
    try:
        arrow = [pa.table({name: part}) for part in parts]
        return pa.concat_tables(arrow, promote_options="permissive").column(0)
    except (pa.ArrowException, TypeError, ValueError):
        raise ValueError(
            f"column {name!r} of the clients holds {' and '.join(kinds)}: give all one kind"
        ) from None


def _numbers_rows(name: str, column: Any) -> bool:
    """Whether whole numbers count the rows, or are all different under the name of an
    identifier.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if (
        not isinstance(column, pa.ChunkedArray)
        or not pa.types.is_integer(column.type)
        or column.null_count
    ):
        return False
    values = column.to_numpy()
    if len(values) > 2 and values[1] - values[0] == 1 and bool((np.diff(values) == 1).all()):
        return True
    return (
        IDENTIFIERS.fullmatch(name) is not None
        and len(values) > 1
        and len(pc.unique(column)) == len(values)
    )


def _values(column: Any, called: str) -> np.ndarray:
    import pyarrow as pa

    kinds = pa.types
    if not isinstance(column, pa.ChunkedArray):
        return _of_things(list(column), called)
    kind = column.type
    # arrays of the datasets library, which say their numbers' type
    if isinstance(kind, pa.BaseExtensionType):
        values = _of_things(column.to_pylist(), called)
        return (
            values.astype(str(getattr(kind, "value_type", values.dtype)))
            if values.dtype.kind in "iuf"
            else values
        )
    if (
        kinds.is_decimal(kind)
        or kinds.is_null(kind)
        or (kinds.is_boolean(kind) and column.null_count)
    ):
        column = (
            column.cast(pa.float64())
            if not kinds.is_boolean(kind)
            else column.cast(pa.uint8()).cast(pa.float64())
        )
    elif kinds.is_temporal(kind):
        column = column.cast(pa.string())  # a client may be a day; no input is
    elif kinds.is_nested(kind) and not kinds.is_struct(kind):
        return _of_lists(column, called)
    return np.asarray(column.to_numpy())


def _of_lists(column: Any, called: str) -> np.ndarray:
    """Lists of one length of numbers as (N, length); deeper ones through Python."""
    import pyarrow as pa
    import pyarrow.compute as pc

    inner = column.type.value_type if hasattr(column.type, "value_type") else None
    if (
        inner is not None
        and (pa.types.is_integer(inner) or pa.types.is_floating(inner))
        and not column.null_count
    ):
        lengths, flat = pc.unique(pc.list_value_length(column)), pc.list_flatten(column)
        if len(lengths) == 1 and not flat.null_count:
            return np.asarray(flat.to_numpy()).reshape(len(column), -1)
    return _of_things(column.to_pylist(), called)


def _of_things(things: list[Any], called: str) -> np.ndarray:
    """Numbers and arrays of one shape as one array, and other things as they are."""
    if things and all(isinstance(thing, bool | int | float | np.number) for thing in things):
        return np.asarray(things)
    if things and (isinstance(things[0], list | tuple) or hasattr(things[0], "shape")):
        try:
            stacked = np.stack([np.asarray(thing) for thing in things])
            lacking = stacked.dtype.kind == "O" and all(
                thing is None or isinstance(thing, int | float) for thing in stacked.flat
            )
            return stacked.astype(np.float64) if lacking else stacked  # None becomes NaN
        except (ValueError, TypeError):
            raise ValueError(
                f"{called} holds lists of different lengths: give every row one shape"
            ) from None
    column = np.empty(len(things), dtype=object)
    column[:] = things
    return column
