"""A pass over the layers whose gradients are a function of one call: keep the inputs, then call
that function.

Forward keeps the arguments of the call. Backward hands them over with the gradient at the output,
checks what comes back, and puts it in the frame's blocks. What the function gives is clipped like
any other gradient.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.utils.rnn import PackedSequence

from fedlsg.gradients.calls import Kind, kind_of, unsupported
from fedlsg.gradients.calls.registry import Ways
from fedlsg.gradients.calls.survey import Axis, Survey, examples_first
from fedlsg.gradients.calls.torch_func import map_tensors, tensors_in
from fedlsg.gradients.formulas.embedding_rows import Lazy, ProductGradients, RowGradients
from fedlsg.gradients.formulas.layers import kept_values
from fedlsg.gradients.hooked_pass.activation_storage import own_memory, producer
from fedlsg.gradients.hooked_pass.hooked_layers import Slot
from fedlsg.gradients.hooked_pass.precision import without_autocast
from fedlsg.user_code.failure import describe


class Graph(Protocol):
    """What a pass offers: see ``hooks.Pass``."""

    batch: int
    survey: Survey
    factored: Collection[str]
    storage: Any
    parameters: Mapping[str, nn.Parameter]
    called: Counter[str]
    uses: Any

    def add(self, position: int, value: Any) -> None:
        """Add a gradient to a block."""

    def ghosts(self, path: str) -> bool:
        """Whether a layer's gradients may stay factors."""

    def enter(self, path: str, module: nn.Module, output: Tensor) -> Tensor:
        """The output as the model gets it, in the graph."""

    def watch(
        self,
        path: str,
        module: nn.Module,
        node: Node,
        arrived: Callable[[tuple[Tensor | None, ...]], None],
    ) -> None:
        """Call ``arrived`` with the gradients at a node."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CallLayer:
    """A module with the function that gives its gradients, and its blocks by the module's own
    parameter names.
    """

    path: str
    module: nn.Module
    kind: Kind
    slots: Mapping[str, Slot]

    @cached_property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The trainable parameters of the module and of the modules inside it."""
        return tuple(p for p in self.module.parameters() if p.requires_grad)

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type of the first of these."""
        return self.parameters[0].dtype

    @cached_property
    def signature(self) -> inspect.Signature:
        """The arguments of ``forward``."""
        return inspect.signature(self.module.forward)


def call_layers(model: nn.Module, ways: Ways, slots: Sequence[Slot]) -> Iterator[CallLayer]:
    """The layers of a model that are calls."""
    slots_by_name = {slot.block.parameter: slot for slot in slots} if ways.calls else {}
    for path, names in ways.calls.items():
        module = model.get_submodule(path)
        kind = kind_of(module)
        assert kind is not None
        slots_here = {name.removeprefix(f"{path}."): slots_by_name[name] for name in names}
        yield CallLayer(path=path, module=module, kind=kind, slots=slots_here)


def arguments(
    layer: CallLayer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """All arguments of a call in the order of ``forward``, tensors detached."""
    if kwargs:
        bound = layer.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.kwargs:
            names = ", ".join(bound.kwargs)
            raise unsupported(
                layer.path, layer.module, f"keyword-only arguments ({names}) are not supported"
            )
        args = bound.args
    detached: tuple[Any, ...] = map_tensors(Tensor.detach, args)
    return detached


def check_batch(layer: CallLayer, inputs: tuple[Any, ...], batch: int) -> None:
    """Raise UnsupportedLayerError unless the examples are on the axes of the inputs where the layer
    has them.
    """
    tensors = tensors_in(inputs)
    first = inputs[0] if inputs else None
    packed = isinstance(first, PackedSequence)
    if not packed and (
        not isinstance(first, Tensor) or first.ndim < layer.kind.least(layer.module)
    ):
        shape = tuple(first.shape) if isinstance(first, Tensor) else type(first).__name__
        raise unsupported(
            layer.path,
            layer.module,
            f"expected a tensor with a batch dimension as its first input, got {shape}",
        )
    if (size := layer.kind.size(layer.module, inputs)) not in (None, batch):
        raise unsupported(
            layer.path,
            layer.module,
            f"expected the batch of {batch}, got an input of {size} examples",
        )
    axes = layer.kind.axes(layer.module, inputs)
    for t, axis in zip(tensors, axes, strict=False):
        if axis is not None and (
            t.ndim <= axis or t.shape[axis] % batch or (t is first and t.shape[axis] != batch)
        ):
            raise unsupported(
                layer.path,
                layer.module,
                f"expected the batch of {batch} on dimension {axis} of its inputs, got shape "
                f"{tuple(t.shape)}; keep examples there (no flattening of positions into it), or "
                "freeze it",
            )


def watch_call(
    step: Graph, layer: CallLayer, inputs: tuple[Any, ...], output: Any, axis: Axis = 0
) -> Any:
    """The output of a call, watched: the layer's blocks are formed when its gradient has arrived.

    ``axis``: the axis of the examples in the only input.
    """
    versions = [t._version for t in tensors_in(inputs)]

    def form(output_gradient: Any) -> None:
        if versions != [t._version for t in tensors_in(inputs)]:
            reason = (
                "its input was changed in place after the call; use the out-of-place operation "
                "(inplace=False)"
            )
            raise unsupported(layer.path, layer.module, reason)
        with without_autocast(layer.parameters[0].device.type), torch.no_grad():
            given, g = in_type(inputs, layer.dtype), in_type(output_gradient, layer.dtype)
            if axis != 0:
                given = (examples_first(given[0], axis, step.batch), *given[1:])
                g = examples_first(g, axis, step.batch)
            set_blocks(step, layer, given, g)

    if isinstance(output, Tensor):
        output = own_memory(output)
        made, shape = step.enter(layer.path, layer.module, output), output.shape

        def arrived(gradients: tuple[Tensor | None, ...]) -> None:
            if gradients[0] is not None:
                form(gradients[0].reshape(shape))

        step.watch(layer.path, layer.module, producer(made), arrived)
        return made
    numbers = [t for t in tensors_in(output) if t.is_floating_point()]
    if not numbers:
        raise unsupported(
            layer.path,
            layer.module,
            "its output has no tensor of numbers in tuples, lists or dicts",
        )
    form_of_output = shape_of(output)

    def all_arrived(gradients: Sequence[Tensor]) -> None:
        form(fill_in(form_of_output, iter(gradients)))

    copies = Copies.apply(all_arrived, *(step.enter(layer.path, layer.module, t) for t in numbers))
    step.watch(layer.path, layer.module, copies[0].grad_fn, lambda gradients: None)
    left = iter(copies)
    return map_tensors(lambda t: next(left) if t.is_floating_point() else t, output)


def shape_of(output: Any) -> Any:
    """A structure with True in the places of floating-point tensors; named tuples become plain
    ones.
    """
    if isinstance(output, dict):
        return {key: shape_of(item) for key, item in output.items()}
    if isinstance(output, tuple | list):
        return (tuple if hasattr(output, "_fields") else type(output))(
            shape_of(item) for item in output
        )
    return isinstance(output, Tensor) and output.is_floating_point()


def fill_in(form: Any, gradients: Iterator[Tensor]) -> Any:
    """A structure of ``shape_of`` with gradients in the places of True, and None elsewhere."""
    if isinstance(form, dict):
        return {key: fill_in(item, gradients) for key, item in form.items()}
    if isinstance(form, tuple | list):
        return type(form)(fill_in(item, gradients) for item in form)
    return next(gradients) if form else None


class Copies(torch.autograd.Function):
    """Copies of several tensors, whose gradients arrive together; zeros for a tensor without
    one.
    """

    @staticmethod
    def forward(
        ctx: Any, arrived: Callable[[Sequence[Tensor]], None], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.arrived = arrived
        return tuple(t.clone() for t in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.arrived(gradients)
        return (None, *gradients)


def in_type(values: Any, dtype: torch.dtype) -> Any:
    """Floating-point tensors in a type, everything else as it is."""
    return map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, values)


def set_blocks(
    step: Graph, layer: CallLayer, inputs: tuple[Any, ...], output_gradient: Any
) -> None:
    """Compute the layer's gradients and keep its blocks. Raises UnsupportedLayerError for wrong
    ones, by name.
    """
    try:
        gradients = layer.kind.gradients(layer.module, inputs, output_gradient)
    except (RuntimeError, ValueError) as error:
        reason = (
            f"no per-example gradients: {describe(error)}; give a function that computes them, "
            "fedlsg.register_layer(type, gradients), or freeze it"
        )
        raise unsupported(layer.path, layer.module, reason) from error
    if not isinstance(gradients, Mapping):
        raise unsupported(
            layer.path,
            layer.module,
            f"expected a dict of gradients by parameter, got {type(gradients)}",
        )
    for name, slot in layer.slots.items():
        value = gradients.get(name)
        whole = (step.batch, *slot.block.shape)
        if not isinstance(value, Tensor | RowGradients | ProductGradients):
            raise unsupported(
                layer.path, layer.module, f"its gradient function gave no gradient for {name}"
            )
        if isinstance(value, Tensor) and (value.shape != whole or not value.is_floating_point()):
            raise unsupported(
                layer.path,
                layer.module,
                f"expected the gradient of {name} of shape {whole}, one row an example, got "
                f"{tuple(value.shape)} of {value.dtype}",
            )
        value = value.detach().to(layer.dtype) if isinstance(value, Tensor) else value
        step.add(slot.position, settle(value, slot, ghost=step.ghosts(layer.path)))


def settle(value: Tensor | Lazy, slot: Slot, *, ghost: bool) -> Any:
    """A block's kept coordinates for each example; ``Lazy`` as it is where ghost clipping may use
    it and is cheaper.
    """
    if isinstance(value, Tensor):
        # a parameter of no dimensions
        return kept_values(value if value.ndim > 1 else value.unsqueeze(1), slot.keep)
    block = slot.block
    if ghost and block.kept == block.size and block.weight == 1 and value.cheaper:
        return value
    if slot.keep.axis == 1 and len(block.shape) == 2:
        return value.dense(slot.keep.index)
    return kept_values(value.dense(), slot.keep)
