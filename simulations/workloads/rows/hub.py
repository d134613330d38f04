"""Sets of the Hugging Face hub as columns, some rows at a time: shards of a local mirror, or of the
hub itself.

The layout of a mirror is the hub's: ``<data_dir>/<folder>/<split>-0000i-of-0000N.parquet``. It has
priority over the hub and is never completed from it: nobody has checked a mixture of two sources.
Without one, published sets are downloaded, and others come through the ``datasets`` library. All
hold tables of arrow, with the library's description of the columns in their schema.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedlsg.simulations.models.encoder_source import reason_of
from fedlsg.simulations.workloads.base import Options
from fedlsg.simulations.workloads.base.cache import digest_files
from fedlsg.simulations.workloads.rows.table_files import features_of

DATA_VARIABLE = "FEDLSG_DATA"
_SHARD = re.compile(r"(?P<split>[\w.]+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.parquet")
_NAME = re.compile(r"(?!\.)[\w.-]+")
_DATASET = re.compile(r"(?!\.)[\w.-]+(/(?!\.)[\w.-]+)?")


def data_root(data_dir: Path | None) -> Path | None:
    """The local mirror: the given folder, else the one named by FEDLSG_DATA, else None for the
    hub.
    """
    root = data_dir or os.environ.get(DATA_VARIABLE)
    return Path(root).expanduser() if root else None


def find_folder(dataset: str, subset: str | None, *, data_dir: Path | None) -> Path | None:
    """The folder with the shards of any data set in a local mirror; None without a mirror.

    It is ``<data_dir>/OWNER/NAME/<subset>`` or, without the owner, ``<data_dir>/NAME/<subset>``;
    with ``subset`` None the data set's own folder or the only one inside it that holds shards.
    Raises FileNotFoundError, listing the existing folders, and ValueError for an invalid name.
    """
    for setting, value, form in (("dataset", dataset, _DATASET), ("subset", subset, _NAME)):
        if value is not None and not form.fullmatch(value):
            raise ValueError(
                f"expected {setting}={value!r} to be a name, such as dataset=OWNER/NAME subset=NAME"
            )
    root = data_root(data_dir)
    if root is None:
        return None
    source = "--data-dir" if data_dir else DATA_VARIABLE
    places = [root / dataset, root / dataset.rpartition("/")[2]]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise FileNotFoundError(
            f"{_missing(root, dataset)} ({source}); expected the files of the Hugging Face data "
            f"set {dataset}, such as {dataset}/{subset or 'default'}/train-00000-of-0000N.parquet"
        )
    subsets = sorted(
        child.name for child in folder.iterdir() if child.is_dir() and split_names(child)
    )
    there = ", ".join(subsets) or "none"
    if subset is not None:
        if subset not in subsets:
            raise FileNotFoundError(
                f"no shards in {folder / subset} ({source}); subsets with shards: {there}"
            )
        return folder / subset
    if split_names(folder):
        return folder
    if len(subsets) != 1:
        raise FileNotFoundError(
            f"{folder} has {len(subsets)} subsets with shards, choose one: subset={there}"
        )
    return folder / subsets[0]


def split_names(folder: Path) -> tuple[str, ...]:
    """The splits that have a shard in a folder, in alphabetical order."""
    matches = (_SHARD.fullmatch(file.name) for file in folder.glob("*.parquet"))
    return tuple(sorted({match["split"] for match in matches if match}))


def find_splits(folder: Path, splits: tuple[str, ...]) -> dict[str, list[Path]]:
    """The shards of each split in order. Raises FileNotFoundError, listing the existing splits, as
    ``_shards``.
    """
    known = split_names(folder)
    for split in splits:
        if split not in known:
            raise FileNotFoundError(
                f"no split {split!r} in {folder}; there are: {', '.join(known) or 'none'} "
                "(test_split names the evaluated one)"
            )
    return {split: _shards(folder, split) for split in splits}


def load_from_hub(dataset: str, subset: str | None, splits: tuple[str, ...]) -> Mapping[str, Any]:
    """The splits of a data set through ``datasets.load_dataset``, kept in that library's own cache.

    Raises ModuleNotFoundError without the library; ValueError, listing the existing ones, for an
    unknown subset or split; ConnectionError where the hub cannot be reached or has no such data
    set.
    """
    try:
        import datasets
    except ImportError as error:
        raise _not_here(dataset) from error
    try:
        loaded = datasets.load_dataset(dataset, subset)
    # the hub's clients raise their own errors, and ValueError for a subset they do not know
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, ValueError):
            raise ValueError(f"cannot load {dataset} with {subset=}: {reason}") from error
        raise ConnectionError(
            f"cannot load {dataset} from the Hugging Face hub ({reason}); check the name and the "
            f"connection, or give --data-dir or {DATA_VARIABLE} with a folder that holds {dataset}/"
        ) from error
    for split in splits:
        if split not in loaded:
            raise ValueError(f"no split {split!r} in {dataset}; there are: {', '.join(loaded)}")
    return {split: loaded[split] for split in splits}


def _not_here(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"{name} is not on this machine: install the hub extra to download it (pip install "
        f"'fedlsg[hub]'), or give --data-dir or {DATA_VARIABLE} with a folder that holds it"
    )


def _download(dataset: str, subset: str, splits: tuple[str, ...]) -> Path:
    """The folder of a published set on the hub, its local copy first: the files of these splits
    alone are fetched.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise _not_here(dataset) from error

    def get(*, local_files_only: bool) -> Path:
        patterns = [f"{subset}/{split}-*.parquet" for split in splits]
        whole = snapshot_download(
            dataset, repo_type="dataset", allow_patterns=patterns, local_files_only=local_files_only
        )
        find_splits(Path(whole) / subset, splits)
        return Path(whole) / subset

    with suppress(FileNotFoundError):  # not downloaded yet, or only in part
        return get(local_files_only=True)
    try:
        return get(local_files_only=False)
    except Exception as error:  # the hub's client raises its own, requests' and httpx's errors
        raise ConnectionError(
            f"cannot download {dataset} from the Hugging Face hub ({reason_of(error)}); "
            f"give --data-dir or {DATA_VARIABLE} with a folder that holds {dataset}/{subset}/"
        ) from error


