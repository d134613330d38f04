"""Parts of a set of the hub are decoded and checked: images of one size as arrays, texts, labels.

A client's own training rows come from parquet files with the columns of the workload itself (image
or texts, and label), or from a .npz file: ``inputs`` (N, ...) in the workload's stored form
(digits: uint8 (N, 1, 8, 8); images: uint8 (N, channels, side, side)), ``labels`` (N,) integers.
Decoded or tokenised rows are kept in a cache of the client's own: they are as private as the rows.
"""

import io
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedlsg.simulations.workloads.base import Progress
from fedlsg.simulations.workloads.base.split import Split
from fedlsg.simulations.workloads.rows.image_contents import Taken
from fedlsg.simulations.workloads.rows.image_folders import open_image, pixels_of
from fedlsg.simulations.workloads.rows.shards import find_folder, find_splits, split_names
from fedlsg.simulations.workloads.rows.table_files import published_of, read_npz
from fedlsg.simulations.workloads.rows.table_parts import Part, content_of, is_image

MODES = {1: "L", 3: "RGB"}
"""Pillow's names of greyscale and colours of 8 bits, by their channels."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Channels and pixels on a side of every image of a data set."""

    channels: int
    side: int

    def __str__(self) -> str:
        return f"{self.side}x{self.side} {MODES[self.channels]}"


def decode(
    name: str,
    splits: Mapping[str, Sequence[Part]],
    columns: tuple[str, str],
    *,
    num_classes: int,
    shape: Shape | None = None,
    mixed: bool = False,
    taken: Taken,
    progress: Progress,
) -> dict[str, np.ndarray]:
    """``{split}_images`` (N, channels, side, side) uint8, and ``{split}_labels`` (N,) int64.

    columns: of images, a struct with ``bytes``, and of labels, integers.
    shape: of every image; None takes the shape of the first image.
    mixed: grey images may be among coloured ones.
    taken: what is read of an image.
    Raises ValueError, naming the place, for other columns, a label outside 0..num_classes-1, an
    image without bytes or that does not decode, one of another size, one in colour among grey ones,
    and an unreadable file.
    """
    started = time.monotonic()
    image_column, label_column = columns
    sizes = {split: sum(part.size for part in parts) for split, parts in splits.items()}
    total = sum(sizes.values())
    done = 0
    arrays: dict[str, np.ndarray] = {}
    for split, parts in splits.items():
        labels = np.empty(sizes[split], dtype=np.int64)
        images: np.ndarray | None = None  # their shape is that of the first one
        start = 0
        for part in parts:
            _check_columns(part, *columns)
            start_of_part = start
            for batch in part.batches(columns):
                values = [-1 if label is None else label for label in batch[label_column]]
                stop = start + len(values)
                labels[start:stop] = values
                _check_labels(labels[start:stop], num_classes, part.place)
                pixels, shape = _decode_batch(
                    [content_of(image) for image in batch[image_column]],
                    shape,
                    part.place,
                    start - start_of_part,
                    mixed=mixed,
                    taken=taken,
                )
                if images is None:
                    images = np.empty((sizes[split], *pixels.shape[1:]), dtype=np.uint8)
                images[start:stop] = pixels
                done += len(values)
                start = stop
                progress(f"{name}: decoded {done:,} of {total:,} images")
        if images is None:
            raise ValueError(f"{name}: the split {split} holds no images")
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    progress(
        f"{name}: decoded {total:,} images in {time.monotonic() - started:.1f} s; next time they "
        "are cached"
    )
    return arrays


def _check_columns(part: Part, image: str, label: str) -> None:
    """Raise ValueError unless the part has these columns, of encoded images and of integers."""
    import pyarrow as pa

    kinds = {field.name: field.type for field in part.schema}
    if not is_image(kinds.get(image)) or not pa.types.is_integer(kinds.get(label, pa.null())):
        raise ValueError(
            f"expected the columns {image} (struct with bytes) and {label} (integer) in "
            f"{part.place}, got {', '.join(f'{name} ({kind})' for name, kind in kinds.items())}"
        )


def _check_labels(labels: np.ndarray, num_classes: int, place: str) -> None:
    """Raise ValueError for a label outside 0..num_classes-1."""
    if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(
            f"expected labels in 0..{num_classes - 1} in {place}, got "
            f"{labels.min()}..{labels.max()} (-1: none)"
        )


