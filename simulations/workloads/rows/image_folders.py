"""Images by one rule, and folders with a folder of images for each class, as torchvision and the
hub have them.

DIR/cat/1.png  DIR/cat/2.png  DIR/dog/1.png          classes: the folders' names in order
DIR/metadata.csv (or .jsonl, .parquet)               more columns, optional: file_name (cat/1.png),
                                                     writer, ...

The rule: an image is turned as its EXIF orientation says. 8 bits a pixel: uint8, 255 is 1;
greyscale if all are, else RGB. 16 and 32 bits and floats (one channel): float32, divided by one
number for all splits, the smallest of 255, 511, 1023, ..., 2^b - 1 that no pixel of the public test
images exceeds; floats within -1 and 1 are kept. What else a file holds (transparency, frames) is
not lost without a word: see ``image_contents``.
"""

import io
import os
import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedlsg.simulations.workloads.rows import Columns, Rows, as_targets, of_stored, white_of
from fedlsg.simulations.workloads.rows.columns import Table, text_of
from fedlsg.simulations.workloads.rows.image_contents import (
    ContentError,
    Taken,
    check_decoder,
    choose_frame,
    without_transparency,
)
from fedlsg.simulations.workloads.rows.table_files import read_file

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
FILE_NAME, CLASS = "file_name", "label"
SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
)
LEFT_BY_PROGRAMS = frozenset(
    {"__MACOSX", "@eaDir", "__pycache__", "$RECYCLE.BIN", "System Volume Information"}
)


def read_image_folder(folder: Path, columns: Columns, what: str) -> Rows:
    """Images (N, channels, height, width) in the order of their paths, and the numbers of their
    classes.

    Raises ValueError for a folder without classes, a class without images or with a name that test
    has not, images of several sizes (``image_size`` scales them), a file that does not decode, and
    metadata that lack an image; ContentError if something of an image would be lost.
    """
    given = f"{what}={str(folder)!r}"
    files, others = list_images(folder, given)
    names = [f"{label}/{name}" for label, inside in files.items() for name in inside]
    labels = [label for label, inside in files.items() for _ in inside]
    targets, classes = as_targets(labels, columns, given)
    if what == "train" and (lacking := [name for name in classes if name not in files]):
        raise ValueError(
            f"{given} has no folder of the class {lacking[0]!r}, which test has: give both the same"
        )
    columns.progress(f"{what}: reading {len(names)} images")
    more = {**_metadata(folder, names, columns), CLASS: np.array(labels, dtype=object)}
    stored, how = stack(((str(folder / name), folder / name) for name in names), columns, given)
    left = (f"{len(others)} that are no images, such as {others[0]}",) if others else ()
    return of_stored(
        stored,
        targets,
        columns,
        what,
        columns=more,
        classes=classes,
        names=("images",),
        left_out=left,
        **how,
    )


def list_images(folder: Path, given: str) -> tuple[dict[str, list[str]], list[str]]:
    """Names of images by class, in order, and of other files. Hidden files and what programs leave
    are skipped.

    Raises ValueError for a folder without classes, a class without an image, and an image in no
    class.
    """
    shown = ", ".join(sorted(SUFFIXES))
    classes = sorted(
        entry.name for entry in os.scandir(folder) if entry.is_dir() and not _is_hidden(entry.name)
    )
    if loose := sorted(name for name in os.listdir(folder) if _is_image(name)):
        raise ValueError(
            f"{given}: {loose[0]} is in no folder of a class: move it into one, or remove it"
        )
    by_label: dict[str, list[str]] = {}
    others: list[str] = []
    for label in classes:
        inside = sorted(_files(folder / label))
        by_label[label] = [name for name in inside if _is_image(name)]
        rest = [name for name in inside if not _is_image(name)]
        others += [f"{label}/{name}" for name in rest]
        if not by_label[label]:
            kinds = f" (it has {len(rest)} other files, such as {rest[0]})" if rest else ""
            raise ValueError(
                f"{given}: the class {label!r} has no images{kinds}: expected {shown}; fill the "
                "folder or remove it"
            )
    if not by_label:
        raise ValueError(
            f"{given}: expected a folder of images for each class, as {folder.name}/cat/1.png"
        )
    return by_label, others


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in LEFT_BY_PROGRAMS


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES and not _is_hidden(os.path.basename(name))


def _files(place: Path) -> Iterator[str]:
    """Paths below a folder, relative to it. Raises ValueError for a folder that cannot be read."""

    def refuse(error: OSError) -> None:
        raise ValueError(
            f"cannot read the folder {error.filename}: {error.strerror}; allow it, or remove the "
            "folder"
        )

    for parent, folders, names in os.walk(place, onerror=refuse):
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        inside = Path(parent).relative_to(place)
        yield from ((inside / name).as_posix() for name in names if not _is_hidden(name))


