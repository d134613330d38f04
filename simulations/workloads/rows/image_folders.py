"""Images by one rule, and folders with a folder of images for each class, as torchvision and the
hub have them.

DIR/cat/1.png  DIR/cat/2.png  DIR/dog/1.png          classes: the first folders' names in order
DIR/metadata.csv (or .jsonl, .parquet)               more columns, optional: file_name (cat/1.png),
                                                     writer, ...; targets= takes one as the class

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
from fedlsg.simulations.workloads.rows.table_files import read_file

METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")
FILE_NAME = "file_name"
SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
)
LEFT_BY_PROGRAMS = frozenset(
    {"__MACOSX", "@eaDir", "__pycache__", "$RECYCLE.BIN", "System Volume Information"}
)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFolder:
    """Images of a folder, by their paths in it: nothing of them is read.

    names: in the order of the first folders of their paths. listed: all of the folder, of which
    names may be a part. folders: the first folders. others: files in these that are not images.
    """

    path: Path
    called: str
    names: tuple[str, ...]
    listed: tuple[str, ...]
    folders: tuple[str, ...]
    others: tuple[str, ...]

    @staticmethod
    def of(path: Path, called: str) -> "ImageFolder":
        """Hidden files and what programs leave are skipped. Raises ValueError for a folder without
        an image, and for one that cannot be read.
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
            called=called,
            names=names,
            listed=names,
            folders=tuple(folders),
            others=tuple(name for name in files if not _is_image(name)),
        )
        if not names:
            images.by_class()
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
                    f"{self.called}: {label} is in no folder of a class: move it into one, remove "
                    "it, or name the column of the classes in metadata.csv with targets="
                )
            inside[label].append(name)
        for label, names in inside.items():
            if not names:
                raise ValueError(
                    f"{self.called}: the class {label!r} has no images{self._others_in(label)}: "
                    f"expected {', '.join(sorted(SUFFIXES))}; fill the folder or remove it"
                )
        if not inside:
            raise ValueError(
                f"{self.called}: expected a folder of images for each class, as "
                f"{self.path.name}/cat/1.png"
            )
        return inside

    def _others_in(self, label: str) -> str:
        rest = [name for name in self.others if name.startswith(f"{label}/")]
        first = rest[0].partition("/")[2] if rest else ""
        return f" (it has {len(rest)} other files, such as {first})" if rest else ""


def read_image_folder(images: ImageFolder, columns: Columns, what: str) -> Rows:
    """Images (N, channels, height, width) in the order of their paths, and their targets: columns
    of the metadata where some are named, else the numbers of the first folders.

    Raises ValueError for a target column that there is not, for first folders that are not those of
    the classes, images of several sizes (``image_size`` scales them), a file that does not decode,
    and metadata that lack an image; ContentError if something of an image would be lost.
    """
    table = _columns_of(images, columns)
    if columns.targets is None:
        _check_classes(images, table, columns, what)
    targets, classes = _targets_of(images, table, columns)
    if what != "test":  # of test, which is public, each row is an example of its own
        _check_once(images)
    columns.progress(f"{what}: reading {images.size} images")
    files = ((str(images.path / name), images.path / name) for name in images.names)
    stored, how = stack(files, columns, images.called)
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
                f"{images.called}: {first} and {name} are links to one file, and epsilon holds for "
                "an image that comes once: remove the links; if they are of two people, copy it"
            )


def _columns_of(images: ImageFolder, columns: Columns) -> Table:
    """The metadata in the order of the images, and their first folders as ``label`` where these are
    the classes, or no column has that name.

    Raises ValueError for metadata that say another class than the folders where no targets are
    named.
    """
    table = _metadata(images, columns)
    if table is None:
        table = Table(columns={}, size=images.size, what=images.called)
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
    wanted = columns.targets or (LABEL,)
    for name in wanted:
        if name not in table.columns:
            held = f"known are {', '.join(table.columns)}"
            if table.what == images.called:
                held = f"the folder has no {METADATA[0]}"
            raise ValueError(
                f"{images.called} has no column {name!r} for targets="
                f"{did_you_mean(name, table.columns)}; {held}. Without targets= the first folder "
                "of an image is its class"
            )
    published = table.published.get(wanted[0], ()) if len(wanted) == 1 else ()
    values = join_targets([table.values(name) for name in wanted], images.called)
    return number_targets(values, published, columns, images.called)


