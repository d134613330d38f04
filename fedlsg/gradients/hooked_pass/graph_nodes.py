"""Nodes of autograd's graph: the one that computed a value, and those before it."""

from collections.abc import Iterator

from torch import Tensor
from torch.autograd.graph import Node


def own_memory(output: Tensor) -> Tensor:
    """The output, or a copy of a view that stores its values in another order.

    The gradient that arrives at ``producer`` then has the values in the output's own order.
    """
    base = output._base if output._is_view() else None
    in_order = base is None or (base.is_contiguous() and output.is_contiguous())
    return output if in_order else output.clone()


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


def leaves_of(x: Tensor) -> list[Tensor]:
    """The leaves of the graph from which a value was computed, such as parameters."""
    if x.is_leaf:
        return [x] if x.requires_grad else []
    variables = (getattr(node, "variable", None) for node in ancestors(x.grad_fn))
    return [variable for variable in variables if isinstance(variable, Tensor)]


def ancestors(end: Node | None) -> Iterator[Node]:
    """The node ``end``, and all nodes whose values its value was computed from, each once."""
    seen: set[Node] = set()
    waiting = [end]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [before for before, _ in node.next_functions]
