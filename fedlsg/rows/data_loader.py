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
            "sees several rows: give the Dataset, and do what it does to one row there (or in "
            "transform= of fedlsg.simulate)"
        )
    return loader.dataset
