"""Random images and parquet shards of them, in the layout of the Hugging Face hub."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def encode(pixels: np.ndarray, form: str = "PNG") -> bytes:
    """(height, width[, channels]) uint8 as image bytes."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form, lossless=True)
    return stream.getvalue()


def pixels_of(count: int, seed: int, *, side: int = 32, channels: int = 3) -> np.ndarray:
    """(count, side, side, channels), or (count, side, side) for one channel."""
    shape = (count, side, side, channels)[: 4 if channels > 1 else 3]
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_shard(
    file: Path,
    images: list[bytes | None],
    labels: list[int | None],
    *,
    columns: tuple[str, str] = ("img", "label"),
    features: dict[str, object] | None = None,
    more: dict[str, list[object]] | None = None,
) -> None:
    """A shard; ``features`` go into its metadata as ``datasets`` writes them, ``more`` are other
    columns.
    """
    struct = [{"bytes": image, "path": "made.png"} for image in images]
    table = pa.table(
        {
            columns[0]: pa.array(struct, type=IMAGE),
            columns[1]: pa.array(labels, type=pa.int64()),
            **(more or {}),
        }
    )
    if features is not None:
        table = table.replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": features}})}
        )
    pq.write_table(table, file)


def write_cifar10(root: Path, *, train: int, test: int) -> Path:
    """CIFAR-10 with so many images in its splits, in one shard each; returns its folder."""
    folder = root / "cifar10" / "plain_text"
    folder.mkdir(parents=True)
    for split, count in (("train", train), ("test", test)):
        images = [encode(pixels) for pixels in pixels_of(count, seed=count)]
        write_shard(
            folder / f"{split}-00000-of-00001.parquet", images, [row % 10 for row in range(count)]
        )
    return folder
