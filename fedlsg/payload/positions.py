"""Checks of the positions in a payload: as many as values, ascending, within the model."""

import weakref
from collections.abc import Callable

from torch import Tensor

from fedlsg.payload.values.codec import PayloadError

LARGEST_SIZE = 2**32

_ascending: tuple[Callable[[], Tensor | None], int] = (lambda: None, 0)
"""The last positions found to ascend, and their version: all clients of a round share one frame."""


def check_positions(values: Tensor, indices: Tensor, size: int) -> None:
    """Raise PayloadError unless there is one value an index, and indices ascend within ``size`` coordinates."""
    if values.shape != indices.shape or values.ndim != 1:
        raise PayloadError(f"expected one value an index, got {tuple(values.shape)} and {tuple(indices.shape)}")
    if size > LARGEST_SIZE or (len(indices) and not 0 <= int(indices[0]) <= int(indices[-1]) < size):
        raise PayloadError(f"indices do not fit into {size} coordinates")
    if len(indices) > 1 and not ascend(indices):
        raise PayloadError("indices must ascend without repeats")


def ascend(indices: Tensor) -> bool:
    """Whether each is larger than the one before; not computed again for the same unchanged tensor."""
    global _ascending
    known, version = _ascending
    if known() is indices and version == indices._version:
        return True
    found = bool((indices[1:] > indices[:-1]).all())
    if found:
        _ascending = weakref.ref(indices), indices._version
    return found
