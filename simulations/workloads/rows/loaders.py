"""Data inside of something else: a ``DatasetDict`` of splits, a folder of ``save_to_disk``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlsg.simulations.workloads.rows.columns import is_table

SPLITS = frozenset({"train", "test", "validation", "valid", "val", "dev"})
"""Keys of a dict of tables that is not a dict of clients."""
SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"


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
