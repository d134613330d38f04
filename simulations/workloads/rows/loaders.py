"""Data inside of something else: a DataLoader around a Dataset, a ``DatasetDict`` of splits, a
folder of ``save_to_disk``.

Batches and their order are a private step's own, so of a DataLoader its Dataset is taken. A sampler
that leaves rows out or repeats them, and a function that changes them, would be lost: they are
refused by name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)

from fedlsg.simulations.workloads.rows.columns import is_table

SPLITS = frozenset({"train", "test", "validation", "valid", "val", "dev"})
"""Keys of a dict of tables that is no dict of clients."""
SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"


def dataset_of(loader: DataLoader[Any], what: str) -> Any:
    """The Dataset of a DataLoader that gives each of its rows once, as they are.

    Raises ValueError, naming it, for a sampler or a ``collate_fn`` of the user's.
    """
    size = len(loader.dataset) if hasattr(loader.dataset, "__len__") else None
    for sampler in (loader.sampler, loader.batch_sampler):
        random = type(sampler) is RandomSampler
        # without a Dataset's length it has the sampler of an IterableDataset, and is refused later
        if size is not None and (
            (random and (sampler.replacement or sampler.num_samples != size))  # type: ignore[union-attr]
            or not (random or sampler is None or type(sampler) in (SequentialSampler, BatchSampler))
        ):
            raise ValueError(
                f"{what}: the DataLoader has a {type(sampler).__name__}, and a private step draws "
                "its batches itself, each row at one rate: give the Dataset, or a Subset of the "
                "rows that count; weights of classes belong into the loss"
            )
    # of a loader without batches torch converts rows alone
    if loader.collate_fn not in (default_collate, default_convert):
        raise ValueError(
            f"{what}: the DataLoader has a collate_fn, "
            f"{getattr(loader.collate_fn, '__name__', type(loader.collate_fn).__name__)}, which "
            "sees several rows: give the Dataset, and transform= for what is done to one row"
        )
    return loader.dataset


def is_splits(data: Any) -> bool:
    """Whether data are the splits of one data set by name: a ``DatasetDict``, or a dict of tables
    with the name of a split.
    """
    return (
        isinstance(data, Mapping)
        and bool(data)
        and all(map(is_table, data.values()))
        and (type(data).__name__ == "DatasetDict" or not SPLITS.isdisjoint(data))
    )


def is_saved(path: Path) -> bool:
    """Whether a path is a folder that ``save_to_disk`` of the ``datasets`` library has made."""
    return any((path / name).is_file() for name in (SAVED, SAVED_SPLITS))


def load_saved(path: Path) -> Any:
    """The Dataset or DatasetDict of such a folder. Raises ValueError without the library, and for
    a damaged folder.
    """
    try:
        from datasets import load_from_disk
    except ImportError:
        raise ValueError(
            f"{str(path)!r} is a folder of save_to_disk: install the hub extra to read it (pip "
            "install 'fedlsg[hub]')"
        ) from None
    try:
        return load_from_disk(str(path))
    # the library raises whatever its reader of files does
    except Exception as error:
        raise ValueError(f"{str(path)!r} cannot be read: {' '.join(str(error).split())}") from error
