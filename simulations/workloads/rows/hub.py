"""A data set of the Hugging Face hub, read from the first of three sources that has it.

1. A local mirror (``shards``), if one is given. It is never completed from the hub, because nobody
   has checked a mixture of two sources.
2. For sets whose layout is known here (``published``): the shards on the hub, downloaded once.
3. For all others: the ``datasets`` library, which keeps a cache of its own.

All three give tables of pyarrow with the library's description of their columns.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedlsg.simulations.models.encoder_source import reason_of
from fedlsg.simulations.workloads.base import Options
from fedlsg.simulations.workloads.base.cache import digest_files
from fedlsg.simulations.workloads.rows.shards import DATA_VARIABLE, find_folder, find_splits
from fedlsg.simulations.workloads.rows.table_parts import (
    Part,
    digest_of_parts,
    part_of_file,
    part_of_library,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class HubSet:
    """A data set: the parts of each split, by our names of the splits.

    place: where it is, for error messages.
    digest: from names of columns to a text that depends on their whole content, for caches.
    folder: where its files are; None if the ``datasets`` library has them.
    hub_name: name and subset of the set on the hub; None for files that are named by their paths.
    """

    splits: Mapping[str, Sequence[Part]]
    place: str
    digest: Callable[[Sequence[str]], str]
    folder: Path | None = None
    hub_name: tuple[str, str | None] | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of each split."""
        return {split: sum(part.size for part in parts) for split, parts in self.splits.items()}

    @property
    def first_part(self) -> Part:
        """A part whose columns stand for those of all parts."""
        return next(iter(self.splits.values()))[0]


def find_set(
    options: Options, data_dir: Path | None, splits: Mapping[str, str], *, published: bool = False
) -> HubSet:
    """The set that ``options`` name.

    splits: the set's own name of each split, by ours.
    published: whether the set's layout on the hub is known: shards in a folder for each subset, so
        that ``options`` have to name one.
    Raises what ``find_folder``, ``find_splits`` and ``load_from_hub`` raise.
    """
    dataset, subset = options.dataset, options.subset
    assert dataset is not None, "a rule of dataset= wants it"
    names = tuple(splits.values())
    folder = find_folder(dataset, subset, data_dir=data_dir)
    if folder is None and published:
        assert subset is not None, "published sets have a folder for each subset"
        folder = _download(dataset, subset, names)
    if folder is None:
        found = set_of_library(dataset, load_from_hub(dataset, subset, names), splits)
    else:
        files = find_splits(folder, names)
        found = set_of_files({name: files[split] for name, split in splits.items()}, folder)
    return replace(found, hub_name=(dataset, subset))


def set_of_files(files: Mapping[str, Sequence[Path]], folder: Path | None = None) -> HubSet:
    """Splits of parquet files. Raises ValueError for one that cannot be read."""
    all_files = [file for paths in files.values() for file in paths]
    return HubSet(
        splits={split: [part_of_file(path) for path in paths] for split, paths in files.items()},
        place=str(folder or all_files[0]),
        folder=folder,
        digest=lambda columns: digest_files(all_files, salt=""),
    )


def set_of_library(dataset: str, loaded: Mapping[str, Any], splits: Mapping[str, str]) -> HubSet:
    """Splits of the ``datasets`` library, with our names in place of the set's own."""
    parts = {
        name: [part_of_library(loaded[split], f"{dataset}, {name} split")]
        for name, split in splits.items()
    }
    return HubSet(splits=parts, place=dataset, digest=partial(digest_of_parts, parts))


def load_from_hub(dataset: str, subset: str | None, splits: Sequence[str]) -> Mapping[str, Any]:
    """The splits of a data set through ``datasets.load_dataset``.

    Raises ModuleNotFoundError without the library; ValueError, listing the existing ones, for an
    unknown subset or split; ConnectionError if the hub cannot be reached or has no such data set.
    """
    try:
        import datasets
    except ImportError as error:
        raise _not_installed(dataset) from error
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


def _download(dataset: str, subset: str, splits: Sequence[str]) -> Path:
    """The folder with the shards of these splits alone: a local copy if it is complete.

    Raises ModuleNotFoundError without the hub's client; ConnectionError if the hub cannot be
    reached.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise _not_installed(dataset) from error

    def shards_folder(*, local_files_only: bool) -> Path:
        patterns = [f"{subset}/{split}-*.parquet" for split in splits]
        snapshot = snapshot_download(
            dataset, repo_type="dataset", allow_patterns=patterns, local_files_only=local_files_only
        )
        folder = Path(snapshot) / subset
        find_splits(folder, splits)  # raises FileNotFoundError for a copy in part
        return folder

    with suppress(FileNotFoundError):  # not downloaded yet, or only in part
        return shards_folder(local_files_only=True)
    try:
        return shards_folder(local_files_only=False)
    except Exception as error:  # the hub's client raises its own, requests' and httpx's errors
        raise ConnectionError(
            f"cannot download {dataset} from the Hugging Face hub ({reason_of(error)}); "
            f"give --data-dir or {DATA_VARIABLE} with a folder that holds {dataset}/{subset}/"
        ) from error


def _not_installed(dataset: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(
        f"{dataset} is not on this machine: install the hub extra to download it (pip install "
        f"'fedlsg[hub]'), or give --data-dir or {DATA_VARIABLE} with a folder that holds it"
    )