def _shards(folder: Path, split: str) -> list[Path]:
    """The shards of one split, in order. Raises FileNotFoundError unless they are exactly 0 .. N-1
    of one N.
    """
    files = sorted(folder.glob("*.parquet"))
    matches = [
        match
        for file in files
        if (match := _SHARD.fullmatch(file.name)) and match["split"] == split
    ]
    if not matches:
        raise FileNotFoundError(f"no {split}-0000i-of-0000N.parquet in {folder}")
    counts = {int(match["count"]) for match in matches}
    if len(counts) > 1:
        raise FileNotFoundError(
            f"{folder} mixes {split} shards of different downloads: of {sorted(counts)}; keep one"
        )
    (count,) = counts
    missing = sorted(set(range(count)) - {int(match["index"]) for match in matches})
    if missing or len(matches) != count:
        names = ", ".join(f"{split}-{index:05d}-of-{count:05d}.parquet" for index in missing)
        raise FileNotFoundError(
            f"incomplete download in {folder}: {names or 'unexpected shards'} missing"
        )
    return [folder / match.string for match in matches]


ROWS_AT_ONCE = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """A split, or one file of it. ``batches(names)`` gives these columns by name, in order, as
    lists.
    """

    place: str
    size: int
    schema: Any
    batches: Callable[[Sequence[str]], Iterator[Mapping[str, list[Any]]]]

    @property
    def features(self) -> dict[str, Any]:
        """Each column as the ``datasets`` library declares it; without a declaration by its arrow
        type.
        """
        declared = features_of(self.schema)
        plain = {
            field.name: {"_type": "Image"}
            if is_image(field.type)
            else {"_type": "Value", "dtype": str(field.type)}
            for field in self.schema
        }
        return {name: declared.get(name, feature) for name, feature in plain.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class HubSet:
    """The parts of each split, by our own names of the splits; ``digest(columns)`` depends on their
    whole content.

    mirror: name and subset of the set on the hub; None for files that are named by their paths.
    """

    splits: Mapping[str, Sequence[Part]]
    place: str
    digest: Callable[[Sequence[str]], str]
    folder: Path | None = None
    mirror: tuple[str, str | None] | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of each split."""
        return {split: sum(part.size for part in parts) for split, parts in self.splits.items()}

    @property
    def first(self) -> Part:
        return next(iter(self.splits.values()))[0]


def find_set(
    options: Options, data_dir: Path | None, splits: Mapping[str, str], *, published: bool = False
) -> HubSet:
    """The set that ``options`` name, from a mirror; without one from the hub, through ``datasets``
    unless its layout is ``published`` here.

    ``splits``: the set's own names of the splits, by ours. Raises what ``find_folder`` and
    ``load_from_hub`` raise.
    """
    assert options.dataset is not None
    folder = find_folder(options.dataset, options.subset, data_dir=data_dir)
    if folder is None and published:
        folder = _download(options.dataset, str(options.subset), tuple(splits.values()))
    mirror = (options.dataset, options.subset)
    if folder is not None:
        split_files = find_splits(folder, tuple(splits.values()))
        return replace(
            of_shards({name: split_files[split] for name, split in splits.items()}, folder),
            mirror=mirror,
        )
    loaded = load_from_hub(options.dataset, options.subset, tuple(splits.values()))
    parts = {
        name: [_of_library(loaded[split], f"{options.dataset}, {name} split")]
        for name, split in splits.items()
    }
    return HubSet(
        splits=parts, place=options.dataset, digest=partial(_digest, parts), mirror=mirror
    )


def of_shards(shards: Mapping[str, Sequence[Path]], folder: Path | None = None) -> HubSet:
    """Splits of parquet files. Raises ValueError for one that cannot be read."""
    files = [file for paths in shards.values() for file in paths]
    return HubSet(
        splits={split: [shard(path) for path in paths] for split, paths in shards.items()},
        place=str(folder or files[0]),
        folder=folder,
        digest=lambda columns: digest_files(files, salt=""),
    )


def shard(path: Path) -> Part:
    """A parquet file. Raises ValueError if it is none."""
    import pyarrow as pa
    from pyarrow import parquet

    @contextmanager
    def read() -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"cannot read {path}: {error}; download it again") from error

    with read():
        file = parquet.ParquetFile(path)

    def batches(names: Sequence[str]) -> Iterator[Mapping[str, list[Any]]]:
        with read():
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=list(names)):
                yield batch.to_pydict()

    return Part(
        place=str(path), size=file.metadata.num_rows, schema=file.schema_arrow, batches=batches
    )


def is_image(kind: Any) -> bool:
    """Whether an arrow type holds encoded images as the hub stores them: a struct with
    ``bytes``.
    """
    import pyarrow as pa

    return kind is not None and pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0


def _of_library(split: Any, place: str) -> Part:
    """A split of the ``datasets`` library."""

    def batches(names: Sequence[str]) -> Iterator[Mapping[str, list[Any]]]:
        for batch in split.select_columns(list(names)).with_format("arrow").iter(ROWS_AT_ONCE):
            yield batch.to_pydict()

    return Part(place=place, size=len(split), schema=split.features.arrow_schema, batches=batches)


def _digest(parts: Mapping[str, Sequence[Part]], columns: Sequence[str]) -> str:
    """32 hex digits that depend on every value of the columns (of images the bytes), and on which
    split holds it.
    """
    digest = hashlib.sha256(repr(list(columns)).encode())
    for name, split in parts.items():
        for part in split:
            digest.update(f"\n{name} {part.size} {part.features}\n".encode())
            for batch in part.batches(columns):
                for value in (value for column in columns for value in batch[column]):
                    content = content_of(value) if isinstance(value, Mapping) else value
                    whole = (
                        content
                        if isinstance(content, bytes)
                        else repr(content).encode("utf-8", "surrogatepass")
                    )
                    digest.update(hashlib.sha256(whole).digest())
    return digest.hexdigest()[:32]


def content_of(image: Mapping[str, Any] | None) -> bytes | None:
    """The encoded image; of one stored by its path, the file."""
    if image is None or image["bytes"] is not None or not image.get("path"):
        return None if image is None else image["bytes"]
    file = Path(image["path"])
    return file.read_bytes() if file.is_file() else None


def _missing(root: Path, dataset: str) -> str:
    """Which folder is not there: that of all data, or that of one data set in it."""
    if not root.is_dir():
        return f"there is no folder {root}"
    return f"no folder {dataset} in {root}"
