"""How values that all examples share enter layers, and give their gradients to the frame's blocks.

``uses`` follows these values outside of layers. ``axis_of`` finds where the examples are in what a
layer reads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

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
from fedlsg.gradients.hooked_pass.call_layers import CallLayer, Graph, set_blocks, settle
from fedlsg.gradients.hooked_pass.hooked_layers import Layer, Slot, leaves_of
from fedlsg.gradients.hooked_pass.precision import without_autocast
from fedlsg.gradients.hooked_pass.unbatched import Unbatched, as_plain
from fedlsg.gradients.hooked_pass.uses import Uses

Gradients = Sequence[Tensor | Lazy]
"""Gradients of one value for each example, one for each use."""


@contextmanager
def replace_parameters(
    model: nn.Module, slots: Sequence[Slot], places: Mapping[str, list[Place]], uses: Uses
) -> Iterator[None]:
    """Inside the context, the parameters at ``places`` are Unbatched.

    Their gradients go to the frame's blocks.
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
            owner, own_name = of_name[0]  # every place holds the same parameter
            p = owner._parameters[own_name]
            assert p is not None
            leaf = uses.add_source(p, name, to_slot(uses.step, by_name[name]))
            for module, attribute in of_name:
                module._parameters[attribute] = leaf  # type: ignore[assignment]
        yield
    finally:
        for module, attribute, p in saved:
            module._parameters[attribute] = p
        uses.forget()


def shared_rows(
    uses: Uses, module: nn.Embedding, slot: Slot, ids: Tensor, output: Tensor
) -> Tensor:
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
    """Whether the layer's formulas can take a value x without the batch.

    So can layers on positions, and others if the first dimension of x has length 1.
    """
    if isinstance(layer, CallLayer):
        return layer.kind.positions
    on_positions = isinstance(layer.module, nn.Linear | nn.LayerNorm) or is_turned(layer.module)
    return on_positions or (x.shape[0] == 1 and layer.formulas.batch_first(x))


def without_batch(step: Graph, layer: Layer | CallLayer, x: Tensor, output: Tensor) -> Tensor:
    """The output of a layer that read ``x``, which all examples share, as an Unbatched value.

    Each example has a gradient at it, so that the layer's formulas see x once for each example.
    """
    uses = step.uses
    assert uses is not None
    batch = step.batch
    # a first dimension of length 1, in x and in the output, stands for the batch
    has_place = x.ndim > 0 and x.shape[0] == 1 and output.shape[0] == 1

    def for_each(t: Tensor) -> Tensor:
        value = as_plain(t).detach()
        value = value.squeeze(0) if has_place else value
        return value.expand(batch, *value.shape)

    def receive(parts: Gradients) -> None:
        dense = [part for part in parts if isinstance(part, Tensor)]
        if not dense:
            return
        g = torch.stack(dense).sum(0).view(batch, *output.shape)
        if isinstance(x, Unbatched):
            uses.arrivals.append((x, pull_back(layer.module, as_plain(x), g)))
        x_of_each, y = for_each(x).to(layer.dtype), for_each(output)
        g = g.reshape(y.shape).to(layer.dtype)
        with torch.no_grad(), without_autocast(g.device.type):
            if isinstance(layer, CallLayer):
                set_blocks(step, layer, (x_of_each,), g)
                return
            memory = remember(layer, x_of_each)
            remember_output(layer, memory, x_of_each, y, None)
            for slot in layer.slots:
                step.add(slot.position, choose_block(step, layer, slot, memory, g))

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
    """A new leaf with a value, as a copy that the model may change in place."""
    leaf = uses.add_source(value, name, receive)
    with torch._C.DisableTorchFunctionSubclass():
        return uses.mark(leaf.clone(), (name,))


def to_slot(step: Graph, slot: Slot) -> Callable[[Gradients], None]:
    """A function that puts the sum of a parameter's gradients into its block."""

    def receive(parts: Gradients) -> None:
        ghost = step.ghosts("")  # a use has no path, and is received once
        if len(parts) == 1:
            step.add(slot.position, settle(parts[0], slot, ghost=ghost))
            return
        is_whole = slot.block.kept == slot.block.size and slot.block.weight == 1
        both = tie(parts) if ghost and is_whole else None
        if both is not None:
            step.add(slot.position, both)
        elif parts:
            kept = [settle(part, slot, ghost=False) for part in parts]
            step.add(slot.position, torch.stack(kept).sum(0))

    return receive


def tie(parts: Gradients) -> TiedGradients | None:
    """The factors of one linear and one embedding use of a weight; None for other uses.

    None, too, if ghost clipping is not cheaper.
    """
    tables = [part for part in parts if isinstance(part, RowGradients)]
    linear = [part for part in parts if isinstance(part, ProductGradients)]
    if len(parts) != 2 or len(tables) != 1 or len(linear) != 1 or not linear[0].cheaper:
        return None
    return tied(linear[0], tables[0])


def is_constant(step: Graph, layer: Layer | CallLayer, x: Tensor) -> bool:
    """Whether a layer's input belongs to no example, although the pass computed it."""
    if x.requires_grad and not isinstance(x, Unbatched):
        return False
    next_call = step.called[layer.path] + 1
    return step.survey.axis(layer.path, next_call) is None


def axis_of(step: Graph, layer: Layer | CallLayer, x: Tensor) -> Axis:
    """The axis of the examples in a layer's input.

    Raises UnsupportedLayerError if no formula can take the examples there, and ReadElsewhereError
    for an input that parameters give without the batch: these must be followed by their uses.
    """
    axis = step.survey.axis(layer.path, step.called[layer.path])
    if axis is None and (leaves := leaves_of(x)):
        names = [name for name, p in step.parameters.items() if any(p is q for q in leaves)]
        if names:
            raise ReadElsewhereError(names)
    formulas = layer.formulas if isinstance(layer, Layer) else None
    size = -1  # number of examples along the axis; -1 if there is no axis
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
