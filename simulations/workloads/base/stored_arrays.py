"""Stored rows of any form are made into numpy arrays by name."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor

MASK = "attention_mask"
"""The name of the tensor in which 0 marks the padding of texts, which is not a part of a row."""


def is_known(stored: Any) -> bool:
    """Whether stored rows are tensors and arrays of numbers, or consist of them."""
    if isinstance(stored, Mapping):
        return all(map(is_known, stored.values()))
    if isinstance(stored, tuple):
        return all(map(is_known, stored))
    return isinstance(stored, Tensor) or (
        isinstance(stored, np.ndarray) and not stored.dtype.hasobject
    )


def arrays_of(name: str, stored: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of some stored rows by name.

    Padded texts have their lengths, and then the tokens of all texts one after the other.
    """
    if isinstance(stored, Mapping):
        mask = None if MASK not in stored else np.asarray(stored[MASK]) != 0
        if mask is not None:
            yield f"{name}/lengths", mask.sum(1)
        for part, value in sorted(stored.items()):
            if mask is None:
                yield from arrays_of(f"{name}/{part}", value)
            elif part != MASK:
                yield f"{name}/{part}", np.asarray(value)[mask]
    elif isinstance(stored, tuple):
        for place, value in enumerate(stored):
            yield from arrays_of(f"{name}/{place}", value)
    else:
        yield name, np.asarray(stored)
