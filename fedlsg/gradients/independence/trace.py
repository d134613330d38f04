"""The tensors that pass through a model's modules, by which two passes are compared in order to name a layer.

Runs only after a difference was found, so it may keep whole tensors.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedlsg.gradients.calls.torch_func import tensors_in
from fedlsg.gradients.fingerprint import Watching
from fedlsg.gradients.independence.coupled_draws import longer_dimension

Key = tuple[str, str, int, int]
"""Path of a module, ``input`` or ``output``, number of its call, number of the tensor."""
T = TypeVar("T")


class Trace:
    """One pass: tensors in the order of computation, and gradients in the order in which they arrive.

    around: the module that called a module. users: for an output, the modules that gave it back or read it, in order.
    running: the modules that are running; after an error, the last one raised it.
    """

    def __init__(self) -> None:
        self.forward: dict[Key, Tensor] = {}
        self.backward: dict[Key, Tensor] = {}
        self.around: dict[Key, str] = {}
        self.users: dict[Key, list[Key]] = {}
        self.running: list[str] = []
        self._calls: Counter[tuple[str, str]] = Counter()
        self._outputs: dict[int, tuple[Tensor, Key]] = {}

    def _note(self, path: str, side: str, value: Any) -> None:
        self._calls[path, side] += 1
        for number, tensor in enumerate(t for t in tensors_in(value) if t.is_floating_point() or t.is_complex()):
            key = (path, side, self._calls[path, side], number)
            self.forward[key], self.around[key] = tensor.detach().clone(), (self.running or [""])[-1]
            if side == "output" and id(tensor) not in self._outputs and tensor.requires_grad:
                self._outputs[id(tensor)] = tensor, key
                tensor.register_hook(partial(self.backward.__setitem__, key))
            if id(tensor) in self._outputs:
                self.users.setdefault(self._outputs[id(tensor)][1], []).append(key)

    def _enter(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._note(path, "input", (args, dict(kwargs)))
        self.running.append(path)

    def _leave(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        self.running.pop()
        self._note(path, "output", output)

    @contextmanager
    def of(self, model: nn.Module) -> Iterator[None]:
        """Hook all modules of the model inside the context, in which an error ends the pass."""
        handles = []
        for path, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(Watching(self._enter, path), with_kwargs=True))
            handles.append(module.register_forward_hook(Watching(self._leave, path)))
        try:
            with suppress(Exception):  # it is at hand
                yield
        finally:
            for handle in handles:
                handle.remove()

    def mixes(self, key: Key) -> str | None:
        """The module in whose backward pass the gradient at an output becomes another one; None for the loss."""
        users = self.users[key]
        if any(path == "" for path, _, _, _ in users):
            return None
        readers = [path for path, side, _, _ in users if side == "input"]
        return readers[-1] if readers else self.around[users[-1]]


def first_apart(
    alone: Mapping[T, Tensor],
    together: Mapping[T, Tensor],
    place: int,
    batch: int,
    apart: Callable[[Tensor, Tensor], bool],
) -> T | None:
    """The first tensor of a batch that differs, for the example at a place, from that of the example alone.

    A tensor in which no examples are found does not count.
    """
    for key, tensor in together.items():
        ways = list(by_example(tensor, alone[key].shape, place, batch)) if key in alone else []
        if ways and all(apart(way, alone[key]) for way in ways):
            return key
    return None


def by_example(tensor: Tensor, alone: torch.Size, place: int, batch: int) -> Iterator[Tensor]:
    """What a tensor has of the example at a place, for each way to find it; ``alone``: its shape for one example."""
    if tensor.shape == alone:
        yield tensor
        return
    longer = longer_dimension(alone, tensor.shape)
    if longer is not None and longer[1] == batch:
        dim = longer[0]
        yield tensor.unflatten(dim, (batch, -1)).select(dim, place)
        if alone[dim] > 1:  # all first rows of the examples, then all second ones
            yield tensor.unflatten(dim, (-1, batch)).select(dim + 1, place)
