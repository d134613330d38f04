"""Images of one size from encoded files: decoded once into uint8 arrays, checked on the way.

A ``Source`` gives encoded images and labels some rows at a time; ``decode`` turns the sources of every split into
arrays (N, channels, side, side) that ``load_or_build`` keeps. The source here is a parquet shard of a Hugging Face data
set; the workload hf-image has another, for data sets of the ``datasets`` library.
"""

import io
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from simulations.workloads.base.mirror import open_parquet
from simulations.workloads.base.workload import Progress

ROWS_AT_ONCE = 1000
CHANNELS = {"L": 1, "RGB": 3}
"""Colour channels of the image modes (Pillow's names) that are read: greyscale and RGB, 8 bits each."""

Rows = tuple[list[bytes | None], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A split, or one file of it. ``batches`` gives the encoded images and labels (int64, -1: none) in order."""

    place: str
    size: int
    batches: Callable[[], Iterator[Rows]]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Channels and pixels on a side of every image of a data set."""

    channels: int
    side: int

    def __str__(self) -> str:
        mode = next(mode for mode, channels in CHANNELS.items() if channels == self.channels)
        return f"{self.side}x{self.side} {mode}"


def decode(
    name: str,
    splits: Mapping[str, Sequence[Source]],
    *,
    num_classes: int,
    shape: Shape | None = None,
    progress: Progress,
) -> dict[str, np.ndarray]:
    """``{split}_images`` (N, channels, side, side) uint8 and ``{split}_labels`` (N,) int64 for every split.

    shape: of every image; None takes the shape of the first image.
    Raises ValueError, naming the place: a label outside 0..num_classes-1, an image without bytes or that does not
    decode, one of another size or mode (with the sizes that were seen), a source that cannot be read.
    """
    started = time.monotonic()
    sizes = {split: sum(source.size for source in sources) for split, sources in splits.items()}
    total, done = sum(sizes.values()), 0
    arrays: dict[str, np.ndarray] = {}
    for split, sources in splits.items():
        labels = np.empty(sizes[split], dtype=np.int64)
        images: np.ndarray | None = None
        start = 0
        for source in sources:
            for encoded, classes in source.batches():
                if not encoded:
                    continue
                _check_labels(classes, num_classes, source.place)
                pixels, shape = _decode_batch(encoded, shape, source.place, start)
                if images is None:
                    images = np.empty((sizes[split], *pixels.shape[1:]), dtype=np.uint8)
                stop = start + len(classes)
                images[start:stop], labels[start:stop] = pixels, classes
                done, start = done + len(classes), stop
                progress(f"{name}: decoded {done:,} of {total:,} images")
        if images is None:
            raise ValueError(f"{name}: the split {split} holds no images")
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    progress(f"{name}: decoded {total:,} images in {time.monotonic() - started:.1f} s; next time they are cached")
    return arrays


def parquet_source(path: Path, image_column: str, label_column: str) -> Source:
    """One shard: ``image_column`` a struct with ``bytes``, ``label_column`` an integer.

    Raises ValueError for other columns, listing the existing ones, and for an unreadable file.
    """
    import pyarrow as pa

    file = open_parquet(path)
    columns = {field.name: field.type for field in file.schema_arrow}
    image, label = columns.get(image_column), columns.get(label_column)
    if not is_image(image) or label is None or not pa.types.is_integer(label):
        raise ValueError(
            f"expected the columns {image_column} (struct with bytes) and {label_column} (integer) in {path}, "
            f"got {', '.join(f'{name} ({kind})' for name, kind in columns.items())}"
        )
    batches = partial(_batches, path, file, image_column, label_column)
    return Source(place=str(path), size=file.metadata.num_rows, batches=batches)


def is_image(kind: Any) -> bool:
    """Whether an arrow type holds encoded images as the hub stores them: a struct with ``bytes``."""
    import pyarrow as pa

    return kind is not None and pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0


def _batches(path: Path, file: Any, image_column: str, label_column: str) -> Iterator[Rows]:
    import pyarrow as pa

    try:
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=[image_column, label_column]):
            labels = np.asarray(batch.column(label_column).fill_null(-1), dtype=np.int64)
            yield batch.column(image_column).field("bytes").to_pylist(), labels
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"cannot read {path}: {error}; download it again") from error


def _check_labels(labels: np.ndarray, num_classes: int, place: str) -> None:
    if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
        raise ValueError(
            f"expected labels in 0..{num_classes - 1} in {place}, got {labels.min()}..{labels.max()} (-1: none)"
        )


def _decode_batch(
    encoded: list[bytes | None], shape: Shape | None, place: str, start: int
) -> tuple[np.ndarray, Shape | None]:
    """(B, channels, side, side) uint8 and the shape, which the first image sets if None is given; B >= 1."""
    given = shape
    rows = []
    for row, content in enumerate(encoded, start):
        pixels, mode = _decode_image(content, place, row)
        height, width = pixels.shape[:2]
        if shape is None:
            if mode not in CHANNELS or height != width:
                raise ValueError(
                    f"expected square images, {' or '.join(CHANNELS)}, got image {row} of {place} with "
                    f"{width}x{height} {mode}: convert the images first"
                )
            shape = Shape(channels=CHANNELS[mode], side=width)
        if f"{width}x{height} {mode}" != str(shape):
            seen = "" if given else f"; it holds {_sizes(encoded)}: bring them to one size first"
            raise ValueError(f"expected image {row} of {place} to be {shape}, got {width}x{height} {mode}{seen}")
        rows.append(pixels.reshape(height, width, shape.channels).transpose(2, 0, 1))
    return np.stack(rows), shape


def _decode_image(content: bytes | None, place: str, row: int) -> tuple[np.ndarray, str]:
    """(height, width[, channels]) and the mode of an encoded image."""
    from PIL import Image, UnidentifiedImageError

    if content is None:
        raise ValueError(f"image {row} of {place} holds no bytes; expected the images inside the file, not their paths")
    try:
        with Image.open(io.BytesIO(content)) as image:
            return np.asarray(image), image.mode
    except Exception as error:  # decoders raise OSError, SyntaxError, EOFError, struct.error, ... on damaged bytes
        reason = "not an image" if isinstance(error, UnidentifiedImageError) else str(error)  # which names an object
        raise ValueError(f"cannot decode image {row} of {place}: {reason}; download it again") from error


def _sizes(encoded: list[bytes | None]) -> str:
    """The sizes and modes of some encoded images with their counts, the most frequent first, from their headers."""
    from PIL import Image

    seen: Counter[str] = Counter()
    for content in encoded:
        try:
            with Image.open(io.BytesIO(content or b"")) as image:
                seen[f"{image.width}x{image.height} {image.mode}"] += 1
        except Exception:  # reported elsewhere, by its row
            seen["unreadable"] += 1
    found = [f"{kind} ({count})" for kind, count in seen.most_common(6)]
    return ", ".join(found) + (f" and {len(seen) - 6} more" if len(seen) > 6 else "")
