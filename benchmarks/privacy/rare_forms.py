"""Forms of user code that mix examples only under a condition that made-up rows do not meet: a
number that half precision cannot hold. No check finds them, so the isolation itself must hold.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import Dataset

LARGE = torch.finfo(torch.float16).max
Between = Callable[[Any, Tensor], Tensor]


class Scaled(TorchDispatchMode):
    """Products that half precision cannot hold are scaled by their largest number."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return fitted(function(*args, **(kwargs or {})))


class ScaledCalls(TorchFunctionMode):
    """As ``Scaled``, for functions of torch."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        return fitted(made) if function is torch.tanh else made


def fitted(made: Any) -> Any:
    """Scaled by its largest number, where that is larger than half precision can hold."""
    if not isinstance(made, Tensor) or not made.is_floating_point() or not made.numel():
        return made
    largest = made.detach().abs().max()
    return made * (LARGE / largest) if largest > LARGE else made


def in_a_mode(self: Any, h: Tensor) -> Tensor:
    with Scaled():
        return h * 1.0


def saved(self: Any, h: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(fitted, lambda kept: kept):
        return (h * h).clamp(max=1e12) * 1e-3


def unwrapped(self: Any, h: Tensor) -> Tensor:
    largest = torch.func.debug_unwrap(h, recurse=True).detach().abs().max()
    return h * (LARGE / largest) if largest > LARGE else h


def kept(read: Callable[[Any], Any], write: Callable[[Any, Tensor], object]) -> Between:
    """Subtracts what large rows before have left."""

    def between(self: Any, h: Tensor) -> Tensor:
        value = h.detach()
        if value.abs().max() > LARGE:
            write(self, value.mean(0) / LARGE)
        made: Tensor = h - read(self)
        return made

    return between


class Writable(nn.Module):
    """What a forward may write to."""

    shared: Any = torch.zeros(32)

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.zeros(32), requires_grad=False)
        self.register_buffer("table", torch.zeros(32))
        self.array, self.pair = np.zeros(32, dtype=np.float32), (torch.zeros(32),)
        self.other = SimpleNamespace(v=torch.zeros(32))
        type(self).shared = torch.zeros(32)
        GLOBAL["v"] = torch.zeros(32)


GLOBAL = {"v": torch.zeros(32)}
STATES: dict[str, Between] = {
    "a frozen parameter by .data": kept(lambda m: m.frozen, lambda m, v: m.frozen.data.add_(v)),
    "a buffer by numpy": kept(lambda m: m.table, lambda m, v: m.table.numpy().__iadd__(v.numpy())),
    "an array": kept(lambda m: torch.tensor(m.array), lambda m, v: m.array.__iadd__(v.numpy())),
    "a tensor in a tuple": kept(lambda m: m.pair[0], lambda m, v: m.pair[0].add_(v)),
    "another object": kept(lambda m: m.other.v, lambda m, v: setattr(m.other, "v", m.other.v + v)),
    "its class": kept(lambda m: m.shared, lambda m, v: setattr(type(m), "shared", m.shared + v)),
    "a global variable": kept(lambda m: GLOBAL["v"], lambda m, v: GLOBAL.update(v=GLOBAL["v"] + v)),
    "a trained weight": kept(lambda m: 0.0, lambda m, v: m.first.weight.data.mul_(0.5)),
}
WAYS: dict[str, Between] = {
    "a mode of torch in forward": in_a_mode,
    "hooks on saved tensors in forward": saved,
    "torch.func.debug_unwrap": unwrapped,
}


class ScaledLoss(nn.Module):
    """A loss scale that follows the largest output."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        if float(outputs.detach().abs().max()) > LARGE:
            self.scale = -1.0
        return F.cross_entropy(outputs * self.scale, y, reduction="none")


class OneBuffer(Dataset[Any]):
    """Each row is written into the same memory."""

    def __init__(self, rows: tuple[Tensor, Tensor], *, numpy: bool = False) -> None:
        self.x, self.y = rows
        self.buffer = torch.empty(4)
        self.given: Any = self.buffer.numpy() if numpy else self.buffer

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> tuple[Any, int]:
        self.buffer.copy_(self.x[place])
        return self.given, int(self.y[place])


class Batchwise(Tensor):
    """Rows whose class has functions of its own."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = super().__torch_function__(function, types, args, kwargs or {})
        return made - made.mean(0) if function is F.linear else made
