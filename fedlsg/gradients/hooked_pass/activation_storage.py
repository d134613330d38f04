"""Activations between forward and backward: stored in bfloat16, in half the memory, or computed
again in backward.

Storage. Forward computes in its own precision. The tensors that autograd saves, and the inputs that
our own hooks keep, are rounded to bfloat16 once a storage, and widened again when backward reads
them. A ReLU's result, the next layer's input and what that layer's blocks need of it are one
tensor, and stay one. Not rounded are: parameters, buffers and the batch, which stay in memory
anyway; statistics of norms; the logarithms of attention's sums, where an error is one of an
exponent; and whatever no layer follows, such as the loss. The choice depends on the graph alone,
never on the number of examples: otherwise one more example could change the gradients of all
others.

In-place changes: a rounded copy has the values of the moment when it was made, which autograd's
check accepted. Later changes do not affect it, so they are not refused. Tensors that are not
rounded stay under the checks of autograd and of the hooks.

Rematerialization: inputs of layers are computed again in backward, bit for bit. A layer's dR needs
its input x. The inputs that are kept from forward to backward are most of a step's memory. If x is
the result of a norm, of a norm and a ReLU or tanh, or of a GELU, autograd also keeps the input of
that operation, for its own gradient. So x need not be kept: not by this package, not by the
activation, which saves its result, and not by the convolution, which saves its input even if its
weight is frozen. The cost is one more forward pass of that norm or activation.

A value is computed once, for its first reader in backward, and kept until its last reader has it.
It is the value of the forward pass: a later in-place change of x does not affect it. If a value
that it is computed from changes in place, autograd raises its own error.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import Node

LEFT = {
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
"""Names under which autograd's nodes save parameters and statistics, and custom functions whatever
they save.
"""
EXPONENTS = {"LogSoftmaxBackward0", "LogsumexpBackward0"}
"""Nodes that exponentiate the tensors that they saved."""

_FIELDS: dict[type, tuple[str, ...]] = {}
"""Never invalid, as it follows from the class: what ``saved_by`` returns for a class of nodes."""


class ActivationStorage:
    """The rounded copies of one pass. ``left``: tensors that are not rounded, nor any that shares
    their memory.
    """

    def __init__(self, left: Iterable[Tensor]) -> None:
        self.left = {t.untyped_storage() for t in left}
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
        """Round a tensor that a node saved, if it is a float32 activation that is not
        rematerialized.
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
        return t.dtype == torch.float32 and t.ndim > 1 and t.untyped_storage() not in self.left

    def pack(self, t: Tensor) -> Tensor:
        """t rounded: a view of the one copy of its storage, or an own copy if t is a small part of
        the storage.
        """
        storage = t.untyped_storage()
        part = 8 * t.numel() < storage.nbytes()
        key = (t._version, t.storage_offset(), t.shape, t.stride()) if part else (t._version,)
        known = self.copies.setdefault(storage, {})
        copy = known[key]() if key in known else None
        if copy is None:
            copy = (t.detach().flatten() if part else flat(storage, t)).bfloat16().untyped_storage()
            known[key] = ref(copy)
        rounded = flat(copy, t.new_empty(0, dtype=torch.bfloat16))
        return (
            rounded.view(t.shape)
            if part
            else rounded.as_strided(t.shape, t.stride(), t.storage_offset())
        )

    def unpack(self, rounded: Tensor) -> Tensor:
        """The result of ``pack`` in float32 again. The last storage is cached: it is often read
        several times.
        """
        storage, last = self.restored
        if storage is not rounded.untyped_storage():
            storage, self.restored = rounded.untyped_storage(), (None, last.new_empty(0))
            last = flat(storage, rounded).float()
            self.restored = (storage, last)
        return last.as_strided(rounded.shape, rounded.stride(), rounded.storage_offset())

    def rounded(self, g: Tensor) -> Tensor:
        """A gradient at a layer's output, as it is kept for ghost clipping: what is clipped is the
        rounded gradient.
        """
        return g.bfloat16() if g.dtype == torch.float32 else g


