"""Holders of data sets are recognised: dicts of splits, and folders of ``save_to_disk``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlsg.simulations.workloads.rows.columns import is_table

SPLITS = frozenset({"train", "test", "validation", "valid", "val", "dev"})
"""Keys of a dict of tables that is not a dict of clients."""
SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"
"""Files by which a folder of ``save_to_disk`` is known: of one data set, and of several splits."""


def is_splits(data: Any) -> bool:
    """Whether data are the splits of one data set, by name.

    They are a ``DatasetDict``, or a dict of tables that has the name of a split.
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
    """The Dataset or DatasetDict of a folder that ``save_to_disk`` has made.

    Raises ValueError without the ``datasets`` library, and for a damaged folder.
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
    except Exception as error:  # the library raises whatever its reader of files raises
        raise ValueError(f"{str(path)!r} cannot be read: {' '.join(str(error).split())}") from error