def stack(
    images: Iterable[tuple[str, Any]], columns: Columns, what: str
) -> tuple[np.ndarray, dict[str, Any]]:
    """Images (name, and whatever ``open_image`` takes) as one array (N, channels, height, width),
    and how they were read: fields of ``Rows``.

    Raises ValueError for several sizes without ``image_size``, for several depths, and for another
    form than test's.
    """
    arrays: list[np.ndarray] = []
    first: dict[bool, str] = {}
    for name, source in images:
        image = open_image(source, name, taken=columns.images)
        arrays.append(pixels_of(image, columns.images.size))
        first.setdefault(arrays[-1].dtype == np.uint8, name)
        if arrays[-1].dtype != np.uint8 and not np.isfinite(arrays[-1]).all():
            raise ValueError(
                f"{name} has missing or infinite pixels (NaN, Inf): repair or remove it"
            )
    if len(first) > 1:
        raise ValueError(
            f"{what}: {first[True]} has 8 bits a pixel, {first[False]} more: give all images one "
            "depth"
        )
    like = columns.like
    if len({array.ndim for array in arrays}) > 1 or _channels(like) == 3:
        arrays = [
            np.repeat(array[:, :, None], 3, axis=2) if array.ndim == 2 else array
            for array in arrays
        ]
    if len(sizes := Counter(f"{array.shape[0]}x{array.shape[1]}" for array in arrays)) > 1:
        shown = ", ".join(sorted(sizes)[:4])
        raise ValueError(
            f"{what} has images of several sizes ({shown}): give image_size=, to which they are "
            "scaled"
        )
    whole = np.stack(arrays)
    whole = whole[:, None] if whole.ndim == 3 else np.ascontiguousarray(whole.transpose(0, 3, 1, 2))
    white = None if whole.dtype == np.uint8 else white_of(whole) if like is None else like.white
    if like is not None and _channels(like) and (like.white is None) != (whole.dtype == np.uint8):
        bits = ("8", "more") if whole.dtype == np.uint8 else ("more than 8", "8")
        raise ValueError(
            f"{what} has images of {bits[0]} bits a pixel, test of {bits[1]}: give both one depth"
        )
    if _channels(like) == 1 and whole.shape[1] == 3:
        raise ValueError(f"{what} has images in colour, those of test are grey: give both one mode")
    pixels = whole if white is None else whole / np.float32(white)
    return pixels, {"white": white, "decoded": True}


def _channels(like: Rows | None) -> int:
    """Channels of public images; 0 where there are none."""
    stored = None if like is None else like.inputs[np.zeros(1, dtype=np.int64)]
    return stored.shape[1] if isinstance(stored, np.ndarray) and stored.ndim == 4 else 0


def open_image(
    source: Any,
    name: str,
    fix: str = "replace or remove it",
    draft: tuple[int, int] | None = None,
    taken: Taken = Taken(),  # noqa: B008 (it is frozen)
) -> Any:
    """An image of Pillow from a path, encoded bytes, the ``datasets`` library's dict, or one: grey,
    RGB, or of more than 8 bits; turned upright.

    ``draft``: a JPEG may be decoded at the least scale that has so many pixels.
    Raises ValueError, naming it, for one that is missing or does not decode, and ContentError if
    something of it would be lost.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if isinstance(source, dict):
        source = source.get("bytes") or (Path(source["path"]) if source.get("path") else None)
    if source is None:
        raise ValueError(f"{name} holds no image: fill it in, or leave the row out")
    if isinstance(source, bytes):
        source = io.BytesIO(source)
    try:
        given = isinstance(source, Image.Image)
        with nullcontext(source) if given else Image.open(source) as image:
            choose_frame(image, name, taken.frame)
            check_decoder(image, name)
            if draft is not None:
                image.draft("RGB", draft)
            image.load()
            upright = ImageOps.exif_transpose(image)
            return without_transparency(upright, name, taken.background)
    except ContentError:
        raise
    except Exception as error:  # decoders raise OSError, SyntaxError, EOFError, ...
        # which names an object
        kind = "not an image that Pillow can read"
        reason = kind if isinstance(error, UnidentifiedImageError) else str(error)
        raise ValueError(f"cannot decode {name}: {reason}; {fix}") from None


def check_contents(path: Path, taken: Taken) -> None:
    """Raise as ``open_image`` for a file of which something would be lost, or that does not open.

    Only an image that may have transparent pixels is decoded.
    """
    from PIL import Image

    with suppress(OSError), Image.open(path) as image:
        choose_frame(image, str(path), taken.frame)
        check_decoder(image, str(path))
        if not image.has_transparency_data:
            return
    open_image(path, str(path), taken=taken)


def pixels_of(image: Any, size: int | None) -> np.ndarray:
    """(height, width) or (height, width, 3): uint8, or float32 of more than 8 bits. ``image``: by
    ``open_image``; ``size``: pixels on a side.
    """
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        deep = np.asarray(image).astype(np.float32)
        return deep if size is None else np.asarray(Image.fromarray(deep).resize((size, size)))
    return np.asarray(image if size is None else image.resize((size, size)))


def _metadata(folder: Path, names: list[str], columns: Columns) -> dict[str, np.ndarray]:
    """Columns of the metadata in the order of the images."""
    path = next((folder / name for name in METADATA if (folder / name).exists()), None)
    if path is None:
        return {}
    table = Table.of(read_file(path, path.name, (FILE_NAME,)), path.name)
    if FILE_NAME not in table.columns:
        raise ValueError(
            f"{path} has no column {FILE_NAME}, of names such as {names[0]}; it has "
            f"{', '.join(table.columns)}"
        )
    place: dict[str, int] = {}
    for row, given in enumerate(table.values(FILE_NAME)):
        name = posixpath.normpath(str(given).replace("\\", "/"))
        if name in place:
            raise ValueError(f"{path} has two rows for {name}, {place[name]} and {row}: leave one")
        place[name] = row
    if missing := [name for name in names if name not in place]:
        raise ValueError(
            f"{path} has no row with {FILE_NAME}={missing[0]}: give one for each image, or remove "
            "the file"
        )
    order = np.array([place[name] for name in names])
    return {key: text_of(table.values(key)[order]) for key in table.columns if key != FILE_NAME}
