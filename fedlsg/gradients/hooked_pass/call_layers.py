"""Layers without formulas here, whose per-example gradients are a function of one call.

Such a function (``calls``) gets the module, the inputs of its call and the gradient at its output.
Examples are recurrent layers, attention, and types that a user registers.

In forward the inputs of the call are kept (``arguments``, ``check_batch``), and the output is
watched (``watch_call``). When the gradient at the output arrives in backward, the function is
called, its result is checked, and the kept coordinates are added to the frame's blocks
(``set_blocks``). What the function gives is clipped like any other gradient.
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

from fedlsg.gradients.calls import Kind, UnsupportedLayerError, kind_of, unsupported
from fedlsg.gradients.calls.registry import Ways
from fedlsg.gradients.calls.survey import Axis, Survey, examples_first
from fedlsg.gradients.calls.torch_func import map_tensors, tensors_in
from fedlsg.gradients.formulas.embedding_rows import Lazy, ProductGradients, RowGradients
from fedlsg.gradients.formulas.layers import kept_values
from fedlsg.gradients.hooked_pass.hooked_layers import Slot, own_memory, producer
from fedlsg.gradients.hooked_pass.precision import without_autocast
from fedlsg.user_code.failure import describe


class Graph(Protocol):
    """The part of a pass, ``hooks.Pass``, that its parts use. ``hooks`` imports them.

    The fields are described there.
    """

    batch: int
    survey: Survey
    factored: Collection[str]
    storage: Any
    parameters: Mapping[str, nn.Parameter]
    called: Counter[str]
    uses: Any

    def add(self, position: int, value: Any) -> None:
        """Add a gradient to the block at a position."""

    def ghosts(self, path: str) -> bool:
        """Whether a layer's gradients may stay factors (``GhostGradients``)."""

    def enter(self, path: str, module: nn.Module, output: Tensor) -> Tensor:
        """The output of a layer as the model gets it: in the graph."""

    def watch(
        self,
        path: str,
        module: nn.Module,
        node: Node,
        receive: Callable[[tuple[Tensor | None, ...]], None],
    ) -> None:
        """Call ``receive`` with the gradients at a node."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CallLayer:
    """A module whose gradients are a function of one call.

    path: of the module in the model.
    module: the layer.
    kind: the function, and where the module has its examples.
    slots_by_name: its blocks in the frame, by the parameter's name in the module.
    """

    path: str
    module: nn.Module
    kind: Kind
    slots_by_name: Mapping[str, Slot]

    @cached_property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The trainable parameters of the module and of the modules inside it."""
        return tuple(p for p in self.module.parameters() if p.requires_grad)

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type of the first parameter, in which gradients are computed."""
        return self.parameters[0].dtype

    @cached_property
    def signature(self) -> inspect.Signature:
        """The arguments of ``forward``."""
        return inspect.signature(self.module.forward)


def call_layers(model: nn.Module, ways: Ways, slots: Sequence[Slot]) -> Iterator[CallLayer]:
    """The layers of a model whose gradients are a function of one call (``ways.calls``)."""
    all_slots = {slot.block.parameter: slot for slot in slots} if ways.calls else {}
    for path, names in ways.calls.items():
        module = model.get_submodule(path)
        kind = kind_of(module)
        assert kind is not None
        slots_here = {name.removeprefix(f"{path}."): all_slots[name] for name in names}
        yield CallLayer(path=path, module=module, kind=kind, slots_by_name=slots_here)


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
    """Raise UnsupportedLayerError unless the inputs have the examples on the layer's axes.

    Other inputs than the first may have several rows for each example, one after the other.
    """

    def refusal(reason: str) -> UnsupportedLayerError:
        return unsupported(layer.path, layer.module, reason)

    first = inputs[0] if inputs else None
    has_batch_dimension = isinstance(first, PackedSequence) or (
        isinstance(first, Tensor) and first.ndim >= layer.kind.least(layer.module)
    )
    if not has_batch_dimension:
        shape = tuple(first.shape) if isinstance(first, Tensor) else type(first).__name__
        raise refusal(f"expected a tensor with a batch dimension as its first input, got {shape}")
    size = layer.kind.size(layer.module, inputs)
    if size not in (None, batch):
        raise refusal(f"expected the batch of {batch}, got an input of {size} examples")
    axes = layer.kind.axes(layer.module, inputs)
    for t, axis in zip(tensors_in(inputs), axes, strict=False):
        if axis is None:
            continue
        if t.ndim <= axis or t.shape[axis] % batch or (t is first and t.shape[axis] != batch):
            raise refusal(
                f"expected the batch of {batch} on dimension {axis} of its inputs, got shape "
                f"{tuple(t.shape)}; keep examples there (no flattening of positions into it), or "
                "freeze it"
            )


def watch_call(
    step: Graph, layer: CallLayer, inputs: tuple[Any, ...], output: Any, axis: Axis = 0
) -> Any:
    """The output of a call as the model gets it. Its gradient will form the layer's blocks.

    axis: of the examples in the input; other than 0 only for layers with a single input.
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
            x = in_type(inputs, layer.dtype)
            g = in_type(output_gradient, layer.dtype)
            if axis != 0:
                x = (examples_first(x[0], axis, step.batch), *x[1:])
                g = examples_first(g, axis, step.batch)
            set_blocks(step, layer, x, g)

    if isinstance(output, Tensor):
        return _watch_tensor(step, layer, own_memory(output), form)
    return _watch_structure(step, layer, output, form)


