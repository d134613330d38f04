"""Where the examples are in what a layer reads, and where values that all examples share enter a
pass (``uses``).

The frame's blocks take the gradients of shared values here.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import Node

from fedlsg.gradients.calls import unsupported
from fedlsg.gradients.calls.registry import Place, ReadElsewhereError
from fedlsg.gradients.calls.survey import FLAT, Axis
from fedlsg.gradients.formulas.embedding_rows import (
    Lazy,
    ProductGradients,
    RowGradients,
    TiedGradients,
    tied,
)
from fedlsg.gradients.formulas.layers import is_turned
from fedlsg.gradients.hooked_pass.blocks import choose_block, remember, remember_output
from fedlsg.gradients.hooked_pass.call_layers import CallLayer, Graph, in_type, set_blocks, settle
from fedlsg.gradients.hooked_pass.hooked_layers import Layer, Slot
from fedlsg.gradients.hooked_pass.precision import without_autocast
from fedlsg.gradients.hooked_pass.unbatched import Unbatched, plain
from fedlsg.gradients.hooked_pass.uses import Uses

Gradients = Sequence[Tensor | Lazy]


@contextmanager
def replace_parameters(
    model: nn.Module, slots: Sequence[Slot], places: Mapping[str, list[Place]], uses: Uses
) -> Iterator[None]:
    """Inside the context, the parameters at ``places`` are Unbatched; their gradients go to the
    frame's blocks.
    """
    by_name = {slot.block.parameter: slot for slot in slots}
    saved = [
        (module, attribute, module._parameters[attribute])
        for of_name in places.values()
        for module, attribute in of_name
    ]
    frozen = [*model.buffers(), *(p for p in model.parameters() if not p.requires_grad)]
    uses.constant |= {t.untyped_storage().data_ptr() for t in frozen}
    try:
        for name, of_name in places.items():
            p = of_name[0][0]._parameters[of_name[0][1]]
            assert p is not None
            leaf = uses.source(p, name, to_slot(uses.step, by_name[name]))
            for module, attribute in of_name:
                module._parameters[attribute] = leaf  # type: ignore[assignment]
        yield
    finally:
        for module, attribute, p in saved:
            module._parameters[attribute] = p
        uses.forget()


def table(uses: Uses, module: nn.Embedding, slot: Slot, ids: Tensor, output: Tensor) -> Tensor:
    """The output of an embedding that was read without the batch, as an Unbatched value."""
    name = slot.block.parameter

    def receive(parts: Gradients) -> None:
        dense = [part for part in parts if isinstance(part, Tensor)]
        if dense:
            g = torch.stack(dense).sum(0).reshape(uses.step.batch, -1, output.shape[-1])
            rows = RowGradients(
                module,  # type: ignore[arg-type]
                g,
                ids.reshape(1, -1).expand(len(g), -1),
                g._version,
                module.padding_idx,
            )
            uses.step.add(
                slot.position, settle(rows, slot, ghost=uses.step.ghosts(name.rpartition(".")[0]))
            )

    return shared_output(uses, output, name, receive)


def takes_shared(layer: Layer | CallLayer, x: Tensor) -> bool:
    """Whether a layer may read a value without the batch: any dimensions fit, or there is one of
    length 1.
    """
    if isinstance(layer, CallLayer):
        return layer.kind.positions
    linear = isinstance(layer.module, nn.Linear | nn.LayerNorm) or is_turned(layer.module)
    return linear or (x.shape[0] == 1 and layer.formulas.batch_first(x))


def without_batch(step: Graph, layer: Layer | CallLayer, x: Tensor, output: Tensor) -> Tensor:
    """The output of a layer that read ``x``, which all examples share, as an Unbatched value.

    Each example has a gradient at it, so that the layer's formulas see x once for each example.
    """
    uses = step.uses
    assert uses is not None
    batch, one = step.batch, int(x.ndim > 0 and x.shape[0] == 1 and output.shape[0] == 1)

    def receive(parts: Gradients) -> None:
        dense = [part for part in parts if isinstance(part, Tensor)]
        if not dense:
            return
        g = torch.stack(dense).sum(0).view(batch, *output.shape)
        if isinstance(x, Unbatched):
            uses.found.append((x, pull_back(layer.module, plain(x), g)))
        given, y = (
            t.detach().view(t.shape[one:]).expand(batch, *t.shape[one:])
            for t in (plain(x), plain(output))
        )
        g = g.reshape(y.shape)
        with torch.no_grad(), without_autocast(g.device.type):
            if isinstance(layer, CallLayer):
                set_blocks(step, layer, in_type((given,), layer.dtype), g.to(layer.dtype))
                return
            memory = remember(layer, given.to(layer.dtype))
            remember_output(layer, memory, given.to(layer.dtype), y, None)
            for slot in layer.slots:
                step.add(slot.position, choose_block(step, layer, slot, memory, g.to(layer.dtype)))

    return shared_output(uses, output, f"{layer.path}.weight" if layer.path else "weight", receive)


def pull_back(module: nn.Module, x: Tensor, g: Float[Tensor, "batch *shape"]) -> Tensor:
    """The gradient of each example at the input of a module, for its gradient at the output."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = type(module).forward(module, x)
    (gradient,) = torch.autograd.grad(y, [x], g.to(y.dtype), is_grads_batched=True)
    return gradient


