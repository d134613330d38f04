"""A partition of very many clients: two arrays, of which a client's rows are a slice."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import overload

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor


class Parts(Sequence[Tensor]):
    """Rows of every client, ascending; a tensor of them is made when it is asked for.

    Guarantee: the parts are disjoint, because each row has one ``owner``: its client, -1 for nobody.
    Raises ValueError for an owner outside -1 to ``clients`` - 1.
    """

    def __init__(self, owner: Int64[np.ndarray, " n"], clients: int) -> None:
        counts = np.bincount(owner + 1, minlength=clients + 1)
        if len(counts) > clients + 1:
            raise ValueError(f"expected owners -1..{clients - 1} of rows, got {len(counts) - 2}")
        rows = np.argsort(owner, kind="stable")[counts[0] :]
        self._rows = rows.astype(np.int32) if len(owner) < 2**31 else rows
        self._ends = np.cumsum(counts[1:])

    @cached_property
    def sizes(self) -> list[int]:
        """How many rows each client has."""
        found: list[int] = np.diff(self._ends, prepend=0).tolist()
        return found

    @overload
    def __getitem__(self, client: int) -> Tensor: ...
    @overload
    def __getitem__(self, client: slice) -> list[Tensor]: ...
    def __getitem__(self, client: int | slice) -> Tensor | list[Tensor]:
        if isinstance(client, slice):
            return [self[one] for one in range(*client.indices(len(self)))]
        place = range(len(self))[client]
        return torch.from_numpy(self._rows[self._ends[place] - self.sizes[place] : self._ends[place]].astype(np.int64))

    def __len__(self) -> int:
        return len(self._ends)


def digest(parts: Sequence[Tensor], before: bytes = b"") -> str:
    """SHA-256, hexadecimal, over ``before``, and the number of rows of each client and its rows."""
    sha = hashlib.sha256(before)
    if isinstance(parts, Parts):
        starts = parts._ends - parts.sizes
        sha.update(np.insert(parts._rows, starts, parts.sizes).astype("<i8").tobytes())
    else:
        for part in parts:
            sha.update(len(part).to_bytes(8, "little") + part.numpy().tobytes())
    return sha.hexdigest()
