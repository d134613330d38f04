"""A data set of the Hugging Face hub through ``datasets.load_dataset``, with errors that say what to do."""

from collections.abc import Mapping
from typing import Any

from simulations.workloads.base.mirror import DATA_VARIABLE


def load_from_hub(dataset: str, subset: str | None, splits: tuple[str, ...]) -> Mapping[str, Any]:
    """The splits of a data set, kept in the library's own cache.

    Raises:
        ModuleNotFoundError: the library is not installed.
        ValueError: an unknown subset or split; the message lists the existing ones.
        ConnectionError: the hub cannot be reached or has no such data set.
    """
    try:
        import datasets
    except ImportError as error:
        raise ModuleNotFoundError(
            f"{dataset} is not on this machine: install the hub extra to download it (pip install 'fedlsg[hub]'), "
            f"or give --data-dir or {DATA_VARIABLE} with a folder that holds it"
        ) from error
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