def shared_output(
    uses: Uses, value: Tensor, name: str, receive: Callable[[Gradients], None]
) -> Tensor:
    """A copy of a new leaf, which the model may change in place."""
    leaf = uses.source(value, name, receive)
    with torch._C.DisableTorchFunctionSubclass():
        return uses.mark(leaf.clone(), (name,))


def to_slot(step: Graph, slot: Slot) -> Callable[[Gradients], None]:
    """Put the sum of a parameter's gradients in its block."""

    def receive(parts: Gradients) -> None:
        ghost = step.ghosts("")
        if len(parts) == 1:
            step.add(slot.position, settle(parts[0], slot, ghost=ghost))
        elif (
            ghost
            and slot.block.kept == slot.block.size
            and slot.block.weight == 1
            and (both := tie(parts))
        ):
            step.add(slot.position, both)
        elif parts:
            settled = [settle(part, slot, ghost=False) for part in parts]
            step.add(slot.position, torch.stack(settled).sum(0))

    return receive


def tie(parts: Gradients) -> TiedGradients | None:
    """The gradients of a linear and an embedding use as factors, if there is no other and ghost
    clipping is cheaper.
    """
    tables = [part for part in parts if isinstance(part, RowGradients)]
    linear = [part for part in parts if isinstance(part, ProductGradients)]
    if len(parts) != 2 or len(tables) != 1 or len(linear) != 1 or not linear[0].cheaper:
        return None
    return tied(linear[0], tables[0])


def is_constant(step: Graph, layer: Layer | CallLayer, x: Tensor) -> bool:
    """Whether a layer reads a value that belongs to no example, though it was computed in the
    pass.
    """
    next_call = step.called[layer.path] + 1
    return (isinstance(x, Unbatched) or not x.requires_grad) and step.survey.axis(
        layer.path, next_call
    ) is None


def axis_of(step: Graph, layer: Layer | CallLayer, x: Tensor) -> Axis:
    """The axis of the examples in a layer's input. Raises UnsupportedLayerError where no formula
    can take it.
    """
    axis, size = step.survey.axis(layer.path, step.called[layer.path]), -1
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
        f"expected an input whose first dimension is the batch of {step.batch}, got shape "
        f"{tuple(x.shape)}; keep examples on the first dimension (no flattening of positions into "
        "it), or freeze it",
    )


def leaves_of(x: Tensor) -> list[Tensor]:
    """The parameters from which a value was computed."""
    if x.is_leaf:
        return [x] if x.requires_grad else []
    seen: set[Node] = set()
    due, leaves = [x.grad_fn], []
    while due:
        node = due.pop()
        if node is not None and node not in seen:
            seen.add(node)
            leaves += [node.variable] if hasattr(node, "variable") else []
            due += [before for before, _ in node.next_functions]
    return leaves


def leads_to(end: Node | None, places: Collection[Node]) -> bool:
    """Whether the value of node ``end`` was computed from the value of one of the nodes
    ``places``.
    """
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
