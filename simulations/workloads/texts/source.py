"""Texts and labels of a split, from parquet shards or from the hub's ``datasets`` library, checked on the way."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulations.workloads.base.cache import digest_files
from simulations.workloads.base.mirror import find_shards, open_parquet


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of the one or two text columns and of the label column."""

    inputs: tuple[str, ...]
    label: str

    def __post_init__(self) -> None:
        if not 1 <= len(self.inputs) <= 2 or not all(self.inputs):
            raise ValueError(
                f"expected one or two names in input_columns, separated by a comma, got {','.join(self.inputs)!r}"
            )

    @property
    def names(self) -> list[str]:
        return [*self.inputs, self.label]


@dataclass(frozen=True, kw_only=True, eq=False)
class Texts:
    """N texts or pairs of texts with labels (N,) int64; ``class_names`` where the data set publishes them."""

    first: list[str]
    second: list[str] | None
    labels: np.ndarray
    class_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where splits come from: ``read(split)`` gives one, ``digest`` identifies their whole content."""

    digest: str
    read: Callable[[str], Texts]


def mirrored(name: str, subset: str, splits: tuple[str, ...], columns: Columns, **where: Any) -> Source:
    """Splits of parquet shards; ``name``, ``subset``, ``where`` and errors as ``find_shards``.

    ``read`` raises ValueError for a shard that cannot be read, and for what ``checked`` refuses.
    """
    shards = find_shards(name, subset, splits, **where)
    digest = digest_files([file for files in shards.values() for file in files], salt="")
    return Source(digest=digest, read=lambda split: read_parquet(shards[split], columns))


def read_parquet(paths: Sequence[Path], columns: Columns) -> Texts:
    """One split from its shards, in order."""
    import pyarrow as pa

    tables = []
    for path in paths:
        file = open_parquet(path)
        check_columns(columns, file.schema_arrow.names, place=str(path))
        try:
            tables.append(file.read(columns=columns.names))
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"cannot read {path}: {error}; download it again") from error
    published = _class_names(tables[0].schema.metadata, columns.label)
    values = {name: [v for table in tables for v in table.column(name).to_pylist()] for name in columns.names}
    return checked(values, columns, published, place=str(paths[0]))


def check_columns(columns: Columns, there: Sequence[str], *, place: str) -> None:
    """Raise ValueError, listing the existing columns, if one of ``columns`` is missing."""
    if len(set(columns.names)) < len(columns.names):
        raise ValueError(f"expected input_columns and label_column without repetitions, got {', '.join(columns.names)}")
    missing = [name for name in columns.names if name not in there]
    if missing:
        raise ValueError(
            f"no column {', '.join(missing)} in {place}, which has {', '.join(there)}; "
            "choose them by input_columns and label_column"
        )


def checked(
    values: Mapping[str, Sequence[object]], columns: Columns, class_names: tuple[str, ...] | None, *, place: str
) -> Texts:
    """Texts of raw columns. Raises ValueError, naming column and row: no rows, a value that is no text, a label that is
    no integer. The caller checks the range of the labels with ``check_labels``."""
    labels = values[columns.label]
    if not len(labels):
        raise ValueError(f"{place} holds no rows")
    for name in columns.inputs:
        for row, value in enumerate(values[name]):
            if not isinstance(value, str):
                raise ValueError(f"expected text in column {name}, row {row} of {place}, got {value!r}")
    for row, value in enumerate(labels):
        if not isinstance(value, int):
            raise ValueError(f"expected an integer in column {columns.label}, row {row} of {place}, got {value!r}")
    first, *rest = ([str(value) for value in values[name]] for name in columns.inputs)
    return Texts(
        first=first, second=rest[0] if rest else None, labels=np.array(labels, dtype=np.int64), class_names=class_names
    )


def check_labels(labels: np.ndarray, num_classes: int, *, split: str, name: str) -> None:
    """Raise ValueError unless all labels are in 0..num_classes-1."""
    low, high = int(labels.min()), int(labels.max())
    if not 0 <= low <= high < num_classes:
        hidden = "; -1 is a hidden label: choose a split with labels by test_split" if low == -1 else ""
        raise ValueError(f"{name}: expected labels in 0..{num_classes - 1} in {split}, got {low}..{high}{hidden}")


def count_classes(texts: Mapping[str, Texts], tests: Sequence[str]) -> tuple[int, str]:
    """Number of classes, and its origin: the published names of the labels, else the public test splits.

    It is never counted in the training labels, which are private.
    """
    published = next((split.class_names for split in texts.values() if split.class_names), None)
    if published:
        return len(published), f"its published label names: {', '.join(published)}"
    return 1 + max(
        int(texts[split].labels.max()) for split in tests
    ), "the largest label of the public test split, plus one"


def _class_names(metadata: Mapping[bytes, bytes] | None, label: str) -> tuple[str, ...] | None:
    """Names of the classes that the hub's writer left in a parquet file, or None."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[label]["names"]) or None
    except (KeyError, TypeError, ValueError):
        return None
