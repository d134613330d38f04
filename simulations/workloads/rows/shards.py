"""The files of a data set in a local mirror of the Hugging Face hub are found by their names.

A mirror has the layout of the hub: a split is cut into N parquet files, its shards,
``<mirror>/OWNER/NAME/<subset>/<split>-0000i-of-0000N.parquet``. Only names of files and folders are
read here, no rows.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

DATA_VARIABLE = "FEDLSG_DATA"
"""The environment variable that names the mirror where no ``--data-dir`` is given."""

_SHARD = re.compile(r"(?P<split>[\w.]+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.parquet")
# No part of a name begins with a dot: no setting leads out of the mirror.
_NAME = re.compile(r"(?!\.)[\w.-]+")
_DATASET = re.compile(r"(?!\.)[\w.-]+(/(?!\.)[\w.-]+)?")


def data_root(data_dir: Path | None) -> Path | None:
    """The folder of the mirror: the given one, else that of FEDLSG_DATA; None if there is none."""
    root = data_dir or os.environ.get(DATA_VARIABLE)
    return Path(root).expanduser() if root else None


def find_folder(dataset: str, subset: str | None, *, data_dir: Path | None) -> Path | None:
    """The folder that holds the shards of a data set; None without a mirror.

    It is ``OWNER/NAME/<subset>`` in the mirror or, without the owner, ``NAME/<subset>``. The given
    folder may also be ``NAME`` itself. With ``subset`` None it is the data set's own folder, or the
    only folder in it that holds shards.
    Raises FileNotFoundError, listing the existing folders, and ValueError for an invalid name.
    """
    _check_name("dataset", dataset, _DATASET)
    if subset is not None:
        _check_name("subset", subset, _NAME)
    root = data_root(data_dir)
    if root is None:
        return None
    source = "--data-dir" if data_dir else DATA_VARIABLE
    folder = _dataset_folder(root, dataset, subset, source)
    if subset is None and split_names(folder):
        return folder
    return folder / _existing_subset(folder, subset, source)


def _check_name(setting: str, value: str, form: re.Pattern[str]) -> None:
    """Raise ValueError for a name that is not of the form."""
    if not form.fullmatch(value):
        raise ValueError(
            f"expected {setting}={value!r} to be a name, such as dataset=OWNER/NAME subset=NAME"
        )


def _dataset_folder(root: Path, dataset: str, subset: str | None, source: str) -> Path:
    """The folder of a data set in the mirror, with or without the owner's name; the mirror itself
    if it is that folder.
    """
    _, _, name = dataset.rpartition("/")
    for folder in (root / dataset, root / name):
        if folder.is_dir():
            return folder
    if root.is_dir() and root.resolve().name == name:
        return root
    missing = f"no folder {dataset} in {root}" if root.is_dir() else f"there is no folder {root}"
    raise FileNotFoundError(
        f"{missing} ({source}); expected the files of the Hugging Face data "
        f"set {dataset}, such as {dataset}/{subset or 'default'}/train-00000-of-0000N.parquet"
    )


def _existing_subset(folder: Path, subset: str | None, source: str) -> str:
    """The subset, if it has shards; with None the only subset that has."""
    subsets = sorted(
        child.name for child in folder.iterdir() if child.is_dir() and split_names(child)
    )
    names = ", ".join(subsets) or "none"
    if subset is None:
        if len(subsets) != 1:
            raise FileNotFoundError(
                f"{folder} has {len(subsets)} subsets with shards, choose one: subset={names}"
            )
        return subsets[0]
    if subset not in subsets:
        raise FileNotFoundError(
            f"no shards in {folder / subset} ({source}); subsets with shards: {names}"
        )
    return subset


def split_names(folder: Path) -> tuple[str, ...]:
    """The splits that have a shard in a folder, in alphabetical order."""
    return tuple(sorted({match["split"] for match in _matches(folder)}))


def find_splits(folder: Path, splits: Sequence[str]) -> dict[str, list[Path]]:
    """The shards of each split, in order.

    Raises FileNotFoundError, listing the existing splits, if one is not there or not complete.
    """
    existing = split_names(folder)
    for split in splits:
        if split not in existing:
            raise FileNotFoundError(
                f"no split {split!r} in {folder}; there are: {', '.join(existing) or 'none'} "
                "(test_split names the evaluated one)"
            )
    return {split: _shards(folder, split) for split in splits}


def _shards(folder: Path, split: str) -> list[Path]:
    """The shards of one split, in order.

    Raises FileNotFoundError unless they are exactly 0 to N-1 of one N: a missing shard would leave
    out rows, and shards of two downloads would have rows twice.
    """
    matches = [match for match in _matches(folder) if match["split"] == split]
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


def _matches(folder: Path) -> list[re.Match[str]]:
    """The names of all shards in a folder, in alphabetical order."""
    matches = [_SHARD.fullmatch(file.name) for file in sorted(folder.glob("*.parquet"))]
    return [match for match in matches if match]
