"""Where rows come from, through ``Subset``, ``ConcatDataset`` and ``StackDataset``; a row that
comes twice is refused.

An epsilon holds for one row. One that the data hold ten times is clipped ten times, and moves the
sum by 10 C.
"""

from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset, TensorDataset

PLAIN = (str, bytes, int, float, type(None))
"""Rows of a list that may be one object and several people's."""
Numbers = np.ndarray[Any, np.dtype[np.uint64]]


def check_distinct(data: Any, what: str) -> None:
    """Raise ValueError for data that hold a row more than once, as far as the classes of torch,
    and lists of objects say.

    ``what`` names the data in the message. Copies of values and repetition inside other classes are
    not seen.
    """
    if not isinstance(data, list | Subset | ConcatDataset | StackDataset | TensorDataset):
        return
    origins, counts = np.unique(origins_of(data, np.arange(len(data))), return_counts=True)
    if len(origins) == len(data):
        return
    repeated = int((counts > 1).sum())
    raise ValueError(
        f"{what} has {repeated} row{'s' * (repeated > 1)} more than once (one of them "
        f"{int(counts.max())} times), and epsilon holds for a row that comes once: give each row "
        "once; to give rare classes more weight, take weights in the loss, such as "
        "nn.CrossEntropyLoss(weight=...)"
    )


def origins_of(data: Any, places: np.ndarray[Any, Any]) -> Numbers:
    """A number for the origin of each place: equal for rows that are one, and else different (to
    2^-64).
    """
    if isinstance(data, Subset):
        inner: Any = data.dataset
        chosen = np.asarray(data.indices, dtype=np.int64)[places]
        return origins_of(inner, chosen + len(inner) * (chosen < 0))
    if isinstance(data, ConcatDataset):
        ends = np.asarray(data.cumulative_sizes)
        owners = np.searchsorted(ends, places, side="right")
        origins = np.empty(len(places), dtype=np.uint64)
        for owner, part in enumerate(data.datasets):
            of_owner = owners == owner
            origins[of_owner] = origins_of(
                part, places[of_owner] - (ends[owner - 1] if owner else 0)
            )
        return origins
    if isinstance(data, list):
        rows = [data[place] for place in places]
        of_owner = np.asarray([-1 if isinstance(row, PLAIN) else id(row) for row in rows])
        plain = mixed(np.full(len(places), id(data)), places)
        return mixed(of_owner, np.where(of_owner < 0, plain, 0))
    parts = _parts_of(data)
    if not parts:
        return mixed(np.full(len(places), id(data)), places)
    origins = np.zeros(len(places), dtype=np.uint64)
    for part in parts:
        if isinstance(part, torch.Tensor):
            step = part.stride(0) * part.element_size()
            of_owner = mixed(places * step + part.data_ptr(), np.full(len(places), step))
        else:
            of_owner = origins_of(part, places)
        origins = mixed(origins, of_owner)
    return origins


def _parts_of(data: Any) -> list[Any]:
    """What a row is put together of: tensors, whose rows are known by their address, or data
    sets.
    """
    if isinstance(data, TensorDataset):
        return [part for part in data.tensors if part.layout == torch.strided]
    if isinstance(data, StackDataset):
        parts = data.datasets
        return list(parts.values() if isinstance(parts, dict) else parts)
    return []


def mixed(one: Any, other: Any) -> Numbers:
    """One number of two, as SplitMix64 mixes its state."""
    numbers: Numbers = np.asarray(one).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    numbers = numbers + np.uint64(1)
    for number in (np.asarray(other).astype(np.uint64), np.uint64(0)):
        numbers = numbers + number
        numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        numbers = numbers ^ (numbers >> np.uint64(31))
    return numbers
