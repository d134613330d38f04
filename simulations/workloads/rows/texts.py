"""Texts and labels of parts of a set of the hub, checked on the way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from simulations.workloads.rows.files import published_of
from simulations.workloads.rows.hub import Part


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


def read_texts(parts: Sequence[Part], columns: Columns) -> Texts:
    """One split from its parts, in order. Raises ValueError for one that cannot be read, and as ``checked``."""
    values: dict[str, list[object]] = {name: [] for name in columns.names}
    for part in parts:
        check_columns(columns, part.schema.names, place=part.place)
        for batch in part.batches(columns.names):
            for name in columns.names:
                values[name] += batch[name]
    published = published_of(parts[0].schema).get(columns.label)
    return checked(values, columns, published, place=parts[0].place)


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
