"""Find a data set: its parquet shards in a local mirror of its Hugging Face repository, or on the hub.

The layout is the hub's: ``<data_dir>/<folder>/<split>-0000i-of-0000N.parquet``. A local mirror has priority over the
hub and is never completed from it: nobody has checked a mixture of two sources.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DATA_VARIABLE = "FEDLSG_DATA"
_SHARD = re.compile(r"(?P<split>[\w.]+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.parquet")
_NAME = re.compile(r"(?!\.)[\w.-]+")
_DATASET = re.compile(r"(?!\.)[\w.-]+(/(?!\.)[\w.-]+)?")


def data_root(data_dir: Path | None) -> Path | None:
    """The local mirror: the given folder, else the one named by FEDLSG_DATA, else None for the hub."""
    root = data_dir or os.environ.get(DATA_VARIABLE)
    return Path(root).expanduser() if root else None


def find_shards(
    name: str, subset: str, splits: tuple[str, ...], *, hub_name: str, data_dir: Path | None
) -> dict[str, list[Path]]:
    """Parquet shards of each split in order, from ``<data_dir>/<name>/<subset>`` or ``hub_name`` on the hub.

    ``data_dir`` defaults to FEDLSG_DATA; with neither the hub is used, its local copy first.
    Raises:
        FileNotFoundError: no such folder, or a shard of the 0000N is missing.
        ModuleNotFoundError: neither a local mirror nor the ``hub`` extra.
        ConnectionError: the hub cannot be reached.
    """
    root = data_root(data_dir)
    if root is None:
        return _find_on_hub(name, subset, splits, hub_name)
    folder = root / name / subset
    if not folder.is_dir():
        source = "--data-dir" if data_dir else DATA_VARIABLE
        raise FileNotFoundError(
            f"no folder {name}/{subset} in {root} ({source}); expected the files of the Hugging Face data set "
            f"{hub_name}, such as {name}/{subset}/{splits[0]}-00000-of-0000N.parquet"
        )
    return {split: _shards(folder, split) for split in splits}


def find_folder(dataset: str, subset: str | None, *, data_dir: Path | None) -> Path | None:
    """The folder with the shards of any data set in a local mirror; None without a mirror.

    It is ``<data_dir>/OWNER/NAME/<subset>`` or, without the owner, ``<data_dir>/NAME/<subset>``; with ``subset`` None
    the data set's own folder or the only one inside it that holds shards. Raises FileNotFoundError, listing the
    existing folders, and ValueError for an invalid name.
    """
    for setting, value, form in (("dataset", dataset, _DATASET), ("subset", subset, _NAME)):
        if value is not None and not form.fullmatch(value):
            raise ValueError(f"expected {setting}={value!r} to be a name, such as dataset=OWNER/NAME subset=NAME")
    root = data_root(data_dir)
    if root is None:
        return None
    source = "--data-dir" if data_dir else DATA_VARIABLE
    places = [root / dataset, root / dataset.rpartition("/")[2]]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        raise FileNotFoundError(
            f"no folder {dataset} in {root} ({source}); expected the files of the Hugging Face data set {dataset}, "
            f"such as {dataset}/{subset or 'default'}/train-00000-of-0000N.parquet"
        )
    subsets = sorted(child.name for child in folder.iterdir() if child.is_dir() and split_names(child))
    if subset is not None:
        if subset not in subsets:
            raise FileNotFoundError(f"no shards in {folder / subset} ({source}); subsets with shards: {_list(subsets)}")
        return folder / subset
    if split_names(folder):
        return folder
    if len(subsets) != 1:
        raise FileNotFoundError(f"{folder} has {len(subsets)} subsets with shards, choose one: subset={_list(subsets)}")
    return folder / subsets[0]


def split_names(folder: Path) -> tuple[str, ...]:
    """The splits that have a shard in a folder, in alphabetical order."""
    matches = (_SHARD.fullmatch(file.name) for file in folder.glob("*.parquet"))
    return tuple(sorted({match["split"] for match in matches if match}))


def find_splits(folder: Path, splits: tuple[str, ...]) -> dict[str, list[Path]]:
    """The shards of each split in order. Raises FileNotFoundError, listing the existing splits, as ``find_shards``."""
    known = split_names(folder)
    for split in splits:
        if split not in known:
            raise FileNotFoundError(
                f"no split {split!r} in {folder}; there are: {_list(known)} (test_split names the evaluated one)"
            )
    return {split: _shards(folder, split) for split in splits}


def open_parquet(path: Path) -> Any:
    """The opened file. Raises ValueError if it is not a parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"cannot read {path}: {error}; download it again") from error