def _watch_tensor(
    step: Graph, layer: CallLayer, output: Tensor, form: Callable[[Any], None]
) -> Tensor:
    """The output in the graph; ``form`` is called with its gradient."""
    y = step.enter(layer.path, layer.module, output)
    shape = y.shape  # the node of y must not hold y itself

    def receive(gradients: tuple[Tensor | None, ...]) -> None:
        if gradients[0] is not None:
            form(gradients[0].reshape(shape))

    step.watch(layer.path, layer.module, producer(y), receive)
    return y


def _watch_structure(
    step: Graph, layer: CallLayer, output: Any, form: Callable[[Any], None]
) -> Any:
    """An output of tuples, lists or dicts in the graph.

    ``form`` is called once, with the gradients of all tensors in the same structure.
    """
    numbers = [t for t in tensors_in(output) if t.is_floating_point()]
    if not numbers:
        raise unsupported(
            layer.path,
            layer.module,
            "its output has no tensor of numbers in tuples, lists or dicts",
        )
    places = places_of_numbers(output)

    def receive_all(gradients: Sequence[Tensor]) -> None:
        form(fill_in(places, iter(gradients)))

    copies = Copies.apply(receive_all, *(step.enter(layer.path, layer.module, t) for t in numbers))
    # only to refuse the pass if no gradients arrive
    step.watch(layer.path, layer.module, copies[0].grad_fn, lambda gradients: None)
    next_copy = iter(copies)
    return map_tensors(lambda t: next(next_copy) if t.is_floating_point() else t, output)


def places_of_numbers(output: Any) -> Any:
    """The structure of an output, with True in place of each floating-point tensor.

    Named tuples become plain ones.
    """
    if isinstance(output, dict):
        return {key: places_of_numbers(item) for key, item in output.items()}
    if isinstance(output, tuple | list):
        kind = tuple if hasattr(output, "_fields") else type(output)
        return kind(places_of_numbers(item) for item in output)
    return isinstance(output, Tensor) and output.is_floating_point()


def fill_in(places: Any, gradients: Iterator[Tensor]) -> Any:
    """A structure of ``places_of_numbers`` with gradients in place of True, and None elsewhere."""
    if isinstance(places, dict):
        return {key: fill_in(item, gradients) for key, item in places.items()}
    if isinstance(places, tuple | list):
        return type(places)(fill_in(item, gradients) for item in places)
    return next(gradients) if places else None


class Copies(torch.autograd.Function):
    """Copies of tensors whose gradients arrive together: zeros for a tensor without one."""

    @staticmethod
    def forward(
        ctx: Any, receive: Callable[[Sequence[Tensor]], None], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.receive = receive
        return tuple(t.clone() for t in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ctx.receive(gradients)
        return (None, *gradients)


def in_type(values: Any, dtype: torch.dtype) -> Any:
    """Floating-point tensors in a type, everything else as it is."""
    return map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, values)


def set_blocks(
    step: Graph, layer: CallLayer, inputs: tuple[Any, ...], output_gradient: Any
) -> None:
    """Call the layer's function, and add the kept coordinates of its gradients to the blocks.

    Raises UnsupportedLayerError, naming the parameter, if the function fails or a gradient is
    missing or has a wrong shape or type.
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
    for name, slot in layer.slots_by_name.items():
        value = gradients.get(name)
        shape = (step.batch, *slot.block.shape)
        if not isinstance(value, Tensor | RowGradients | ProductGradients):
            raise unsupported(
                layer.path, layer.module, f"its gradient function gave no gradient for {name}"
            )
        if isinstance(value, Tensor):
            if value.shape != shape or not value.is_floating_point():
                raise unsupported(
                    layer.path,
                    layer.module,
                    f"expected the gradient of {name} of shape {shape}, one row an example, got "
                    f"{tuple(value.shape)} of {value.dtype}",
                )
            value = value.detach().to(layer.dtype)
        step.add(slot.position, settle(value, slot, ghost=step.ghosts(layer.path)))


def settle(value: Tensor | Lazy, slot: Slot, *, ghost: bool) -> Any:
    """A block's kept coordinates for each example.

    value: the whole gradient; ``Lazy`` if it is a product that is not formed yet.
    ghost: whether a ``Lazy`` gradient stays as it is, for ghost clipping, if that is cheaper.
    """
    if isinstance(value, Tensor):
        is_scalar = value.ndim == 1  # a parameter of no dimensions: one number an example
        return kept_values(value.unsqueeze(1) if is_scalar else value, slot.keep)
    block = slot.block
    is_whole = block.kept == block.size and block.weight == 1
    if ghost and is_whole and value.cheaper:
        return value
    if slot.keep.axis == 1 and len(block.shape) == 2:
        return value.dense(slot.keep.index)
    return kept_values(value.dense(), slot.keep)
