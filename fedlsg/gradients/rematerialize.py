"""Inputs of layers that backward makes again, bit for bit, from what autograd keeps anyway, in place of holding both.

A layer's dR needs the layer's input x, and what is held of x from the forward pass to backward is most of a step's
memory. Where x came out of a norm, of a norm and a ReLU or tanh, or of a GELU, autograd also holds what went *in*
there, for the gradient of that very operation. So x itself is let go: by this package, by the activation, which holds
its result, and by the convolution, which holds its input even where its weight is frozen. The price is one more
forward pass of that norm or activation.

A value is made once, for the first reader in backward, and held until the last one has it. Reads what the forward pass
saw: a later change of x in place does not reach it, and a change of what it is made from raises autograd's own error.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import Node

REBUILT_FROM = 2**16
"""Numbers of one example's x from which it costs no time: making all of them again took 3 hundredths of a WRN-28-4's
plain step more, the largest alone take none. Of one example's, for where activations are kept rounded, what x is made
from decides its bits, and no example may change another's.
"""

NORMS = (nn.GroupNorm, nn.LayerNorm)
NORM_NODES = ("NativeGroupNormBackward0", "NativeLayerNormBackward0")
RESULT_HELD: dict[str, Callable[[Tensor], Tensor]] = {"ReluBackward0": torch.relu_, "TanhBackward0": torch.tanh_}
"""Activations whose node holds their result and not their input, as what makes it again in its input's memory."""


class Rebuilt:
    """A tensor that is made when it is read, and forgotten with the last of its ``readers``."""

    def __init__(self, make: Callable[[], Tensor]) -> None:
        self.make = make
        self.made: Tensor | None = None
        self.readers = 0

    def read(self) -> Tensor:
        """The value. More reads than readers make it anew, so that they are slow and not wrong."""
        with torch.no_grad():
            value = self.make() if self.made is None else self.made
        self.readers -= 1
        self.made = value if self.readers > 0 else None
        return value

    def replace(self, node: Node, name: str) -> None:
        """Let go of what ``node`` holds as ``name``: this value."""
        self.readers += 1
        getattr(node, f"_raw_saved_{name}").register_hooks(lambda _: self, Rebuilt.read)
        made_again(node).add(name)


class Rebuilding:
    """The inputs of one pass that can be made again."""

    def __init__(self) -> None:
        self.norms: dict[Node, nn.Module] = {}
        self.found: dict[Node, Rebuilt] = {}

    def on_norm(self, module: nn.Module, _args: object, output: Tensor) -> None:
        """Forward hook of a norm: which module a node of the graph stands for."""
        if output.grad_fn is not None and output.grad_fn.name() in NORM_NODES:
            self.norms[output.grad_fn] = module

    def forget(self) -> None:
        """Let go of the graph, whose nodes have hooks that hold the pass: no collector sees that circle."""
        self.norms.clear()
        self.found.clear()

    def of(self, x: Tensor) -> Rebuilt | None:
        """The value of x, a layer's input, with one reader more; None where it has to be held."""
        node = x.grad_fn
        if node is None or x[0].numel() < REBUILT_FROM:
            return None
        value = self.found.get(node)
        if value is None:
            value = self.from_input(node, x._version) or self.from_norm(node, x)
            if value is None:
                return None
            self.found[node] = value
        value.readers += 1
        return value

    def from_input(self, node: Node, version: int) -> Rebuilt | None:
        """The result of a norm or a GELU, whose node holds its input; None after a change that autograd missed."""
        module = self.norms.get(node)
        if version:
            return None
        if module is not None:
            return Rebuilt(lambda: module.forward(held(node, "input")))
        if node.name() == "GeluBackward0":
            return Rebuilt(lambda: F.gelu(held(node, "self"), approximate=held(node, "approximate")))
        return None

    def from_norm(self, node: Node, x: Tensor) -> Rebuilt | None:
        """The result of an activation right behind a norm. Its node holds it, and lets go of it here."""
        again = RESULT_HELD.get(node.name())
        norm = node.next_functions[0][0] if again is not None else None
        module = self.norms.get(norm) if norm is not None else None
        if again is None or module is None or held(node, "result").data_ptr() != x.data_ptr():
            return None
        value = Rebuilt(lambda: again(module.forward(held(norm, "input"))))
        value.replace(node, "result")
        return value


def made_again(node: Node) -> set[str]:
    """Names of what a node no longer holds. To ask it for one of them makes that."""
    metadata: Any = node.metadata  # a dictionary, which torch's types take for a method
    names: set[str] = metadata.setdefault("made again", set())
    return names


def held(node: Node | None, name: str) -> Any:
    """What a node of the graph holds under ``name``. Raises autograd's error where a tensor changed in place since."""
    return getattr(node, f"_saved_{name}")


def let_go(value: Rebuilt, x: Tensor, output: Tensor) -> None:
    """Let go of x where the convolution that made ``output`` of it holds it."""
    node = output.grad_fn
    if node is not None and node.name() == "ConvolutionBackward0" and held(node, "input").data_ptr() == x.data_ptr():
        value.replace(node, "input")
