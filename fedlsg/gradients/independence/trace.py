"""Record the tensors that pass through a model's modules, to name the layer where passes differ.

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
    """The tensors of one pass through the modules of a model.

    forward: inputs and outputs of the modules, in the order of computation.
    backward: gradients at outputs, in the order in which backward reaches them.
    around: the path of the module that called the module of a key.
    uses: for each output that has a gradient, where it is returned or read again, in order.
    running: paths of the modules that are running; after an error, the last one raised it.
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
            self.forward[key] = tensor.detach().clone()
            self.around[key] = ("", *self.running)[-1]
            if side == "output" and tensor.requires_grad and id(tensor) not in self._outputs:
                self._outputs[id(tensor)] = tensor, key  # keeps the tensor, so that no id returns
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
    def record(self, model: nn.Module) -> Iterator[None]:
        """Record what passes through the modules inside the context.

        An error of the pass ends the context and is dropped: the caller has it from the first pass.
        """
        handles = []
        for path, module in model.named_modules():
            enter, leave = Watching(self._enter, path), Watching(self._leave, path)
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave))
        with suppress(Exception):
            yield
        for handle in handles:
            handle.remove()

    def reader_of(self, key: Key) -> str | None:
        """The module that read an output last, whose backward pass gave its gradient.

        An output that no module read belongs to the module around it. None for an output of the
        whole model, which the loss reads.
        """
        uses = self.uses[key]
        if any(path == "" for path, _, _ in uses):
            return None
        readers = [path for path, side, _ in uses if side == "input"]
        return readers[-1] if readers else self.around[uses[-1]]


def first_difference(
    alone: Mapping[Key, Tensor],
    together: Mapping[Key, Tensor],
    place: int,
    batch: int,
    differs: Callable[[Tensor, Tensor], bool],
) -> Key | None:
    """The first tensor whose part for one example differs from the tensor of that example alone.

    place: of the example in the batch.
    batch: number of examples.
    Tensors in which the examples cannot be found are skipped.
    """
    for key, tensor in together.items():
        parts = example_parts(tensor, alone[key].shape, place, batch) if key in alone else []
        if parts and all(differs(part, alone[key]) for part in parts):
            return key
    return None


def example_parts(tensor: Tensor, alone: torch.Size, place: int, batch: int) -> list[Tensor]:
    """The part of a tensor that belongs to one example, for each possible order of its rows.

    alone: the shape of the tensor for one example.
    Rows are in the order of examples, or of positions (first rows of all examples, then all second
    ones). A tensor that has the same shape for one example belongs to all; no part if no dimension
    has the examples.
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
