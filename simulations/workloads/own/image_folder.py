"""A folder with a folder of images for each class, as torchvision and the Hugging Face hub have it.

DIR/cat/1.png  DIR/cat/2.png  DIR/dog/1.png          classes: the folders' names in order
DIR/metadata.csv                                     more columns, optional: file_name (cat/1.png), writer, ...
"""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from simulations.workloads.own.rows import Columns, Rows, of_stored, pixels

METADATA = "metadata.csv"
FILE_NAME = "file_name"
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})


def read_image_folder(folder: Path, columns: Columns, what: str) -> Rows:
    """Images (N, channels, height, width) uint8 in the order of their paths, and the numbers of their classes.

    Raises ValueError for a folder without classes, images of several sizes (``image_size`` scales them), a file that
    does not decode, and metadata that lack an image.
    """
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    files = [
        (number, path)
        for number, name in enumerate(classes)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    if not files:
        raise ValueError(
            f"{what}={str(folder)!r}: expected a folder of images for each class, as {folder.name}/cat/1.png"
        )
    columns.progress(f"{what}: reading {len(files)} images")
    images = stacked((_read(path) for _, path in files), columns.image_size, f"{what}={str(folder)!r}")
    names = [path.relative_to(folder).as_posix() for _, path in files]
    rows = of_stored(
        images,
        torch.tensor([number for number, _ in files]),
        columns,
        what,
        more=_metadata(folder / METADATA, names),
        default=pixels,
    )
    return Rows(**{**vars(rows), "classes": tuple(classes)})


def stacked(images: Iterable[Any], size: int | None, what: str) -> np.ndarray:
    """Images of Pillow as one array (N, channels, height, width), uint8; greyscale if all are, else RGB.

    ``size``: pixels on a side to which all are scaled. Raises ValueError for several sizes without it.
    """
    arrays = []
    for image in images:
        form = image if image.mode in ("L", "RGB") else image.convert("RGB")
        arrays.append(np.asarray(form if size is None else form.resize((size, size))))
    if len({array.ndim for array in arrays}) > 1:
        arrays = [np.repeat(array[:, :, None], 3, axis=2) if array.ndim == 2 else array for array in arrays]
    if len(sizes := sorted({array.shape[:2] for array in arrays})) > 1:
        shown = ", ".join(f"{height}x{width}" for height, width in sizes[:4])
        raise ValueError(f"{what} has images of several sizes ({shown}): give image_size=, to which they are scaled")
    whole = np.stack(arrays)
    return whole[:, None] if whole.ndim == 3 else np.ascontiguousarray(whole.transpose(0, 3, 1, 2))


def _read(path: Path) -> Any:
    from PIL import Image

    try:
        with Image.open(path) as image:
            image.load()
            return image
    except Exception as error:  # decoders raise OSError, SyntaxError, EOFError, ...
        raise ValueError(f"cannot decode {path}: {error}; replace or remove it") from None


def _metadata(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns of metadata.csv in the order of the images."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = {row.get(FILE_NAME, ""): row for row in csv.DictReader(file)}
    if missing := [name for name in names if name not in rows]:
        raise ValueError(
            f"{path} has no row with {FILE_NAME}={missing[0]}: give one for each image, or remove the file"
        )
    others = [key for key in rows[names[0]] if key not in (FILE_NAME, None)]
    return {key: np.array([rows[name][key] for name in names]) for key in others}
