"""Where the examples are in the input of a layer, and from which values another one was computed."""

from collections.abc import Collection

from torch import Tensor
from torch.autograd.graph import Node

from fedlsg.gradients.called import CallLayer, Graph
from fedlsg.gradients.calls import unsupported
from fedlsg.gradients.calls.errors import ReadElsewhereError
from fedlsg.gradients.calls.survey import FLAT, UNKNOWN, Axis
from fedlsg.gradients.plan import Layer
from fedlsg.gradients.sources import takes_shared
from fedlsg.gradients.unbatched import Unbatched


def surveyed(step: Graph, layer: Layer | CallLayer, call: int) -> Axis:
    """The axis of the examples in the input of a call, by its number from 1."""
    known = step.survey.layers.get(layer.path, ())
    return known[call - 1] if call <= len(known) else UNKNOWN if set(known) - {0} else 0


def is_constant(step: Graph, layer: Layer | CallLayer, x: Tensor) -> bool:
    """Whether a layer reads a value that belongs to no example, though it was computed in the pass."""
    return (isinstance(x, Unbatched) or not x.requires_grad) and surveyed(
        step, layer, step.called[layer.path] + 1
    ) is None


def axis_of(step: Graph, layer: Layer | CallLayer, x: Tensor) -> Axis:
    """The axis of the examples in a layer's input. Raises UnsupportedLayerError where no formula can take it."""
    axis, size = surveyed(step, layer, step.called[layer.path]), -1
    if axis == 0 and x.ndim and x.shape[0] == step.batch and isinstance(layer, Layer) and layer.formulas.batch_first(x):
        return 0
    if axis is None and (read := leaves_of(x)):
        names = [name for name, p in step.parameters.items() if any(p is q for q in read)]
        if names:
            raise ReadElsewhereError(names)
    formulas = layer.formulas if isinstance(layer, Layer) else None
    if axis == FLAT:
        size = step.batch if len(x) % step.batch == 0 else -1
        if step.uses is not None:
            step.uses.flat.add(len(x))
    elif axis is not None and 0 <= axis < x.ndim and (formulas is None or formulas.batch_first(x)):
        size = x.shape[axis]
    if size == step.batch and (axis == 0 or takes_shared(layer, x)):
        return axis
    raise unsupported(
        layer.path,
        layer.module,
        f"expected an input whose first dimension is the batch of {step.batch}, got shape {tuple(x.shape)}; "
        "keep examples on the first dimension (no flattening of positions into it), or freeze it",
    )


def leaves_of(x: Tensor) -> list[Tensor]:
    """The parameters from which a value was computed."""
    if x.is_leaf:
        return [x] if x.requires_grad else []
    seen: set[Node] = set()
    due, found = [x.grad_fn], []
    while due:
        node = due.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found += [node.variable] if hasattr(node, "variable") else []
            due += [before for before, _ in node.next_functions]
    return found


def leads_to(end: Node | None, places: Collection[Node]) -> bool:
    """Whether the value of node ``end`` was computed from the value of one of the nodes ``places``."""
    seen: set[Node] = set()
    due = [end]
    while due:
        node = due.pop()
        if node is None or node in seen:
            continue
        if node in places:
            return True
        seen.add(node)
        due += [before for before, _ in node.next_functions]
    return False