def _decode_batch(
    encoded: list[bytes | None],
    shape: Shape | None,
    place: str,
    start: int,
    *,
    mixed: bool,
    taken: Taken,
) -> tuple[np.ndarray, Shape | None]:
    """Images (B, channels, side, side) uint8, and the shape of each.

    encoded: B >= 1 files of images.
    shape: None: the first image sets it.
    start: the number of the first image in its part, for messages.
    mixed: a grey image among coloured ones gets three equal channels.
    """
    rows = []
    for row, content in enumerate(encoded, start):
        name = f"image {row} of {place}"
        if content is None:
            raise ValueError(
                f"{name} holds no bytes; expected the images inside the file, not their paths"
            )
        image = open_image(content, name, fix="download it again", taken=taken)
        pixels = np.atleast_3d(pixels_of(image, None))
        if pixels.dtype != np.uint8:
            raise ValueError(f"{name} has more than 8 bits a pixel: convert the images first")
        shape = shape or Shape(channels=pixels.shape[2], side=pixels.shape[1])
        if mixed and pixels.shape[2] < shape.channels:
            pixels = np.repeat(pixels, shape.channels, axis=2)
        if pixels.shape != (shape.side, shape.side, shape.channels):
            form = f"{pixels.shape[1]}x{pixels.shape[0]} {MODES[pixels.shape[2]]}"
            raise ValueError(
                f"expected {name} to be {shape}, got {form}; there are {_sizes(encoded)}: make "
                "all of them squares of one size first"
            )
        rows.append(pixels.transpose(2, 0, 1))
    return np.stack(rows), shape


def _sizes(encoded: list[bytes | None]) -> str:
    """Sizes and modes of encoded images with their counts, the most frequent first, in words."""
    from PIL import Image

    seen: Counter[str] = Counter()
    for content in encoded:
        try:
            with Image.open(io.BytesIO(content or b"")) as image:
                seen[f"{image.width}x{image.height} {image.mode}"] += 1
        except Exception:  # reported elsewhere, by its row
            seen["unreadable"] += 1
    counts = [f"{kind} ({count})" for kind, count in seen.most_common(6)]
    return ", ".join(counts) + (f" and {len(seen) - 6} more" if len(seen) > 6 else "")


@dataclass(frozen=True, kw_only=True)
class TextColumns:
    """Columns of a set of texts.

    inputs: the one or two names of text columns.
    label: the name of the label column.
    """

    inputs: tuple[str, ...]
    label: str

    def __post_init__(self) -> None:
        if not 1 <= len(self.inputs) <= 2 or not all(self.inputs):
            raise ValueError(
                "expected one or two names in input_columns, separated by a comma, got "
                f"{','.join(self.inputs)!r}"
            )

    @property
    def names(self) -> list[str]:
        """The names of all columns, that of the label last."""
        return [*self.inputs, self.label]


@dataclass(frozen=True, kw_only=True, eq=False)
class Texts:
    """N texts, or pairs of texts, with labels.

    first: the texts, or the first of each pair.
    second: the second of each pair; None for single texts.
    labels: (N,) int64.
    class_names: in the order of their numbers, if the data set publishes them; else None.
    """

    first: list[str]
    second: list[str] | None
    labels: np.ndarray
    class_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.labels)


def read_texts(parts: Sequence[Part], columns: TextColumns) -> Texts:
    """One split from its parts, in order.

    Raises ValueError for a part that cannot be read, and as ``check_texts``.
    """
    values: dict[str, list[object]] = {name: [] for name in columns.names}
    for part in parts:
        check_text_columns(columns, part.schema.names, place=part.place)
        for batch in part.batches(columns.names):
            for name in columns.names:
                values[name] += batch[name]
    published = published_of(parts[0].schema).get(columns.label)
    return check_texts(values, columns, published, place=parts[0].place)


def check_text_columns(columns: TextColumns, there: Sequence[str], *, place: str) -> None:
    """Raise ValueError if one of ``columns`` is not ``there``, or comes twice."""
    if len(set(columns.names)) < len(columns.names):
        raise ValueError(
            "expected input_columns and label_column without repetitions, got "
            f"{', '.join(columns.names)}"
        )
    missing = [name for name in columns.names if name not in there]
    if missing:
        raise ValueError(
            f"no column {', '.join(missing)} in {place}, which has {', '.join(there)}; "
            "choose them by input_columns and label_column"
        )


