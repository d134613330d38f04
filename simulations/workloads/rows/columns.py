"""Data with columns, by the names of the columns: files of tables, and tables of other libraries.

These are pandas, pyarrow and ``datasets.Dataset``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedlsg.config.choices import did_you_mean
from fedlsg.simulations.workloads.rows import Columns, as_targets
from fedlsg.simulations.workloads.rows.table_files import (
    DELIMITERS,
    codes_of,
    metadata_of,
    published_of,
    read_file,
)

LABEL = "label"
"""The column of the targets, if none is named."""
MISSPELT = 0.7
"""A name is a misspelt one of ``label`` if difflib's similarity is above this, in 0..1."""
INDEX = re.compile(r"|Unnamed: ?\d+(_level_\d+)?|__index_level_\d+__")
"""Names of columns that pandas, spreadsheets and R make of the numbers of rows; R's is empty."""
IDENTIFIERS = re.compile(r"index|level_\d+|id|row|row_?(id|number|num|nr)|rownames?", re.IGNORECASE)
"""Names of columns that identify rows if their whole numbers are all different."""


def is_table(data: Any) -> bool:
    """Whether data are a ``datasets.Dataset``, or a table of pandas or pyarrow."""
    columns = hasattr(data, "column_names") or (hasattr(data, "columns") and hasattr(data, "iloc"))
    return columns and hasattr(data, "__len__") and hasattr(data, "__getitem__")


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """The columns of a table, by name.

    columns: of pyarrow; a list for values that pyarrow does not take.
    size: the number of rows.
    what: the table in messages.
    indexes: names of columns that number the rows.
    published: names of the classes of a column, in order.
    path: of its file; None for a table that is in memory.
    targets: of a pair (table, targets); None if the targets are a column.
    numbers: columns of a CSV file with leading zeros, such as 007, as numbers. ``columns`` has them
        as texts, for 007 and 7 are two clients or classes. Inputs are numbers.
    """

    columns: Mapping[str, Any]
    size: int
    what: str
    indexes: tuple[str, ...] = ()
    published: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    path: Path | None = None
    targets: Any = None
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of_file(path: Path, what: str, texts: Sequence[str] = ()) -> "Table":
        """The table of a file; ``texts``: columns of a CSV file that are read as texts.

        Raises OSError or ValueError, naming the file, if it cannot be read.
        """
        data = read_file(path, what, texts)
        table = replace(Table.of(data, f"{what}={path.name}"), path=path)
        codes = {name.strip(): column for name, column in codes_of(path, what, data).items()}
        return replace(
            table,
            columns={**table.columns, **codes},
            numbers={name: table.columns[name] for name in codes},
        )

    @staticmethod
    def of(data: Any, what: str) -> "Table":
        """A table of any library. Raises ValueError for two columns of one name, or without rows.

        Categories of pandas and dictionaries of pyarrow become plain columns, and their texts the
        published names of classes.
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
            of_pandas = metadata_of(data, b"pandas").get("index_columns", [])
            indexes = [name for name in of_pandas if isinstance(name, str)]
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
                if categories and all(isinstance(category, str) for category in categories):
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
        """A table of one column, or of a frame of pandas, whose names may repeat or be empty.

        Each column is named by its place and its name.
        """
        columns = {"0 ": data}
        if hasattr(data, "columns") and hasattr(data, "iloc"):
            names = map(str, data.columns)
            columns = {f"{i} {name}": data.iloc[:, i] for i, name in enumerate(names)}
        return Table(
            columns={name: _of_pandas(column) for name, column in columns.items()},
            size=len(data),
            what=what,
        )

    def values(self, name: str) -> np.ndarray:
        """A column as an array: numbers (N, ...), missing ones NaN; or things (N,), missing ones
        None.
        """
        return _values(self.columns[name], f"{self.what}: column {name!r}")

    def input_column(self, name: str) -> Any:
        """A column as an input: codes such as 007 are numbers there."""
        return self.numbers.get(name, self.columns[name])

    def input_values(self, name: str) -> np.ndarray:
        """``values`` of a column as an input."""
        return _values(self.input_column(name), f"{self.what}: column {name!r}")

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
        codes = dict.fromkeys(name for table in tables for name in table.numbers)
        numbers = {
            name: _joined_column(name, [table.input_column(name) for table in tables])
            for name in codes
        }
        tables = [
            table.as_texts([name for name in codes if not table.is_text(name)]) for table in tables
        ]
        columns = {
            name: _joined_column(name, [table.columns[name] for table in tables])
            for name in first.columns
        }
        published = dict(first.published)
        for name, table in product(first.columns, tables):
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
            numbers=numbers,
        )

    def take(self, rows: np.ndarray) -> "Table":
        """These rows in this order."""
        columns, numbers = (
            {
                name: [values[row] for row in rows]
                if isinstance(values, list)
                else values.take(rows)
                for name, values in several.items()
            }
            for several in (self.columns, self.numbers)
        )
        targets = self.targets
        if targets is not None:
            targets = targets.iloc[rows] if hasattr(targets, "iloc") else np.asarray(targets)[rows]
        return replace(
            self, columns=columns, numbers=numbers, size=len(rows), targets=targets, path=None
        )

    @property
    def is_csv(self) -> bool:
        """Whether the columns come from a file that does not say their types."""
        return self.path is not None and self.path.suffix.lower() in DELIMITERS

    def is_text(self, name: str) -> bool:
        """Whether a column holds texts."""
        return _is_text(self.columns[name])

    def as_texts(self, names: Sequence[str]) -> "Table":
        """The table with these columns as texts, as its file has them.

        Raises ValueError for a table that does not come from a CSV file.
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
    """The input columns: the named ones, or all but targets, columns of clients and row numbers.

    Raises ValueError, with the fix, for names that the table has not, and for a column that only
    numbers the rows.
    """
    targets = target_names(table, columns)
    for name in (*targets, *(columns.inputs or ())):
        if name not in table.columns:
            raise _no_column(name, table, columns)
    if columns.inputs is not None:
        if not columns.inputs:
            raise ValueError(
                "inputs=[] names no column: name those of the inputs, or leave it out for all"
            )
        names = [*columns.inputs, *targets]
        for name in columns.inputs:
            if names.count(name) > 1:
                raise ValueError(
                    f"inputs= and targets= have the column {name!r} twice: name each once, in one "
                    "of them"
                )
        return columns.inputs
    others = (*targets, *columns.more, *table.indexes)
    inputs = tuple(name for name in table.columns if name not in others)
    if not inputs:
        raise ValueError(
            f"{table.what} has no column but {', '.join(map(repr, targets))}: inputs= names those "
            "of the inputs"
        )
    for name in inputs:
        if _numbers_rows(name, table.input_column(name)):
            raise ValueError(
                f"{table.what}: the column {name!r} numbers the rows, as an index does, and would "
                "tell a row's place: leave it out of the data, or name all columns of the inputs "
                "with inputs="
            )
    return inputs