@contextmanager
def round_activations(
    model: nn.Module, inputs: Tensor | Mapping[str, Tensor]
) -> Iterator[ActivationStorage]:
    """Inside the context, round what autograd saves for the model's layers, after the call of
    each.
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
    """All of a storage, in the type of a tensor."""
    size = storage.nbytes() // like.itemsize
    whole: Tensor = like.new_empty(0).set_(storage, 0, (size,), (1,))
    return whole


def saved_by(node: Node) -> tuple[str, ...]:
    """Names under which a node keeps tensors that may be activations."""
    kind = type(node)
    if kind not in _FIELDS:
        names = [
            name.removeprefix("_raw_saved_") for name in dir(node) if name.startswith("_raw_saved_")
        ]
        _FIELDS[kind] = () if node.name() in EXPONENTS else tuple(n for n in names if n not in LEFT)
    return _FIELDS[kind]


REMATERIALIZED_FROM = 2**16
"""Size of one example's x from which rematerialization costs no time: for all inputs of a WRN-28-4
a plain step took 3 % longer, for the largest ones alone no longer. The size of one example, not of
the batch: with rounded activations the choice changes the bits of x, and no example may change the
bits of another.
"""

NORMS = (nn.GroupNorm, nn.LayerNorm)
NORM_NODES = ("NativeGroupNormBackward0", "NativeLayerNormBackward0")
RESULT_SAVED: dict[str, Callable[[Tensor], Tensor]] = {
    "ReluBackward0": torch.relu_,
    "TanhBackward0": torch.tanh_,
}
"""Activations whose node saves the result and not the input, with the function that computes it in
place.
"""


class Rematerialized:
    """A tensor that is computed when it is first read, and freed after the last of its
    ``readers``.
    """

    def __init__(self, make: Callable[[], Tensor]) -> None:
        self.make = make
        self.made: Tensor | None = None
        self.readers = 0

    def read(self) -> Tensor:
        """The value. A read beyond ``readers`` computes it again: slow, but correct."""
        with torch.no_grad():
            value = self.make() if self.made is None else self.made
        self.readers -= 1
        self.made = value if self.readers > 0 else None
        return value

    def replace(self, node: Node, name: str) -> None:
        """Replace what ``node`` saved as ``name`` by this value."""
        self.readers += 1
        getattr(node, f"_raw_saved_{name}").register_hooks(lambda _: self, Rematerialized.read)
        rematerialized_names(node).add(name)


class Rematerialization:
    """The inputs of one pass that can be computed again."""

    def __init__(self) -> None:
        self.norms: dict[Node, nn.Module] = {}
        self.values: dict[Node, Rematerialized] = {}

    def on_norm(self, module: nn.Module, _args: object, _kwargs: object, output: Tensor) -> None:
        """Forward hook of a norm: note which module made a node of the graph."""
        if output.grad_fn is not None and output.grad_fn.name() in NORM_NODES:
            self.norms[output.grad_fn] = module

    def forget(self) -> None:
        """Free the graph. Its nodes have hooks that hold the pass, a circle that no collector
        sees.
        """
        self.norms.clear()
        self.values.clear()

    def of(self, x: Tensor) -> Rematerialized | None:
        """The value of a layer's input x, with one more reader; None if x has to be kept."""
        node = x.grad_fn
        if node is None or x.numel() // x.shape[0] < REMATERIALIZED_FROM:
            return None
        value = self.values.get(node)
        if value is None:
            value = self.from_input(node, x._version) or self.from_norm(node, x)
            if value is None:
                return None
            self.values[node] = value
        value.readers += 1
        return value

    def from_input(self, node: Node, version: int) -> Rematerialized | None:
        """The result of a norm or a GELU, whose node saves its input; None if x was changed in
        place before.
        """
        module = self.norms.get(node)
        if version:
            return None
        if module is not None:
            return Rematerialized(lambda: module.forward(saved(node, "input")))
        if node.name() == "GeluBackward0":
            return Rematerialized(
                lambda: F.gelu(saved(node, "self"), approximate=saved(node, "approximate"))
            )
        return None

    def from_norm(self, node: Node, x: Tensor) -> Rematerialized | None:
        """The result of an activation directly after a norm. Its node saves the result, which is
        freed here.
        """
        again = RESULT_SAVED.get(node.name())
        norm = node.next_functions[0][0] if again is not None else None
        module = self.norms.get(norm) if norm is not None else None
        if again is None or module is None or saved(node, "result").data_ptr() != x.data_ptr():
            return None
        value = Rematerialized(lambda: again(module.forward(saved(norm, "input"))))
        value.replace(node, "result")
        return value


def rematerialized_names(node: Node) -> set[str]:
    """Names of saved values that a node no longer has. Reading one of them computes it."""
    metadata: Any = node.metadata  # a dictionary, which torch's types take for a method
    names: set[str] = metadata.setdefault("rematerialized", set())
    return names


def saved(node: Node | None, name: str) -> Any:
    """The value that a node saved as ``name``. Raises autograd's error if it was changed in place
    since.
    """
    return getattr(node, f"_saved_{name}")


def release(value: Rematerialized, x: Tensor, output: Tensor) -> None:
    """Free x if the convolution that computed ``output`` from it saved it."""
    node = output.grad_fn
    if (
        node is not None
        and node.name() == "ConvolutionBackward0"
        and saved(node, "input").data_ptr() == x.data_ptr()
    ):
        value.replace(node, "input")


def own_memory(output: Tensor) -> Tensor:
    """The output, or a copy where it is a view with its values in another order than those of
    ``producer``.
    """
    base = output._base if output._is_view() else None
    return (
        output
        if base is None or (base.is_contiguous() and output.is_contiguous())
        else output.clone()
    )


def producer(output: Tensor) -> Node:
    """The node of the graph that computed the values of a layer's output.

    A hook on the output itself can be lost: a linear layer returns a view, and the first in-place
    change of a view (ReLU(inplace=True)) removes its node from the graph, with its hooks. The node
    of the viewed tensor stays.
    """
    base = output._base if output._is_view() and output._base is not None else output
    assert base.grad_fn is not None
    assert base.numel() == output.numel()
    return base.grad_fn
