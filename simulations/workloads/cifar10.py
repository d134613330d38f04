"""cifar10: 50,000 training and 10,000 test images of 3x32x32 (Krizhevsky 2009), from the hub or a local mirror.

The parquet shards of the Hugging Face data set ``uoft-cs/cifar10`` hold encoded images. They are decoded once into a
cache of uint8 arrays (184 MB), which is memory-mapped afterwards: a batch reads and normalises only its own rows.
"""

import io
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from simulations import models
from simulations.workloads.cache import cache_folder, digest_files, load_or_build
from simulations.workloads.mirror import find_shards
from simulations.workloads.workload import Options, Progress, Split, Workload, rescale

HUB_NAME = "uoft-cs/cifar10"
NUM_CLASSES = 10
_SIDE = 32
_SPLITS = ("train", "test")
_ROWS_AT_ONCE = 1000
_FORMAT = "cifar10 uint8 nchw, version 1"

# The published channel statistics of the training images, used as public constants; not computed from the run's data.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
_OFFSET = 255 * torch.tensor(MEAN).view(3, 1, 1)
_SCALE = 1 / (255 * torch.tensor(STD).view(3, 1, 1))

DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "clients": 10,
        "rounds": 150,
        "local_steps": 1,
        "sample_rate": 0.1,
        "learning_rate": 1.0,
        "momentum": 0.9,
        "clip_norm": 0.5,
        "epsilon": 8.0,
        "delta": 1e-5,
        "rank": 8,
        "sparsity": 0.3,
        "partition": "iid",
    }
)

METHOD_DEFAULTS: Mapping[str, Mapping[str, object]] = MappingProxyType({"rs": {"sparsity": 0.5}})


def load(*, data_dir: Path | None, cache_dir: Path | None, options: Options, progress: Progress) -> Workload:
    """Load the workload; inputs are (B, 3, 32, 32). The first load decodes and takes some seconds.

    Raises:
        FileNotFoundError, ModuleNotFoundError, ConnectionError: as ``mirror.find_shards``.
        ValueError: a shard that cannot be read, other columns, a label outside 0..9, an image that is not 32x32 RGB.
        OSError: the cache folder cannot be written.
    """
    shards = find_shards("cifar10", "plain_text", _SPLITS, hub_name=HUB_NAME, data_dir=data_dir)
    key = f"cifar10-{digest_files([file for files in shards.values() for file in files], salt=_FORMAT)}"
    arrays = load_or_build(cache_folder(cache_dir), key, lambda: _decode(shards, progress), progress=progress)
    prepare = partial(rescale, offset=_OFFSET, scale=_SCALE)
    train, test = (
        Split(
            inputs=arrays[f"{split}_images"],
            labels=torch.from_numpy(arrays[f"{split}_labels"].copy()),
            prepare=prepare,
        )
        for split in _SPLITS
    )
    return Workload(
        name="cifar10",
        train=train,
        test=test,
        num_classes=NUM_CLASSES,
        models=MappingProxyType({"cnn": models.cifar10_cnn}),
        defaults=DEFAULTS,
        method_defaults=METHOD_DEFAULTS,
    )


def _decode(shards: Mapping[str, list[Path]], progress: Progress) -> dict[str, np.ndarray]:
    """``{split}_images`` (N, 3, 32, 32) uint8 and ``{split}_labels`` (N,) int64 for every split."""
    started = time.monotonic()
    opened = {split: [_open(path) for path in paths] for split, paths in shards.items()}
    sizes = {split: sum(file.metadata.num_rows for file in files) for split, files in opened.items()}
    total, done = sum(sizes.values()), 0
    arrays: dict[str, np.ndarray] = {}
    for split, files in opened.items():
        images = np.empty((sizes[split], 3, _SIDE, _SIDE), dtype=np.uint8)
        labels = np.empty(sizes[split], dtype=np.int64)
        start = 0
        for path, file in zip(shards[split], files, strict=True):
            for encoded, classes in _batches(path, file):
                rows = range(start, start + len(classes))
                for row, image in zip(rows, encoded, strict=True):
                    images[row] = _decode_image(image, path, row)
                labels[rows.start : rows.stop] = classes
                start, done = rows.stop, done + len(classes)
                progress(f"cifar10: decoded {done:,} of {total:,} images")
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    progress(f"cifar10: decoded {total:,} images in {time.monotonic() - started:.1f} s; next time they are cached")
    return arrays


def _open(path: Path) -> Any:
    """The parquet file, its columns checked: ``img`` a struct with ``bytes``, ``label`` an integer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"cannot read {path}: {error}; download it again") from error
    schema = file.schema_arrow
    columns = {field.name: field.type for field in schema}
    image, label = columns.get("img"), columns.get("label")
    is_image = image is not None and pa.types.is_struct(image) and image.get_field_index("bytes") >= 0
    if not is_image or label is None or not pa.types.is_integer(label):
        raise ValueError(f"expected the columns img (struct with bytes) and label (integer) in {path}, got {columns}")
    return file


def _batches(path: Path, file: Any) -> Iterator[tuple[list[bytes | None], np.ndarray]]:
    """Encoded images and labels (int64, in 0..9), some rows at a time."""
    import pyarrow as pa

    try:
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=["img", "label"]):
            classes = batch.column("label")
            values = np.asarray(classes.fill_null(-1), dtype=np.int64)
            if len(values) and not 0 <= values.min() <= values.max() < NUM_CLASSES:
                raise ValueError(
                    f"expected labels in 0..{NUM_CLASSES - 1} in {path}, got {values.min()}..{values.max()} (-1: none)"
                )
            yield batch.column("img").field("bytes").to_pylist(), values
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"cannot read {path}: {error}; download it again") from error


def _decode_image(encoded: bytes | None, path: Path, row: int) -> np.ndarray:
    """(3, 32, 32) uint8 from an encoded RGB image."""
    from PIL import Image

    if encoded is None:
        raise ValueError(f"image {row} of {path} holds no bytes; expected the images inside the file, not their paths")
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            mode, size = image.mode, image.size
            pixels = np.asarray(image)
    except Exception as error:  # decoders raise OSError, SyntaxError, EOFError, struct.error, ... on damaged bytes
        raise ValueError(f"cannot decode image {row} of {path}: {error}; download it again") from error
    if mode != "RGB" or size != (_SIDE, _SIDE):
        raise ValueError(f"expected image {row} of {path} to be {_SIDE}x{_SIDE} RGB, got {size[0]}x{size[1]} {mode}")
    return pixels.transpose(2, 0, 1)