def load_from_hub(dataset: str, subset: str | None, splits: tuple[str, ...]) -> Mapping[str, Any]:
    """The splits of a data set through ``datasets.load_dataset``, kept in that library's own cache.

    Raises:
        ModuleNotFoundError: the library is not installed.
        ValueError: an unknown subset or split; the message lists the existing ones.
        ConnectionError: the hub cannot be reached or has no such data set.
    """
    try:
        import datasets
    except ImportError as error:
        raise _not_here(dataset, "it") from error
    try:
        loaded = datasets.load_dataset(dataset, subset)
    except Exception as error:  # the hub's clients raise their own errors, and ValueError for a subset they do not know
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, ValueError):
            raise ValueError(f"cannot load {dataset} with {subset=}: {reason}") from error
        raise ConnectionError(
            f"cannot load {dataset} from the Hugging Face hub ({reason}); check the name and the connection, "
            f"or give --data-dir or {DATA_VARIABLE} with a folder that holds {dataset}/"
        ) from error
    for split in splits:
        if split not in loaded:
            raise ValueError(f"no split {split!r} in {dataset}; there are: {', '.join(loaded)}")
    return {split: loaded[split] for split in splits}


def _not_here(name: str, held: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"{name} is not on this machine: install the hub extra to download it (pip install 'fedlsg[hub]'), "
        f"or give --data-dir or {DATA_VARIABLE} with a folder that holds {held}"
    )


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _find_on_hub(name: str, subset: str, splits: tuple[str, ...], hub_name: str) -> dict[str, list[Path]]:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise _not_here(name, f"{name}/{subset}/") from error

    def shards(*, local_files_only: bool) -> dict[str, list[Path]]:
        snapshot = snapshot_download(
            hub_name,
            repo_type="dataset",
            allow_patterns=[f"{subset}/{split}-*.parquet" for split in splits],
            local_files_only=local_files_only,
        )
        return {split: _shards(Path(snapshot) / subset, split) for split in splits}

    try:
        return shards(local_files_only=True)
    except FileNotFoundError:
        pass  # not downloaded yet, or only in part
    try:
        return shards(local_files_only=False)
    except Exception as error:  # the hub's client raises its own, requests' and httpx's errors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConnectionError(
            f"cannot download {hub_name} from the Hugging Face hub ({reason}); "
            f"give --data-dir or {DATA_VARIABLE} with a folder that holds {name}/{subset}/"
        ) from error


def _shards(folder: Path, split: str) -> list[Path]:
    """The shards of one split, in order. Raises FileNotFoundError unless they are exactly 0 .. N-1 of one N."""
    found = [match for file in sorted(folder.glob("*.parquet")) if (match := _SHARD.fullmatch(file.name))]
    found = [match for match in found if match["split"] == split]
    if not found:
        raise FileNotFoundError(f"no {split}-0000i-of-0000N.parquet in {folder}")
    counts = {int(match["count"]) for match in found}
    if len(counts) > 1:
        raise FileNotFoundError(f"{folder} mixes {split} shards of different downloads: of {sorted(counts)}; keep one")
    (count,) = counts
    missing = sorted(set(range(count)) - {int(match["index"]) for match in found})
    if missing or len(found) != count:
        names = ", ".join(f"{split}-{index:05d}-of-{count:05d}.parquet" for index in missing)
        raise FileNotFoundError(f"incomplete download in {folder}: {names or 'unexpected shards'} missing")
    return [folder / match.string for match in found]
