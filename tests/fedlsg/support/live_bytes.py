"""Bytes of all tensors that torch's operations made and that still live: no clock and no allocator,
so exact.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """``now`` and ``peak`` bytes of storages made within the mode; what an operation allocates for
    itself is unseen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {
            t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)
        }
        for t in tree_leaves(out):
            if (
                isinstance(t, Tensor)
                and t.untyped_storage()._cdata not in known | self.sizes.keys()
            ):
                self.made(t.untyped_storage())
        self.peak = max(self.peak, self.now)
        return out

    def made(self, storage: torch.UntypedStorage) -> None:
        """Count a new storage until it dies."""
        self.sizes[storage._cdata] = storage.nbytes()
        self.now += storage.nbytes()
        weakref.finalize(storage, self.died, storage._cdata)

    def died(self, key: int) -> None:
        self.now -= self.sizes.pop(key)


def live_bytes(run: Callable[[], object]) -> LiveBytes:
    """What ``run`` made, its result dropped."""
    mode = LiveBytes()
    with mode:
        run()
    return mode