def check_texts(
    values: Mapping[str, Sequence[object]],
    columns: TextColumns,
    class_names: tuple[str, ...] | None,
    *,
    place: str,
) -> Texts:
    """Texts from raw columns.

    Raises ValueError, naming column and row, for no rows, a value that is no text, and a label that
    is not an integer. The caller checks the range of the labels with ``check_text_labels``.
    """
    labels = values[columns.label]
    if not len(labels):
        raise ValueError(f"{place} holds no rows")
    for name in columns.inputs:
        for row, value in enumerate(values[name]):
            if not isinstance(value, str):
                raise ValueError(
                    f"expected text in column {name}, row {row} of {place}, got {value!r}"
                )
    for row, value in enumerate(labels):
        if not isinstance(value, int):
            raise ValueError(
                f"expected an integer in column {columns.label}, row {row} of {place}, got "
                f"{value!r}"
            )
    first, *rest = ([str(value) for value in values[name]] for name in columns.inputs)
    return Texts(
        first=first,
        second=rest[0] if rest else None,
        labels=np.array(labels, dtype=np.int64),
        class_names=class_names,
    )


def check_text_labels(labels: np.ndarray, num_classes: int, *, split: str, name: str) -> None:
    """Raise ValueError unless all labels are in 0..num_classes-1."""
    low, high = int(labels.min()), int(labels.max())
    if not 0 <= low <= high < num_classes:
        hidden = (
            "; -1 is a hidden label: choose a split with labels by test_split" if low == -1 else ""
        )
        raise ValueError(
            f"{name}: expected labels in 0..{num_classes - 1} in {split}, got {low}..{high}{hidden}"
        )


def count_classes(texts: Mapping[str, Texts], tests: Sequence[str]) -> tuple[int, str]:
    """The number of classes, and where it comes from, in words.

    It comes from published names of the labels, or from the public test splits. It is never counted
    in the training labels, which are private.
    """
    for split in texts.values():
        if names := split.class_names:
            return len(names), f"its published label names: {', '.join(names)}"
    largest = max(int(texts[split].labels.max()) for split in tests)
    return 1 + largest, "the largest label of the public test split, plus one"


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnRows:
    """Reads a client's own rows from a file, or from a folder with shards of ``train``.

    It is the ``read`` of a workload.

    name: of the workload, for messages.
    test: public rows; a client's rows have to have their form.
    parquet: reads parquet files, with a cache folder; None for a workload that reads .npz files.
    hub_name: name and subset of the set on the hub. A folder may have its layout.
    """

    name: str
    test: Split
    parquet: Callable[[Sequence[Path], Path], Split] | None = None
    hub_name: tuple[str, str | None] | None = None

    def __call__(self, path: Path, cache: Path) -> Split:
        """The rows of a file or folder. ``cache``: a folder for decoded or tokenised rows.

        Raises ValueError or OSError for any other file, and for rows of another form.
        """
        is_folder, suffix = path.is_dir(), path.suffix.lower()
        if suffix == ".npz" and not is_folder:
            return self._arrays(path)
        if suffix != ".parquet" and not is_folder:
            raise ValueError(
                f"expected {path} to be a .npz or .parquet file, or a folder of parquet shards"
            )
        if self.parquet is None:
            raise ValueError(f"workload {self.name} reads .npz files, not {path}")
        if not is_folder:
            return self.parquet([path], cache)
        if self.hub_name is not None and "train" not in split_names(path):
            path = find_folder(*self.hub_name, data_dir=path) or path
        return self.parquet(find_splits(path, ("train",))["train"], cache)

    def _arrays(self, path: Path) -> Split:
        """The rows of a .npz file, which have to have the type and shape of the public ones."""
        example = self.test.inputs[np.array([0])]
        if not isinstance(example, np.ndarray):
            raise ValueError(f"workload {self.name} reads .parquet files, not {path}")
        inputs, labels = read_npz(path)
        if inputs.dtype != example.dtype or inputs.shape[1:] != example.shape[1:]:
            raise ValueError(
                f"expected inputs of {example.dtype} (N, "
                f"{', '.join(map(str, example.shape[1:]))}) in {path}, got {inputs.dtype} "
                f"{inputs.shape}"
            )
        if labels.dtype.kind not in "iu" or labels.shape != (len(inputs),):
            raise ValueError(
                f"expected {len(inputs)} integer labels in {path}, got {labels.dtype} "
                f"{labels.shape}"
            )
        return Split(
            inputs=inputs,
            labels=torch.from_numpy(labels.astype(np.int64)),
            prepare=self.test.prepare,
        )