def _check_classes(images: ImageFolder, table: Table, columns: Columns, what: str) -> None:
    """Raise ValueError, with the fix, unless first folders are classes of the run, and train has
    all of these.
    """
    folders = images.by_class()
    known = columns.classes or (() if columns.like is None else columns.like.classes)
    if not known:
        return
    whose = "classes=" if columns.classes else "test, which is public and says the classes"
    unknown = [label for label in dict.fromkeys(table.values(LABEL)) if label not in known]
    lacking = [name for name in known if name not in folders] if what == "train" else []
    if unknown:
        wrong = (
            f"the first folder of an image is its class, and {unknown[0]!r} is none of {whose} "
            f"({', '.join(known)})"
        )
        fix = "correct it, declare all with classes=, or name a column of metadata.csv as targets="
    elif lacking:
        wrong = f"there is no folder of the class {lacking[0]!r}, which {whose.split(',')[0]} has"
        fix = "give both the same"
    else:
        return
    raise ValueError(f"{images.called}: {wrong}: {_fix_of_order(images, table, known) or fix}")


def _fix_of_order(images: ImageFolder, table: Table, known: Sequence[str]) -> str:
    """What to do about folders of something else that have folders of the classes in them; empty
    where it is something else.
    """
    folders = {*table.values(LABEL)}
    values = {name: {*table.values(name).tolist()} for name in table.columns}
    if fitting := [name for name, held in values.items() if held <= {*known} and held != folders]:
        return f"targets={fitting[0]!r} takes the classes from its column of {METADATA[0]}"
    paths = [name.split("/") for name in images.listed]
    if path := next((one for one in paths if len(one) > 2 and one[1] in known), None):
        return (
            f"in {'/'.join(path)} the class is the second folder. Put the class first, as "
            f"{path[1]}/{path[0]}/{path[-1]}, or give a {METADATA[0]} with {FILE_NAME}, a column "
            "of the class (targets=) and one of the client (partition=)"
        )
    return ""


def list_images(folder: Path, given: str) -> tuple[dict[str, list[str]], list[str]]:
    """Names of images by class, in order, and of other files. Raises ValueError as
    ``ImageFolder``.
    """
    images = ImageFolder.of(folder, given)
    return images.by_class(), list(images.others)


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


def _metadata(images: ImageFolder, columns: Columns) -> Table | None:
    """The metadata in the order of the images; None where there are none."""
    path = next((images.path / one for one in METADATA if (images.path / one).exists()), None)
    if path is None:
        return None
    table = Table.of(read_file(path, path.name, (FILE_NAME, *columns.texts)), path.name)
    if FILE_NAME not in table.columns:
        raise ValueError(
            f"{path} has no column {FILE_NAME}, of names such as {images.names[0]}; it has "
            f"{', '.join(table.columns)}"
        )
    place: dict[str, int] = {}
    for row, given in enumerate(table.values(FILE_NAME)):
        name = posixpath.normpath(str(given).replace("\\", "/"))
        if name in place:
            raise ValueError(f"{path} has two rows for {name}, {place[name]} and {row}: leave one")
        place[name] = row
    if missing := [name for name in images.names if name not in place]:
        raise ValueError(
            f"{path} has no row with {FILE_NAME}={missing[0]}: give one for each image, or remove "
            "the file"
        )
    kept = {name: column for name, column in table.columns.items() if name != FILE_NAME}
    return replace(table, columns=kept).take(np.array([place[name] for name in images.names]))
