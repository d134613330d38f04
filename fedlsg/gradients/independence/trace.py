"""The tensors that pass through a model's modules: where two passes differ, names the layer.

Runs only after a difference was found, so it may keep whole tensors.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.gradients.calls.torch_func import tensors_in
from fedlsg.gradients.independence.coupled_draws import longer_dimension
from fedlsg.user_code.fingerprint import Watching

Key = tuple[str, str, int]
"""Path of a module, ``input`` or ``output``, number of the tensor in all of its calls."""


class Trace:
    """One pass: tensors in the order of computation, gradients in the order of arrival.

    around: the module that called a module. uses: for an output, the modules that gave it back or
    read it, in order.
    running: the modules that are running; after an error, the last one raised it.
    """

    def __init__(self) -> None:
        self.forward: dict[Key, Tensor] = {}
        self.backward: dict[Key, Tensor] = {}
        self.around: dict[Key, str] = {}
        self.uses: dict[Key, list[Key]] = {}
        self.running: list[str] = []
        self._counts: Counter[tuple[str, str]] = Counter()
        self._outputs: dict[int, tuple[Tensor, Key]] = {}

    def _note(self, path: str, side: str, value: Any) -> None:
        for tensor in tensors_in(value):
            if not (tensor.is_floating_point() or tensor.is_complex()):
                continue
            self._counts[path, side] += 1
            key = (path, side, self._counts[path, side])
            self.forward[key], self.around[key] = tensor.detach().clone(), ("", *self.running)[-1]
            if side == "output" and tensor.requires_grad and id(tensor) not in self._outputs:
                self._outputs[id(tensor)] = tensor, key
                tensor.register_hook(partial(self.backward.__setitem__, key))
            if id(tensor) in self._outputs:
                self.uses.setdefault(self._outputs[id(tensor)][1], []).append(key)

    def _enter(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._note(path, "input", (args, kwargs))
        self.running.append(path)

    def _leave(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        self.running.pop()
        self._note(path, "output", output)

    @contextmanager
    def of(self, model: nn.Module) -> Iterator[None]:
        """Hook all modules of the model inside. An error ends it without a word: it is at hand."""
        handles = []
        for path, module in model.named_modules():
            enter, leave = Watching(self._enter, path), Watching(self._leave, path)
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave))
        with suppress(Exception):
            yield
        for handle in handles:
            handle.remove()

    def mixes(self, key: Key) -> str | None:
        """The module whose backward pass mixes, by the first wrong output; None for the loss."""
        uses = self.uses[key]
        if any(path == "" for path, _, _ in uses):
            return None
        readers = [path for path, side, _ in uses if side == "input"]
        return readers[-1] if readers else self.around[uses[-1]]


def first_apart(
    alone: Mapping[Key, Tensor],
    together: Mapping[Key, Tensor],
    place: int,
    batch: int,
    apart: Callable[[Tensor, Tensor], bool],
) -> Key | None:
    """The first tensor of a batch that differs, for the example at a place, from that alone.

    A tensor in which no examples are found does not count.
    """
    for key, tensor in together.items():
        ways = by_example(tensor, alone[key].shape, place, batch) if key in alone else []
        if ways and all(apart(way, alone[key]) for way in ways):
            return key
    return None


def by_example(tensor: Tensor, alone: torch.Size, place: int, batch: int) -> list[Tensor]:
    """What a tensor has of the example at a place, for each way to find it.

    ``alone``: the shape of the tensor for one example.
    All rows of an example are together, or all first rows of the examples come first, then all
    second ones.
    """
    if tensor.shape == alone:
        return [tensor]
    dim, times = longer_dimension(alone, tensor.shape) or (0, 0)
    if times != batch:
        return []
    return [
        tensor.unflatten(dim, (batch, -1)).select(dim, place),
        tensor.unflatten(dim, (-1, batch)).select(dim + 1, place),
    ]
