"""Which axis of an embedding's row numbers has the examples: two runs over copies of one example say it.

Row numbers (T,) of positions and (B,) of the batch look alike where T = B, and computed ones may be either. An axis
that has length 1 for one example and 3 for three has the examples; numbers that stay as they are belong to no example.
Mistaking one for the other would give each position of one example a row of its own in the clip.
"""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

COPIES = 3
Axes = Mapping[str, tuple[int | None, ...]]
"""By the table's name, for each time that it is read in a pass: the axis of the examples; None for no axis, and -1 for
row numbers in which examples and positions share one axis. The name is empty for tables that parameters give."""

_known: WeakKeyDictionary[nn.Module, Axes] = WeakKeyDictionary()


class _Reads(TorchFunctionMode):
    """Shapes of the row numbers of each read, by the identity of the table; 0 for one that parameters give."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[int, list[torch.Size]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.embedding:
            given = dict(zip(("input", "weight"), args, strict=False)) | kwargs
            weight = given["weight"]
            if weight.requires_grad:
                key = id(weight) if isinstance(weight, nn.Parameter) else 0
                self.shapes.setdefault(key, []).append(given["input"].shape)
        return func(*args, **kwargs)


def tables_of(model: nn.Module, run: Callable[[int], Any]) -> Axes:
    """The axis of the examples in all row numbers of a pass. ``run(n)`` calls the model on n copies of one example.

    The answer is kept for each model.
    """
    if model not in _known:
        devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
        shapes = []
        for count in (1, COPIES):
            with torch.random.fork_rng(devices=list(devices)), torch.enable_grad(), _Reads() as reads:
                run(count)
            shapes.append(reads.shapes)
        found = {}
        for name, key in [("", 0), *((name, id(p)) for name, p in model.named_parameters())]:
            pairs = zip(shapes[0].get(key, ()), shapes[1].get(key, ()), strict=False)
            found[name] = tuple(axis_of(one, many) for one, many in pairs)
        _known[model] = {name: axes for name, axes in found.items() if axes}
    return _known[model]


def axis_of(one: torch.Size, many: torch.Size) -> int | None:
    """The axis of the examples in row numbers of these shapes, for one example and for three."""
    grown = [k for k, (a, b) in enumerate(zip(one, many, strict=False)) if a != b]
    if not grown:
        return None
    return grown[0] if len(grown) == 1 and (one[grown[0]], many[grown[0]]) == (1, COPIES) else -1


def copies_of(t: Tensor, count: int) -> Tensor:
    """``count`` copies of the first row."""
    return t[:1].expand(count, *t.shape[1:]).clone()
