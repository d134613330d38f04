"""Folders with a folder of images for each class, and the rule by which all images are read.

DIR/cat/1.png  DIR/cat/2.png  DIR/dog/1.png          classes: the first folders' names in order
DIR/metadata.csv (or .jsonl, .parquet)               more columns, optional: file_name (cat/1.png),
                                                     writer, ...; targets= takes one as the class

The rule: an image is turned as its EXIF orientation says. Images of 8 bits a pixel are uint8, and
255 is 1. They are greyscale if all of them are, else RGB. Images of 16 and 32 bits and floats (one
channel) are float32, divided by one number for all splits: the smallest of 255, 511, 1023, ...,
2^b - 1 that no pixel of the public test images exceeds. Floats within -1 and 1 are kept. What else
a file holds (transparency, frames) is refused or said in a setting: see ``image_contents``.
"""

import io
import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedlsg.config.choices import did_you_mean
from fedlsg.simulations.workloads.rows import Columns, Rows, of_stored, white_of
from fedlsg.simulations.workloads.rows.columns import (
    LABEL,
    Table,
    join_targets,
    number_targets,
    text_of,
)
from fedlsg.simulations.workloads.rows.image_contents import (
    ContentError,
    Taken,
    check_decoder,
    choose_frame,
    without_transparency,
)

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
"""Names of the file with more columns; the first that exists is read."""
FILE_NAME = "file_name"
"""The column of the metadata with the path of an image."""
SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
)
LEFT_BY_PROGRAMS = frozenset(
    {"__MACOSX", "@eaDir", "__pycache__", "$RECYCLE.BIN", "System Volume Information"}
)
"""Folders that programs make, which are skipped."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFolder:
    """The images of a folder, by their paths in it, which are all that is read here.

    path: of the folder.
    title: the folder in messages.
    names: paths of the images, in the order of their first folders.
    listed: those of all images of the folder, of which ``names`` may be a part.
    folders: the first folders.
    others: paths of files in these that are not images.
    """

    path: Path
    title: str
    names: tuple[str, ...]
    listed: tuple[str, ...]
    folders: tuple[str, ...]
    others: tuple[str, ...]

    @staticmethod
    def of(path: Path, title: str) -> "ImageFolder":
        """The images of a folder, without hidden files and files that programs leave.

        Raises ValueError for a folder without an image, and for one that cannot be read.
        """
        folders = sorted(
            entry.name
            for entry in os.scandir(path)
            if entry.is_dir() and not _is_hidden(entry.name)
        )
        files = [f"{label}/{name}" for label in folders for name in sorted(_files(path / label))]
        loose = sorted(name for name in os.listdir(path) if _is_image(name))
        names = (*filter(_is_image, files), *loose)
        images = ImageFolder(
            path=path,
            title=title,
            names=names,
            listed=names,
            folders=tuple(folders),
            others=tuple(name for name in files if not _is_image(name)),
        )
        if not names:
            images.by_class()  # raises with the reason
        return images

    @property
    def size(self) -> int:
        """The number of images."""
        return len(self.names)

    def take(self, rows: np.ndarray) -> "ImageFolder":
        """These images in this order."""
        return replace(self, names=tuple(self.names[row] for row in rows.tolist()))

    def by_class(self) -> dict[str, list[str]]:
        """Names of all images in the folder of each class, in order.

        Raises ValueError for a folder without classes, a class without an image, and an image in no
        class.
        """
        inside: dict[str, list[str]] = {label: [] for label in self.folders}
        for path in self.listed:
            label, _, name = path.partition("/")
            if not name:
                raise ValueError(
                    f"{self.title}: {label} is in no folder of a class: move it into one, remove "
                    "it, or name the column of the classes in metadata.csv with targets="
                )
            inside[label].append(name)
        for label, names in inside.items():
            if not names:
                raise ValueError(
                    f"{self.title}: the class {label!r} has no images{self._others_in(label)}: "
                    f"expected {', '.join(sorted(SUFFIXES))}; fill the folder or remove it"
                )
        if not inside:
            raise ValueError(
                f"{self.title}: expected a folder of images for each class, as "
                f"{self.path.name}/cat/1.png"
            )
        return inside

    def _others_in(self, label: str) -> str:
        """What a folder has that are not images, in words; empty if it has nothing."""
        rest = [name for name in self.others if name.startswith(f"{label}/")]
        first = rest[0].partition("/")[2] if rest else ""
        return f" (it has {len(rest)} other files, such as {first})" if rest else ""


def read_image_folder(images: ImageFolder, columns: Columns, what: str) -> Rows:
    """Rows of a folder: images (N, channels, height, width) in the order of their paths.

    Targets are the named columns of the metadata. Without names, they are the numbers of the first
    folders.
    Raises ValueError for an unknown target column, for first folders that are not the classes, for
    images of several sizes (``image_size`` scales them), for a file that does not decode, and for
    metadata that lack an image; ContentError if something of an image would be lost.
    """
    table = _columns_of(images, columns)
    if columns.targets is None:
        _check_classes(images, table, columns, what)
    targets, classes = _targets_of(images, table, columns)
    if what != "test":  # of test, which is public, each row is an example of its own
        _check_once(images)
    columns.progress(f"{what}: reading {images.size} images")
    files = ((str(images.path / name), images.path / name) for name in images.names)
    stored, how = stack(files, columns, images.title)
    others = images.others
    left = (f"{len(others)} that are no images, such as {others[0]}",) if others else ()
    return of_stored(
        stored,
        targets,
        columns,
        what,
        columns={name: text_of(table.values(name)) for name in table.columns},
        classes=classes,
        names=("images",),
        target_names=columns.targets or (),
        left_out=left,
        **how,
    )


def _check_once(images: ImageFolder) -> None:
    """Raise ValueError, naming both, for two names of one file: epsilon holds for one that comes
    once.
    """
    known: dict[tuple[int, int], str] = {}
    for name in images.names:
        file = (images.path / name).stat()
        first = known.setdefault((file.st_dev, file.st_ino), name)
        if first != name:
            raise ValueError(
                f"{images.title}: {first} and {name} are links to one file, and epsilon holds for "
                "an image that comes once: remove the links; if they are of two people, copy it"
            )


def _columns_of(images: ImageFolder, columns: Columns) -> Table:
    """The metadata in the order of the images, with the first folders as the column ``label``.

    A column ``label`` of the metadata is kept. Without named targets it has to have the first
    folders: ValueError otherwise.
    """
    table = _metadata(images, columns)
    if table is None:
        table = Table(columns={}, size=images.size, what=images.title)
    # empty for an image that is in no folder
    labels = [name.rpartition("/")[0].partition("/")[0] for name in images.names]
    if columns.targets is None and LABEL in table.columns:
        for name, label, value in zip(images.names, labels, table.values(LABEL), strict=True):
            if str(value) != label:
                raise ValueError(
                    f"{table.what} says {LABEL} {value!r} of {name}, whose class by its first "
                    f"folder is {label!r}: targets={LABEL!r} takes the column; or rename the column"
                )
    if LABEL in table.columns or not all(labels):
        return table
    return replace(table, columns={**table.columns, LABEL: labels})


def _targets_of(
    images: ImageFolder, table: Table, columns: Columns
) -> tuple[Tensor, tuple[str, ...]]:
    """The targets of the images as numbers, and the names of their classes."""
    names = columns.targets or (LABEL,)
    for name in names:
        if name not in table.columns:
            held = f"known are {', '.join(table.columns)}"
            if table.what == images.title:
                held = f"the folder has no {METADATA[0]}"
            raise ValueError(
                f"{images.title} has no column {name!r} for targets="
                f"{did_you_mean(name, table.columns)}; {held}. Without targets= the first folder "
                "of an image is its class"
            )
    published = table.published.get(names[0], ()) if len(names) == 1 else ()
    if columns.targets is None and columns.like is None and not columns.classes:
        # a folder named "none" is a class, while the same text in a table may be a missing value
        columns = replace(columns, classes=tuple(sorted({*table.values(LABEL)})))
    # several targets are numbers
    values_of = table.values if len(names) == 1 else table.input_values
    values = join_targets([values_of(name) for name in names], images.title)
    return number_targets(values, published, columns, images.title)


def _check_classes(images: ImageFolder, table: Table, columns: Columns, what: str) -> None:
    """Raise ValueError, with the fix, for a first folder that is not a class of the run.

    So it does if train lacks the folder of a class.
    """
    folders = images.by_class()
    classes = columns.classes or (() if columns.like is None else columns.like.classes)
    if not classes:
        return
    whose = "classes=" if columns.classes else "test, which is public and says the classes"
    unknown = [label for label in dict.fromkeys(table.values(LABEL)) if label not in classes]
    missing = [name for name in classes if name not in folders] if what == "train" else []
    if unknown:
        wrong = (
            f"the first folder of an image is its class, and {unknown[0]!r} is none of {whose} "
            f"({', '.join(classes)})"
        )
        fix = "correct it, declare all with classes=, or name a column of metadata.csv as targets="
    elif missing:
        wrong = f"there is no folder of the class {missing[0]!r}, which {whose.split(',')[0]} has"
        fix = "give both the same"
    else:
        return
    raise ValueError(f"{images.title}: {wrong}: {_fix_of_order(images, table, classes) or fix}")


def _fix_of_order(images: ImageFolder, table: Table, classes: Sequence[str]) -> str:
    """What to do if the classes are a column of the metadata, or second folders; else empty."""
    folders = set(table.values(LABEL))
    for name in table.columns:
        values = set(table.values(name).tolist())
        if values <= set(classes) and values != folders:
            return f"targets={name!r} takes the classes from its column of {METADATA[0]}"
    for name in images.listed:
        path = name.split("/")
        if len(path) > 2 and path[1] in classes:
            return (
                f"in {name} the class is the second folder. Put the class first, as "
                f"{path[1]}/{path[0]}/{path[-1]}, or give a {METADATA[0]} with {FILE_NAME}, a "
                "column of the class (targets=) and one of the client (partition=)"
            )
    return ""


def list_images(folder: Path, title: str) -> tuple[dict[str, list[str]], list[str]]:
    """(names of images by class, in order; names of other files). Raises as ``ImageFolder.of``."""
    images = ImageFolder.of(folder, title)
    return images.by_class(), list(images.others)


def _is_hidden(name: str) -> bool:
    """Whether a file or folder is hidden, or one that programs leave."""
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
    """Images as one array (N, channels, height, width), and fields of ``Rows`` about them.

    images: of each, a name for messages and whatever ``open_image`` takes.
    Raises ValueError for several sizes without ``image_size``, for several depths, and for another
    form than that of test.
    """
    arrays: list[np.ndarray] = []
    first_of_depth: dict[bool, str] = {}  # True: 8 bits a pixel
    for name, source in images:
        image = open_image(source, name, taken=columns.images)
        pixels = pixels_of(image, columns.images.size)
        arrays.append(pixels)
        first_of_depth.setdefault(pixels.dtype == np.uint8, name)
        if pixels.dtype != np.uint8 and not np.isfinite(pixels).all():
            raise ValueError(
                f"{name} has missing or infinite pixels (NaN, Inf): repair or remove it"
            )
    if len(first_of_depth) > 1:
        raise ValueError(
            f"{what}: {first_of_depth[True]} has 8 bits a pixel, {first_of_depth[False]} more: "
            "give all images one depth"
        )
    sizes = {f"{array.shape[0]}x{array.shape[1]}" for array in arrays}
    if len(sizes) > 1:
        shown = ", ".join(sorted(sizes)[:4])
        raise ValueError(
            f"{what} has images of several sizes ({shown}): give image_size=, to which they are "
            "scaled"
        )
    like = columns.like
    if len({array.ndim for array in arrays}) > 1 or _channels(like) == 3:
        # grey images among coloured ones get three equal channels
        arrays = [np.atleast_3d(array) for array in arrays]
        arrays = [np.broadcast_to(array, (*array.shape[:2], 3)) for array in arrays]
    stacked = np.stack(arrays)
    if stacked.ndim == 3:
        stacked = stacked[:, None]
    else:
        stacked = np.ascontiguousarray(stacked.transpose(0, 3, 1, 2))
    is_8_bit = stacked.dtype == np.uint8
    if like is not None and _channels(like) and (like.white is None) != is_8_bit:
        bits = ("8", "more") if is_8_bit else ("more than 8", "8")
        raise ValueError(
            f"{what} has images of {bits[0]} bits a pixel, test of {bits[1]}: give both one depth"
        )
    if _channels(like) == 1 and stacked.shape[1] == 3:
        raise ValueError(f"{what} has images in colour, those of test are grey: give both one mode")
    white = None
    if not is_8_bit:
        white = white_of(stacked) if like is None else like.white
    if white is not None:
        stacked = stacked / np.float32(white)
    return stacked, {"white": white, "decoded": True}


def _channels(like: Rows | None) -> int:
    """Channels of the public images; 0 if there are none."""
    stored = None if like is None else like.inputs[np.zeros(1, dtype=np.int64)]
    return stored.shape[1] if isinstance(stored, np.ndarray) and stored.ndim == 4 else 0


def open_image(
    source: Any,
    name: str,
    fix: str = "replace or remove it",
    draft: tuple[int, int] | None = None,
    taken: Taken = Taken(),  # noqa: B008 (it is frozen)
) -> Any:
    """An upright image of Pillow: grey, RGB, or of more than 8 bits.

    source: a path, encoded bytes, a dict of the ``datasets`` library, or an image of Pillow.
    name: the image in messages.
    fix: what to do about a file that does not decode, in messages.
    draft: a JPEG may be decoded at the smallest scale that has at least this (width, height).
    taken: what is read of it.
    Raises ValueError for an image that is missing or does not decode, and ContentError if something
    of it would be lost.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if isinstance(source, dict):
        source = source.get("bytes") or (Path(source["path"]) if source.get("path") else None)
    if source is None:
        raise ValueError(f"{name} holds no image: fill it in, or leave the row out")
    if isinstance(source, bytes):
        source = io.BytesIO(source)
    try:
        is_open = isinstance(source, Image.Image)
        with nullcontext(source) if is_open else Image.open(source) as image:
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
        reason = str(error)
        if isinstance(error, UnidentifiedImageError):  # its text names an object in memory
            reason = "not an image that Pillow can read"
        raise ValueError(f"cannot decode {name}: {reason}; {fix}") from None