def target_names(table: Table, columns: Columns) -> tuple[str, ...]:
    """The target columns of a table; none if it has its targets apart."""
    return () if table.targets is not None else columns.targets or (LABEL,)


def _no_column(name: str, table: Table, columns: Columns) -> ValueError:
    """The error about a named column that a table has not."""
    hint = ""
    if name == LABEL and not columns.targets:
        hint = "; targets= names the column of the targets"
    if all(re.fullmatch(r"[-+.\deE]*", other) for other in table.columns):
        hint += "; the names are numbers: give the file a first line with names"
    guesses = [
        other
        for other in table.columns
        # nobody gave the name "label": a column is guessed only if it is a misspelt "label"
        if columns.targets or SequenceMatcher(None, name, other.lower()).ratio() > MISSPELT
    ]
    return ValueError(
        f"{table.what} has no column {name!r}{did_you_mean(name, guesses)}; it has "
        f"{', '.join(table.columns)}{hint}"
    )


def agree_inputs(tables: Sequence[Table], columns: Columns) -> Columns:
    """``columns`` with the names of the inputs, in the order of the first table.

    A column that is of texts in one of the tables is among the columns of texts.
    Raises ValueError, naming it, for a column that one of the tables has not.
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
    texts = [
        name
        for name in inputs
        if any(name in table.columns and _is_text(table.input_column(name)) for table in tables)
    ]
    if len(targets) == 1:  # several targets are numbers
        texts += [
            name
            for name in targets
            if any(name in table.columns and table.is_text(name) for table in tables)
        ]
    return replace(columns, inputs=inputs, texts=(*columns.texts, *texts))


def check_finite(values: np.ndarray, names: Sequence[str], what: str) -> None:
    """Raise ValueError for a missing or infinite number among ``values`` (N, columns).

    The message names its column, by ``names``, and its row, from 0.
    """
    bad = ~np.isfinite(values)
    if bad.any():
        row, place = map(int, np.argwhere(bad)[0])
        raise ValueError(
            f"{what}: column {names[place]!r} has missing values, or infinite ones: "
            f"{values[row, place]} in row {row} ({int(bad.any(1).sum())} "
            "such rows): fill them, or leave the rows out; transform= may fill them in"
        )


def number_targets(
    values: Any, published: tuple[str, ...], columns: Columns, what: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Targets as numbers, and the names of their classes; no names for targets without classes.

    published: names that the data give to their numbers; empty without. If the run numbers these
        classes differently, the numbers become those of the run.
    """
    if values.dtype.kind == "b":
        values, published = values.astype(np.int64), ("False", "True")
    if not published:
        return as_targets(values, columns, what)
    classes = columns.classes or (published if columns.like is None else columns.like.classes)
    columns = replace(columns, classes=classes)
    if values.dtype.kind not in "iu":
        return as_targets(values, columns, what)
    if not 0 <= int(values.min()) <= int(values.max()) < len(published):
        row = int(np.flatnonzero((values < 0) | (values >= len(published)))[0])
        raise ValueError(
            f"{what} has the class {values[row]} in row {row}, of 0 to {len(published) - 1}"
        )
    if classes == published:
        return as_targets(values, columns, what)[0], classes
    return as_targets([published[number] for number in values], columns, what)


