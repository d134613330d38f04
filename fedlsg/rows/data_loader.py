"""The data behind a DataLoader.

Batches and their order are a private step's own, so of a DataLoader its Dataset is taken. A sampler
that leaves rows out or repeats them, and a function that changes them, would be lost: they are
refused by name.
"""

from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)


def dataset_of(loader: DataLoader[Any], what: str) -> Any:
    """The Dataset of a DataLoader that gives each of its rows once, as they are.

    Raises ValueError, naming it, for a sampler, a ``collate_fn`` or an iteration of the user's.
    """
    # without a Dataset's length it has the sampler of an IterableDataset, and is refused later
    batches = loader.batch_sampler
    parts = [loader.sampler] if batches is None else [batches, getattr(batches, "sampler", None)]
    for part in [loader, *(parts if hasattr(loader.dataset, "__len__") else [])]:
        if not _gives_each_row_once(part, loader.dataset):
            raise ValueError(
                f"{what}: the DataLoader has a {type(part).__name__}, and a private step draws "
                "its batches itself, each row at one rate: give the Dataset, or a Subset of the "
                "rows that count; weights of classes belong into the loss"
            )
    # of a loader without batches torch converts rows alone
    if loader.collate_fn not in (default_collate, default_convert):
        raise ValueError(
            f"{what}: the DataLoader has a collate_fn, "
            f"{getattr(loader.collate_fn, '__name__', type(loader.collate_fn).__name__)}, which "
            "sees several rows: give the Dataset, and do what it does to one row there (or in "
            "transform= of fedlsg.simulate)"
        )
    return loader.dataset


def _gives_each_row_once(part: Any, data: Any) -> bool:
    """Whether a DataLoader is torch's own, its sampler goes over all of the data once, and its
    batches leave at most the last rows out.
    """
    if isinstance(part, DataLoader):
        return type(part).__iter__ is DataLoader.__iter__
    if type(part) is RandomSampler:
        whole = not part.replacement and part.num_samples == len(data)
        return whole and part.data_source is data
    if type(part) is SequentialSampler:
        return part.data_source is data
    return type(part) is BatchSampler
