"""Store activations in bfloat16 between forward and backward, in half the memory.

Forward computes in its own precision. The tensors that autograd saves, and the inputs that the
hooks of this package keep, are rounded to bfloat16 once for each storage, and widened again when
backward reads them. A ReLU's result, the next layer's input and what that layer's blocks need of it
are one tensor, and stay one.

These are not rounded: parameters, buffers and the batch, which stay in memory anyway; statistics of
norms; the logarithms of attention's sums, whose error would be one of an exponent; and whatever no
layer follows, such as the loss. The choice depends on the graph alone, never on the number of
examples: otherwise one more example could change the gradients of all others.

In-place changes: a rounded copy has the values of the moment when it was made, which autograd's
check accepted. Later changes do not affect it, so they are not refused. Tensors that are not
rounded stay under the checks of autograd and of the hooks.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from jaxtyping import Float
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import Node

from fedlsg.gradients.hooked_pass.rematerialization import RESULT_SAVED, rematerialized_names

NEVER_ROUNDED = {
    "weight",
    "bias",
    "mean",
    "rstd",
    "result1",
    "result2",
    "result3",
    "logsumexp",
    "log_sumexp",
    "running_mean",
    "running_var",
    "save_mean",
    "save_invstd",
    "tensors",
}
"""Names under which autograd's nodes save parameters and statistics, and under which custom
functions save anything (``tensors``).
"""
EXPONENTS = {"LogSoftmaxBackward0", "LogsumexpBackward0"}
"""Nodes that exponentiate the tensors that they saved."""

_saved_names: dict[type, tuple[str, ...]] = {}
"""Never invalid, as it follows from the class: what ``saved_by`` returns for a class of nodes."""


class ActivationStorage:
    """The rounded copies of one pass.

    never_rounded: storages whose tensors are not rounded.
    copies: for each storage, the rounded copies of it, or of small parts of it.
    seen: nodes of the graph that were visited.
    later: visited nodes whose saved result waits for the next layer.
    restored: the storage that was widened last, and its values in float32.
    """

    def __init__(self, never_rounded: Iterable[Tensor]) -> None:
        self.never_rounded = {t.untyped_storage() for t in never_rounded}
        self.copies: WeakKeyDictionary[UntypedStorage, dict[Any, ReferenceType[UntypedStorage]]] = (
            WeakKeyDictionary()
        )
        self.seen: set[Node] = set()
        self.later: list[Node] = []
        self.restored: tuple[UntypedStorage | None, Tensor] = (None, torch.empty(0))

    def visit(self, output: object) -> None:
        """Round the tensors that the new nodes of the graph before a layer's output have saved.

        The saved result of an activation waits for the next layer, which may rematerialize it
        instead: a node accepts no second hook.
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
        """Round a tensor that a node saved, if it is a float32 activation.

        Tensors that are rematerialized are not stored at all.
        """
        if name in rematerialized_names(node):
            return
        try:
            # raises if it was changed in place: backward will say so, too
            value = getattr(node, f"_saved_{name}")
            if isinstance(value, Tensor) and self.takes(value):
                getattr(node, f"_raw_saved_{name}").register_hooks(self.pack, self.unpack)
        except RuntimeError:
            return

    def takes(self, t: Tensor) -> bool:
        """Whether t is to be rounded."""
        if t.dtype != torch.float32 or t.ndim < 2:
            return False
        return t.untyped_storage() not in self.never_rounded

    def pack(self, t: Tensor) -> Tensor:
        """t rounded: a view of the one copy of its storage.

        If t is less than half of its storage, which has 4 bytes a number, it has its own copy.
        """
        storage = t.untyped_storage()
        is_small_part = 8 * t.numel() < storage.nbytes()
        key: tuple[Any, ...] = (t._version,)
        if is_small_part:
            key = (t._version, t.storage_offset(), t.shape, t.stride())
        copies = self.copies.setdefault(storage, {})
        copy = copies[key]() if key in copies else None
        if copy is None:
            values = t.detach().flatten() if is_small_part else flat(storage, t)
            copy = values.bfloat16().untyped_storage()
            copies[key] = ref(copy)
        rounded = flat(copy, t.new_empty(0, dtype=torch.bfloat16))
        if is_small_part:
            return rounded.view(t.shape)
        return rounded.as_strided(t.shape, t.stride(), t.storage_offset())

    def unpack(self, rounded: Tensor) -> Tensor:
        """The result of ``pack`` in float32 again.

        The storage that was widened last is kept, because it is often read several times.
        """
        storage, values = self.restored
        if storage is not rounded.untyped_storage():
            storage = rounded.untyped_storage()
            self.restored = (None, values.new_empty(0))  # free the last values before the next
            values = flat(storage, rounded).float()
            self.restored = (storage, values)
        return values.as_strided(rounded.shape, rounded.stride(), rounded.storage_offset())

    def round_gradient(self, g: Tensor) -> Tensor:
        """A gradient at a layer's output, rounded as it is kept for ghost clipping.

        What is clipped is the rounded gradient.
        """
        return g.bfloat16() if g.dtype == torch.float32 else g


@contextmanager
def round_activations(
    model: nn.Module, inputs: Tensor | Mapping[str, Tensor]
) -> Iterator[ActivationStorage]:
    """Inside the context, round what autograd saves for the model's layers.

    Each layer's tensors are rounded after its call.
    """
    batch = [inputs] if isinstance(inputs, Tensor) else inputs.values()
    storage = ActivationStorage([*model.parameters(), *model.buffers(), *batch])
    leaves = [m for m in model.modules() if next(m.children(), None) is None]
    handles = [
        m.register_forward_hook(lambda _module, _args, output: storage.visit(output))
        for m in leaves
    ]
    try:
        yield storage
    finally:
        for handle in handles:
            handle.remove()
        storage.later.clear()
        storage.seen.clear()  # a node keeps its hooks, and the hooks keep the storage


def flat(storage: UntypedStorage, like: Tensor) -> Float[Tensor, " size"]:
    """All numbers of a storage, in the type of the tensor ``like``."""
    size = storage.nbytes() // like.itemsize
    whole: Tensor = like.new_empty(0).set_(storage, 0, (size,), (1,))
    return whole


def saved_by(node: Node) -> tuple[str, ...]:
    """Names under which a node keeps tensors that may be activations."""
    kind = type(node)
    if kind not in _saved_names:
        prefix = "_raw_saved_"
        names = [name.removeprefix(prefix) for name in dir(node) if name.startswith(prefix)]
        if node.name() in EXPONENTS:
            names = []
        _saved_names[kind] = tuple(name for name in names if name not in NEVER_ROUNDED)
    return _saved_names[kind]
