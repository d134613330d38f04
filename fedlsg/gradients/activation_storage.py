"""Activations stored in bfloat16 between forward and backward, in half the memory.

Forward computes in its own precision. The tensors that autograd saves, and the inputs that our own hooks keep, are
rounded to bfloat16 once a storage, and widened again when backward reads them. A ReLU's result, the next layer's input
and what that layer's blocks need of it are one tensor, and stay one. Not rounded are: parameters, buffers and the
batch, which stay in memory anyway; statistics of norms; the logarithms of attention's sums, where an error is one of an
exponent; and whatever no layer follows, such as the loss. The choice depends on the graph alone, never on the number of
examples: otherwise one more example could change the gradients of all others.

In-place changes: a rounded copy has the values of the moment when it was made, which autograd's check accepted. Later
changes do not affect it, so they are not refused. Tensors that are not rounded stay under the checks of autograd and of
the hooks.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from jaxtyping import Float
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import Node

from fedlsg.gradients.blocks import LayerMemory
from fedlsg.gradients.rematerialize import RESULT_SAVED, rematerialized_names

LEFT = {
    "weight", "bias", "mean", "rstd", "result1", "result2", "result3", "logsumexp", "log_sumexp",
    "running_mean", "running_var", "save_mean", "save_invstd", "tensors",
}  # fmt: skip
"""Names under which autograd's nodes save parameters and statistics, and custom functions whatever they save."""
EXPONENTS = {"LogSoftmaxBackward0", "LogsumexpBackward0"}
"""Nodes that exponentiate the tensors that they saved."""

_FIELDS: dict[type, tuple[str, ...]] = {}


class ActivationStorage:
    """The rounded copies of one pass. ``left``: tensors that are not rounded, nor any that shares their memory."""

    def __init__(self, left: Iterable[Tensor]) -> None:
        self.left = {t.untyped_storage() for t in left}
        self.copies: WeakKeyDictionary[UntypedStorage, dict[Any, ReferenceType[UntypedStorage]]] = WeakKeyDictionary()
        self.seen: set[Node] = set()
        self.later: list[Node] = []
        self.restored: tuple[UntypedStorage | None, Tensor] = (None, torch.empty(0))

    def visit(self, output: object) -> None:
        """Round the tensors that the new nodes of the graph before a layer's output have saved.

        The saved result of an activation waits for the next layer, which may rematerialize it instead: a node accepts
        no second hook.
        """
        for waiting in self.later:
            self.take(waiting, "result")
        self.later.clear()
        nodes = [output.grad_fn] if isinstance(output, Tensor) else []
        while nodes:
            node = nodes.pop()
            if node is None or node in self.seen:
                continue
            self.seen.add(node)
            if node.name() in RESULT_SAVED:
                self.later.append(node)
            else:
                for name in saved_by(node):
                    self.take(node, name)
            nodes += [behind for behind, _ in node.next_functions]

    def take(self, node: Node, name: str) -> None:
        """Round a tensor that a node saved, if it is a float32 activation that is not rematerialized."""
        if name in rematerialized_names(node):
            return
        try:
            value = getattr(node, f"_saved_{name}")  # raises if it was changed in place: backward will say so, too
            if isinstance(value, Tensor) and self.takes(value):
                getattr(node, f"_raw_saved_{name}").register_hooks(self.pack, self.unpack)
        except RuntimeError:
            return

    def takes(self, t: Tensor) -> bool:
        """Whether t is to be rounded."""
        return t.dtype == torch.float32 and t.ndim > 1 and t.untyped_storage() not in self.left

    def pack(self, t: Tensor) -> Tensor:
        """t rounded: a view of the one copy of its storage, or an own copy if t is a small part of the storage."""
        storage = t.untyped_storage()
        part = 8 * t.numel() < storage.nbytes()
        key = (t._version, t.storage_offset(), t.shape, t.stride()) if part else (t._version,)
        known = self.copies.setdefault(storage, {})
        copy = known[key]() if key in known else None
        if copy is None:
            copy = (t.detach().flatten() if part else flat(storage, t)).bfloat16().untyped_storage()
            known[key] = ref(copy)
        rounded = flat(copy, t.new_empty(0, dtype=torch.bfloat16))
        return rounded.view(t.shape) if part else rounded.as_strided(t.shape, t.stride(), t.storage_offset())

    def unpack(self, rounded: Tensor) -> Tensor:
        """The result of ``pack`` in float32 again. The last storage is cached: it is often read several times."""
        storage, last = self.restored
        if storage is not rounded.untyped_storage():
            storage, self.restored = rounded.untyped_storage(), (None, last.new_empty(0))
            last = flat(storage, rounded).float()
            self.restored = (storage, last)
        return last.as_strided(rounded.shape, rounded.stride(), rounded.storage_offset())

    def rounded(self, g: Tensor) -> Tensor:
        """A gradient at a layer's output, as it is kept for ghost clipping: what is clipped is the rounded gradient."""
        return g.bfloat16() if g.dtype == torch.float32 else g

    def pack_memory(self, memory: LayerMemory) -> None:
        """Round what a layer keeps of its input and output."""
        if memory.x is not None and self.takes(memory.x):
            memory.x = self.pack(memory.x)
            memory.version = memory.x._version
        if memory.note is not None and self.takes(memory.note.y):
            memory.note.y = self.pack(memory.note.y)
            memory.note.version = memory.note.y._version


@contextmanager
def round_activations(model: nn.Module, inputs: Tensor | Mapping[str, Tensor]) -> Iterator[ActivationStorage]:
    """Inside the context, round what autograd saves for the model's layers, after the call of each."""
    batch = [inputs] if isinstance(inputs, Tensor) else inputs.values()
    storage = ActivationStorage([*model.parameters(), *model.buffers(), *batch])
    leaves = [m for m in model.modules() if next(m.children(), None) is None]
    handles = [m.register_forward_hook(lambda _module, _args, output: storage.visit(output)) for m in leaves]
    try:
        yield storage
    finally:
        for handle in handles:
            handle.remove()
        storage.later.clear()
        storage.seen.clear()  # a node keeps its hooks, and the hooks keep the storage


def flat(storage: UntypedStorage, like: Tensor) -> Float[Tensor, " size"]:
    """All of a storage, in the type of a tensor."""
    size = storage.nbytes() // like.itemsize
    whole: Tensor = like.new_empty(0).set_(storage, 0, (size,), (1,))
    return whole


def saved_by(node: Node) -> tuple[str, ...]:
    """Names under which a node keeps tensors that may be activations."""
    kind = type(node)
    if kind not in _FIELDS:
        names = [name.removeprefix("_raw_saved_") for name in dir(node) if name.startswith("_raw_saved_")]
        _FIELDS[kind] = () if node.name() in EXPONENTS else tuple(n for n in names if n not in LEFT)
    return _FIELDS[kind]
