"""The Dataset of a DataLoader, if the DataLoader does nothing else to rows.

A private step samples its batches itself, so only the Dataset of a DataLoader is used. A sampler
that leaves rows out or repeats them, or a function that changes rows, would be ignored without a
word: they are refused, with their names.
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
    batch_sampler = loader.batch_sampler
    parts: list[Any] = [loader]
    if hasattr(loader.dataset, "__len__"):  # an IterableDataset has none, and is refused later
        if batch_sampler is None:
            parts.append(loader.sampler)
        else:
            parts += [batch_sampler, getattr(batch_sampler, "sampler", None)]
    for part in parts:
        if not _gives_each_row_once(part, loader.dataset):
            raise ValueError(
                f"{what}: the DataLoader has a {type(part).__name__}, and a private step draws "
                "its batches itself, each row at one rate: give the Dataset, or a Subset of the "
                "rows that count; weights of classes belong into the loss"
            )
    # torch's own for batches, and for single rows
    if loader.collate_fn not in (default_collate, default_convert):
        raise ValueError(
            f"{what}: the DataLoader has a collate_fn, "
            f"{getattr(loader.collate_fn, '__name__', type(loader.collate_fn).__name__)}, which "
            "sees several rows: give the Dataset, and do what it does to one row there (or in "
            "transform= of fedlsg.simulate)"
        )
    return loader.dataset


def _gives_each_row_once(part: Any, data: Any) -> bool:
    """Whether a part of a DataLoader is torch's own and goes over all of the data once.

    Its batches may leave out the last rows, which are other rows in each epoch.
    """
    if isinstance(part, DataLoader):
        return type(part).__iter__ is DataLoader.__iter__
    if type(part) is RandomSampler:
        is_permutation = not part.replacement and part.num_samples == len(data)
        return is_permutation and part.data_source is data
    if type(part) is SequentialSampler:
        return part.data_source is data
    return type(part) is BatchSampler