def join_targets(columns: list[np.ndarray], what: str) -> np.ndarray:
    """One column of targets as it is; several, of numbers, as (N, columns)."""
    if len(columns) == 1:
        return columns[0]
    if any(column.dtype.kind not in "biuf" or column.ndim > 1 for column in columns):
        raise ValueError(f"{what}: expected numbers in each of several target columns")
    return np.stack(columns, axis=1)


def text_of(values: np.ndarray) -> np.ndarray:
    """A column of objects that are all texts as numpy texts, which sort faster; others as they
    are.
    """
    if values.dtype.kind == "O" and all(isinstance(value, str) for value in values):
        return values.astype(str)
    return values


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
    if getattr(data, "format", {}).get("type") == "custom":
        return _Things(data[:]), published  # the rows as the set's own transform makes them
    if hasattr(data, "with_format"):
        return data.with_format("arrow")[:], published
    return _Things(data), published


class _Things:
    """Columns of any table that gives them by name, as lists."""

    def __init__(self, data: Any) -> None:
        self.column_names = list(data.column_names if hasattr(data, "column_names") else data)
        self.columns = [_of_pandas(list(data[name])) for name in self.column_names]
        self.metadata = None

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0


def _of_pandas(column: Any) -> Any:
    """A column of pyarrow, with NaN as missing; a list if pyarrow does not take its things."""
    import pyarrow as pa

    things = column
    if str(getattr(column, "dtype", "object")) == "object" and hasattr(column, "tolist"):
        things = column.tolist()
    if isinstance(things, list) and things:
        is_array_or_image = hasattr(things[0], "shape") or hasattr(things[0], "convert")
        if is_array_or_image:
            return things
    try:
        array = pa.array(things, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return list(things)
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


def _is_text(column: Any) -> bool:
    """Whether a column holds texts."""
    return str(getattr(column, "type", "")) in ("string", "large_string", "string_view")


def _joined_column(name: str, parts: Sequence[Any]) -> Any:
    """A column of several tables. Raises ValueError where their types do not fit together."""
    import pyarrow as pa

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
    """Whether whole numbers count the rows, or are different under the name of an identifier."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if (
        not isinstance(column, pa.ChunkedArray)
        or not pa.types.is_integer(column.type)
        or column.null_count
    ):
        return False
    values = column.to_numpy()
    # the first difference alone is fast, and rules out nearly every other column
    if len(values) > 2 and values[1] - values[0] == 1 and bool((np.diff(values) == 1).all()):
        return True
    return (
        IDENTIFIERS.fullmatch(name) is not None
        and len(values) > 1
        and len(pc.unique(column)) == len(values)
    )


def _values(column: Any, title: str) -> np.ndarray:
    """A column as ``Table.values`` gives it; ``title``: the column in messages."""
    import pyarrow as pa

    if not isinstance(column, pa.ChunkedArray):
        return _of_things(list(column), title)
    kinds, kind = pa.types, column.type
    if isinstance(kind, pa.BaseExtensionType):
        # arrays of the datasets library, whose type says that of their numbers
        values = _of_things(column.to_pylist(), title)
        if values.dtype.kind in "iuf":
            return values.astype(str(getattr(kind, "value_type", values.dtype)))
        return values
    if kinds.is_boolean(kind) and column.null_count:
        column = column.cast(pa.uint8()).cast(pa.float64())
    elif kinds.is_decimal(kind) or kinds.is_null(kind):
        column = column.cast(pa.float64())
    elif kinds.is_temporal(kind):
        column = column.cast(pa.string())  # a client may be a day; no input is
    elif kinds.is_nested(kind) and not kinds.is_struct(kind):
        return _of_lists(column, title)
    return np.asarray(column.to_numpy())


def _of_lists(column: Any, title: str) -> np.ndarray:
    """A column of lists: flat lists of numbers, of one length, as (N, length) without Python.

    Others as ``_of_things``.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    inner = getattr(column.type, "value_type", None)
    if (
        inner is not None
        and (pa.types.is_integer(inner) or pa.types.is_floating(inner))
        and not column.null_count
    ):
        lengths = pc.unique(pc.list_value_length(column))
        flat = pc.list_flatten(column)
        if len(lengths) == 1 and not flat.null_count:
            return np.asarray(flat.to_numpy()).reshape(len(column), -1)
    return _of_things(column.to_pylist(), title)


def _of_things(things: list[Any], title: str) -> np.ndarray:
    """Numbers and arrays of one shape as one array; other things as an array of objects."""
    if things and all(isinstance(thing, bool | int | float | np.number) for thing in things):
        return np.asarray(things)
    if things and (isinstance(things[0], list | tuple) or hasattr(things[0], "shape")):
        try:
            stacked = np.stack([np.asarray(thing) for thing in things])
        except (ValueError, TypeError):
            raise ValueError(
                f"{title} holds lists of different lengths: give every row one shape"
            ) from None
        has_missing = stacked.dtype.kind == "O" and all(
            thing is None or isinstance(thing, int | float) for thing in stacked.flat
        )
        return stacked.astype(np.float64) if has_missing else stacked  # None becomes NaN
    column = np.empty(len(things), dtype=object)
    column[:] = things
    return column