def check_contents(path: Path, taken: Taken) -> None:
    """Raise as ``open_image`` for a file that does not open, or of which something would be lost.

    Only an image that may have transparent pixels is decoded here, or one that does not open.
    """
    from PIL import Image

    with suppress(OSError), Image.open(path) as image:
        choose_frame(image, str(path), taken.frame)
        check_decoder(image, str(path))
        if not image.has_transparency_data:
            return
    open_image(path, str(path), taken=taken)


def pixels_of(image: Any, size: int | None) -> np.ndarray:
    """Pixels (height, width) of a grey image, (height, width, 3) of an RGB one.

    They are uint8, or float32 for more than 8 bits.

    image: from ``open_image``.
    size: pixels on a side to which it is scaled; None: as it is.
    """
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        deep = np.asarray(image).astype(np.float32)
        return deep if size is None else np.asarray(Image.fromarray(deep).resize((size, size)))
    return np.asarray(image if size is None else image.resize((size, size)))


def _metadata(images: ImageFolder, columns: Columns) -> Table | None:
    """The metadata in the order of the images; None for a folder without metadata."""
    paths = [images.path / name for name in METADATA if (images.path / name).exists()]
    if not paths:
        return None
    path = paths[0]
    table = Table.of_file(path, path.name, (FILE_NAME, *columns.texts))
    table = replace(table, what=path.name)
    if FILE_NAME not in table.columns:
        raise ValueError(
            f"{path} has no column {FILE_NAME}, of names such as {images.names[0]}; it has "
            f"{', '.join(table.columns)}"
        )
    row_of: dict[str, int] = {}
    for row, file in enumerate(table.values(FILE_NAME)):
        name = posixpath.normpath(str(file).replace("\\", "/"))
        if name in row_of:
            raise ValueError(f"{path} has two rows for {name}, {row_of[name]} and {row}: leave one")
        row_of[name] = row
    if missing := [name for name in images.names if name not in row_of]:
        raise ValueError(
            f"{path} has no row with {FILE_NAME}={missing[0]}: give one for each image, or remove "
            "the file"
        )
    kept = {name: column for name, column in table.columns.items() if name != FILE_NAME}
    return replace(table, columns=kept).take(np.array([row_of[name] for name in images.names]))
