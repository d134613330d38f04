"""Recompute inputs of layers in backward, bit for bit, in place of keeping them.

A layer's dR needs its input x. The inputs that are kept from forward to backward are most of a
step's memory. If x is the result of a norm, of a norm and a ReLU or tanh, or of a GELU, autograd
also keeps the input of that operation, for its own gradient. So x need not be kept: not by this
package, not by the activation, which saves its result, and not by the convolution, which saves its
input even if its weight is frozen. The cost is one more forward pass of that norm or activation.

A value is computed once, for its first reader in backward, and kept until its last reader has it.
It is the value of the forward pass: a later in-place change of x does not affect it. If a value
that it is computed from changes in place, autograd raises its own error.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import Node

REMATERIALIZED_FROM = 2**16
"""Numbers in one example's x from which x is recomputed. Measured on a WRN-28-4: with all inputs a
step took 3 % longer, with the largest ones alone no longer. The batch does not count: with rounded
activations the choice changes the bits of x, and no example may change the bits of another.
"""

NORMS = (nn.GroupNorm, nn.LayerNorm)
"""Norms whose results are recomputed."""
NORM_NODES = ("NativeGroupNormBackward0", "NativeLayerNormBackward0")
"""Names of the graph's nodes of these norms."""
RESULT_SAVED: dict[str, Callable[[Tensor], Tensor]] = {
    "ReluBackward0": torch.relu_,
    "TanhBackward0": torch.tanh_,
}
"""By name, the nodes of activations that save their result and not their input, with the function
that computes the result in place.
"""


class Rematerialized:
    """A tensor that is computed at its first read, and freed after its last one.

    make: computes the tensor.
    made: the tensor between its first and its last read.
    readers: number of reads to come.
    """

    def __init__(self, make: Callable[[], Tensor]) -> None:
        self.make = make
        self.made: Tensor | None = None
        self.readers = 0

    def read(self) -> Tensor:
        """The value. A read beyond ``readers`` computes it again: slow, but correct."""
        with torch.no_grad():
            value = self.make() if self.made is None else self.made
        self.readers -= 1  # below zero after a read that nobody had announced
        self.made = value if self.readers > 0 else None
        return value

    def replace(self, node: Node, name: str) -> None:
        """Replace what ``node`` saved as ``name`` by this value."""
        self.readers += 1
        getattr(node, f"_raw_saved_{name}").register_hooks(lambda _: self, Rematerialized.read)
        rematerialized_names(node).add(name)


class Rematerialization:
    """The inputs of layers in one pass that can be recomputed.

    norms: for each node of a norm, the module that made it.
    values: recomputed inputs, by the node that computed them in forward.
    """

    def __init__(self) -> None:
        self.norms: dict[Node, nn.Module] = {}
        self.values: dict[Node, Rematerialized] = {}

    def on_norm(self, module: nn.Module, _args: object, _kwargs: object, output: Tensor) -> None:
        """Forward hook of a norm: note which module made a node of the graph."""
        if output.grad_fn is not None and output.grad_fn.name() in NORM_NODES:
            self.norms[output.grad_fn] = module

    def forget(self) -> None:
        """Free the graph.

        Its nodes have hooks that hold the pass, a circle that Python's garbage collector does not
        see.
        """
        self.norms.clear()
        self.values.clear()

    def value_of(self, x: Tensor) -> Rematerialized | None:
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
        """The result of a norm or a GELU, recomputed from the input that its node saved.

        None for other nodes, and if x was changed in place before (``version`` is not 0).
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
        """The result of an activation directly after a norm, recomputed from the norm's input.

        The activation's node saves the result, which is freed here. None for other nodes.
        """
        activation = RESULT_SAVED.get(node.name())
        norm = node.next_functions[0][0] if activation is not None else None
        module = self.norms.get(norm) if norm is not None else None
        if activation is None or module is None:
            return None
        if saved(node, "result").data_ptr() != x.data_ptr():
            return None
        value = Rematerialized(lambda: activation(module.forward(saved(norm, "input"))))
        value.replace(node, "result")
        return value


def rematerialized_names(node: Node) -> set[str]:
    """Names of saved values that a node no longer has. Reading one of them computes it."""
    metadata: Any = node.metadata  # a dictionary, which torch's types take for a method
    names: set[str] = metadata.setdefault("rematerialized", set())
    return names


def saved(node: Node | None, name: str) -> Any:
    """The value that a node saved as ``name``.

    Raises autograd's error if the value was changed in place since.
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
