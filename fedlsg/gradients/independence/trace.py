"""Record what passes through a model's modules as short sketches, by which two passes are compared.

A sketch of a row x is (x P, ||x||) with a fixed random matrix P of ``WIDTH`` columns: rows that differ by d have
sketches that differ by about ||d||, and no activation is kept. Symbols: B examples, k rows of a tensor for each
example.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.utils.rnn import PackedSequence

from fedlsg.gradients.fingerprint import Watching
from fedlsg.gradients.independence.coupled_draws import longer_dimension

WIDTH = 3
Key = tuple[str, str, int, int]
"""Path of a module, ``input`` or ``output``, number of its call, number of the tensor."""


@lru_cache(maxsize=64)
def projection(length: int) -> Float64[Tensor, "length width"]:
    """P for rows of a length; drawn by numpy, because the passes couple torch's generators."""
    return torch.from_numpy(np.random.default_rng(length).standard_normal((length, WIDTH)) / WIDTH**0.5)


def sketch(rows: Tensor) -> Float64[Tensor, "b sketch"]:
    """Sketch and norm of each row. Infinities and NaN become numbers, so that they can be compared."""
    x = rows.reshape(len(rows), -1).double()  # a tensor without dimensions is one row of one number
    short = torch.cat(
        [x @ projection(x.shape[1]).to(x.device), torch.linalg.vector_norm(x, dim=1, keepdim=True)], 1
    ).cpu()
    return short if np.isfinite(short.numpy()).all() else sketch(x.nan_to_num(nan=3.0, posinf=5.0, neginf=-7.0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """One tensor at a module's input or output, or the gradient that arrived there.

    rows: candidate sketches, (B, width) each, one for each way to find the examples in the tensor; of a tensor of the
        same shape in every batch one, (1, width); none where the examples are not found.
    """

    shape: torch.Size
    rows: tuple[Float64[Tensor, "b sketch"], ...]

    @property
    def by_example(self) -> bool:
        """Whether rows belong to examples."""
        return bool(self.rows) and len(self.rows[0]) > 1


def see(tensor: Tensor, alone: Seen | None, batch: int) -> Seen:
    """The sketches of a tensor; ``alone`` is the same tensor in a pass over one example, None in that pass itself."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if alone is None or tensor.shape == alone.shape:
        return Seen(shape=tensor.shape, rows=(sketch(tensor.unsqueeze(0)),))
    longer = longer_dimension(alone.shape, tensor.shape)
    if longer is None or longer[1] != batch:
        return Seen(shape=tensor.shape, rows=())
    dim, k = longer[0], alone.shape[longer[0]]
    rows = [tensor.unflatten(dim, (batch, k)).movedim(dim, 0)]
    if k > 1:  # all first rows of the examples, then all second ones
        rows.append(tensor.unflatten(dim, (k, batch)).movedim(dim + 1, 0))
    return Seen(shape=tensor.shape, rows=tuple(map(sketch, rows)))


@dataclass(kw_only=True, eq=False)
class Trace:
    """One pass: the tensors in the order of computation, forward and backward, and the modules that are running.

    like: the pass over one example that this one is compared with.
    places: the modules by the node that computed their output, innermost first.
    sources: by module, the modules whose outputs it computes from directly.
    """

    batch: int
    like: "Trace | None" = None
    forward: dict[Key, Seen] = field(default_factory=dict)
    backward: dict[Key, Seen] = field(default_factory=dict)
    inside: dict[Key, str] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)
    places: dict[Node, Key] = field(default_factory=dict)
    sources: dict[Key, set[Key]] = field(default_factory=dict)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    last: tuple[Tensor | None, int, Seen | None] = (None, 0, None)

    @property
    def largest(self) -> float:
        """Root mean square of the largest tensor of a pass over one example."""
        found = [float(k.rows[0][0, -1]) / k.shape.numel() ** 0.5 for k in self.forward.values() if k.rows]
        return max(found, default=0.0)

    def note(self, path: str, side: str, values: Iterable[Tensor]) -> None:
        """Record the tensors at one side of a module."""
        self.calls[path, side] += 1
        for number, tensor in enumerate(values):
            key = (path, side, self.calls[path, side], number)
            alone = None if self.like is None else self.like.forward.get(key)
            if self.like is None or alone is not None:
                self.forward[key] = self._see(tensor, alone)
            if side == "input":
                self.inside[key] = self.running[-1] if self.running else ""
            elif tensor.grad_fn is not None:
                self._follow(key, tensor)

    def _see(self, tensor: Tensor, alone: Seen | None) -> Seen:
        """As ``see``, but once for a tensor that is one layer's output and the next one's input."""
        last, version, seen = self.last
        if last is tensor and version == tensor._version and seen is not None:
            return seen
        seen = see(tensor, alone, self.batch)
        self.last = tensor, tensor._version, seen
        return seen

    def _follow(self, key: Key, tensor: Tensor) -> None:
        made = tensor._base if tensor._is_view() and tensor._base is not None else tensor
        node, shape, number = made.grad_fn, tensor.shape, made.output_nr
        if node is None or node in self.places or made.numel() != tensor.numel():
            return
        self.places[node] = key

        def arrived(gradients: tuple[Tensor | None, ...]) -> None:
            if (g := gradients[number]) is not None:
                alone = None if self.like is None else self.like.backward.get(key)
                if self.like is None or alone is not None:
                    self.backward[key] = see(g.reshape(shape), alone, self.batch)

        node.register_prehook(arrived)

    def link(self) -> None:
        """Fill ``sources``, then free the graph: its nodes have hooks, and the hooks hold the trace."""
        for start, key in self.places.items():
            sources, due, done = self.sources.setdefault(key, set()), [start], set()
            while due:
                for node, _ in due.pop().next_functions:
                    if node in self.places:
                        sources.add(self.places[node])
                    elif node is not None and node not in done:
                        done.add(node)
                        due.append(node)
        self.places.clear()
        self.last = None, 0, None

    def enter(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Before a module's call."""
        self.note(path, "input", tensors((args, kwargs)))
        self.running.append(path)

    def leave(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        """After a module's call."""
        self.running.pop()
        self.note(path, "output", tensors(output))


def tensors(value: Any, *, integers: bool = False) -> Iterator[Tensor]:
    """The dense tensors of real or complex numbers in a module's arguments or result, in order.

    Not integers: row numbers of a batch may differ, and what they select is recorded. Nor packed sequences, whose rows
    are not ordered by example.
    """
    if isinstance(value, Tensor):
        numbers = integers or value.is_floating_point() or value.is_complex()
        if numbers and not value.is_sparse and not value.is_nested and value.numel():
            yield value
    elif isinstance(value, PackedSequence):
        return
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item, integers=integers)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors(item, integers=integers)
    elif hasattr(value, "__dataclass_fields__"):
        yield from tensors(vars(value), integers=integers)


@contextmanager
def trace_modules(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Hook all modules of the model inside the context."""
    handles = []
    try:
        for path, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(Watching(trace.enter, path), with_kwargs=True))
            handles.append(module.register_forward_hook(Watching(trace.leave, path)))
        yield
    finally:
        for handle in handles:
            handle.remove()
        trace.link()
