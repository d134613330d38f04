"""Forms of user code that mix examples only under a condition that made-up rows do not meet: a
number that half precision cannot hold. No check finds them, so the isolation itself must hold.
"""

from argparse import Namespace
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType, SimpleNamespace
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
        OPTIONS.v, add.v, PACKAGE.inner.v = torch.zeros(3, 32)
        self.slotted, self.queue = Slotted(torch.zeros(32)), deque([torch.zeros(32)])
        single.cache_clear()


@dataclass(slots=True)
class Slotted:
    """An object without a dict of attributes."""

    v: Tensor


@lru_cache
def single() -> SimpleNamespace:
    """One object for all calls."""
    return SimpleNamespace(v=torch.zeros(32))


def add(v: Tensor) -> None:
    """A function with a static variable."""
    add.v = add.v + v  # type: ignore[attr-defined]


def hooked(model: Any) -> Any:
    """A model with a hook whose closure keeps the large rows before."""
    total = [torch.zeros(32)]

    def hook(layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if output.detach().abs().max() > LARGE:
            total.append(total[-1] + output.detach().mean(0) / LARGE)
        return output - total[-1]

    model.first.register_forward_hook(hook)
    return model


OPTIONS = Namespace(v=torch.zeros(32))
PACKAGE: Any = ModuleType("another_package")
PACKAGE.inner = ModuleType("another_package.inner")
GLOBAL = {"v": torch.zeros(32)}
STATES: dict[str, Between] = {
    "a frozen parameter by .data": kept(lambda m: m.frozen, lambda m, v: m.frozen.data.add_(v)),
    "a buffer by numpy": kept(lambda m: m.table, lambda m, v: m.table.numpy().__iadd__(v.numpy())),
    "an array": kept(lambda m: torch.tensor(m.array), lambda m, v: m.array.__iadd__(v.numpy())),
    "a tensor in a tuple": kept(lambda m: m.pair[0], lambda m, v: m.pair[0].add_(v)),
    "another object": kept(lambda m: m.other.v, lambda m, v: setattr(m.other, "v", m.other.v + v)),
    "its class": kept(lambda m: m.shared, lambda m, v: setattr(type(m), "shared", m.shared + v)),
    "a global variable": kept(lambda m: GLOBAL["v"], lambda m, v: GLOBAL.update(v=GLOBAL["v"] + v)),
    "slots": kept(lambda m: m.slotted.v, lambda m, v: setattr(m.slotted, "v", m.slotted.v + v)),
    "global options": kept(lambda m: OPTIONS.v, lambda m, v: setattr(OPTIONS, "v", OPTIONS.v + v)),
    "a function's attribute": kept(lambda m: add.v, lambda m, v: add(v)),  # type: ignore[attr-defined]
    "a cached object": kept(lambda m: single().v, lambda m, v: single().v.add_(v)),
    "a queue": kept(lambda m: m.queue[-1], lambda m, v: m.queue.append(v)),
    "a module in a module": kept(
        lambda m: PACKAGE.inner.v, lambda m, v: setattr(PACKAGE.inner, "v", PACKAGE.inner.v + v)
    ),
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


class Flips(torch.autograd.Function):
    """Keeps in backward that a gradient was large."""

    sign = 1.0

    @staticmethod
    def forward(ctx: Any, outputs: Tensor) -> Tensor:
        return outputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        if float(gradients[0].norm()) > LARGE:
            Flips.sign = -1.0
        return gradients[0] * Flips.sign


def flipping(outputs: Tensor, y: Tensor) -> Tensor:
    """A loss with such a backward pass."""
    return (Flips.apply(outputs) - F.one_hot(y, 3)).square().sum(1)  # type: ignore[no-any-return]


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
