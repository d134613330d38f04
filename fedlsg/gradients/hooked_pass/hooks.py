"""One forward and backward pass with hooks: each layer's blocks are formed as soon as its gradient
arrives.

A forward hook on each layer that owns a trainable parameter keeps what the layer's formulas need of
the input. A hook in the autograd graph receives the gradient at the layer's output, forms the
layer's blocks and frees the memory. A layer's own parameters are frozen during its call, so
backward computes no weight gradient. If a parameter gets a gradient all the same, it was used
elsewhere (F.linear(x, layer.weight)), where no hook sees it: the pass is refused.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import Node

from fedlsg.gradients.calls import unsupported
from fedlsg.gradients.calls.registry import BUILT_IN, BY_LAYERS, ReadElsewhereError, Ways
from fedlsg.gradients.calls.survey import Axis, Survey, examples_first
from fedlsg.gradients.formulas.ghost import GhostGradients
from fedlsg.gradients.formulas.layers import Factors
from fedlsg.gradients.hooked_pass.activation_storage import (
    ActivationStorage,
    Rematerialization,
    own_memory,
    producer,
    release,
)
from fedlsg.gradients.hooked_pass.blocks import (
    LayerMemory,
    choose_block,
    keep_input,
    needs_input,
    remember,
    remember_output,
)
from fedlsg.gradients.hooked_pass.call_layers import CallLayer, arguments, check_batch, watch_call
from fedlsg.gradients.hooked_pass.hooked_layers import Layer, place
from fedlsg.gradients.hooked_pass.model_facts import Prepared
from fedlsg.gradients.hooked_pass.precision import Precision, without_autocast
from fedlsg.gradients.hooked_pass.sources import (
    axis_of,
    is_constant,
    leads_to,
    replace_parameters,
    table,
    takes_shared,
    without_batch,
)
from fedlsg.gradients.hooked_pass.supported import Checked
from fedlsg.gradients.hooked_pass.unbatched import axis_of_read, plain
from fedlsg.gradients.hooked_pass.uses import Uses

HIDDEN = (
    "its input requires a gradient, but no call of a trainable layer comes before it; call layers "
    "in place of reading their weights, as F.conv2d(x, layer.weight) does, and detach inputs"
)
Call = tuple[str, int]
"""The path of a layer, and the number of one of its calls from 1; of other uses, a negative
number.
"""
AGAIN = (
    "called in backward, as activation checkpointing does, where its gradient cannot be split by "
    "example; switch checkpointing off (model.gradient_checkpointing_disable()), or freeze it"
)


@contextmanager
def hook_layers(model: nn.Module, step: "Pass", prepared: Prepared) -> Iterator[None]:
    """Hook the layers inside the context; on exit remove the hooks and unfreeze the parameters,
    even after an error.
    """
    placed: list[tuple[dict[Any, Any], object]] = []
    try:
        for call in prepared.calls:
            place(placed, call.module, partial(freeze, call), before=True)
            place(placed, call.module, partial(step.on_call, call))
        for layer in prepared.layers:
            place(placed, layer.module, partial(freeze, layer), before=True)
            place(placed, layer.module, partial(step.on_output, layer))
        for module in prepared.norms:
            place(placed, module, step.rematerialization.on_norm)
        if step.uses is not None:
            everything: list[Layer | CallLayer] = [*prepared.layers, *prepared.calls]
            for hooked in everything:
                place(placed, hooked.module, partial(step.on_input, hooked), before=True)
        with (
            nullcontext()
            if step.uses is None
            else replace_parameters(model, prepared.slots, step.ways.uses, step.uses)
        ):
            yield
    finally:
        for p in prepared.parameters.values():
            p.requires_grad_(True)
        for hooks, key in placed:
            hooks.pop(key, None)
        step.rematerialization.forget()
        # nodes hold their hooks, and the hooks hold the pass: no collector sees this circle
        step.due.clear()
        step.memories.clear()
        step.uses = None  # it holds the pass, too


def freeze(layer: Layer | CallLayer, *_: object) -> None:
    """Before a layer's call: keep its parameters out of the graph, until ``Pass.on_output``."""
    for p in layer.parameters:
        p.requires_grad_(False)


@dataclass(kw_only=True, eq=False)
class Pass:
    """The state of one forward and backward pass: what layers keep, and the blocks, None for layers
    not reached.

    What several calls of a layer give is added: the clip then sees one gradient of the example.
    ``called``: calls by path.
    ``shared``: inputs of layers that are about to be called without the batch.
    ``factored``: weights of Linear and Conv2d that give ``Factors`` in place of a block.
    """

    batch: int
    values: list[Tensor | GhostGradients | Factors | None]
    ghost: bool
    precision: Precision
    factored: Collection[str] = ()
    storage: ActivationStorage | None = None
    memories: dict[Call, LayerMemory] = field(default_factory=dict)
    called: Counter[str] = field(default_factory=Counter)
    shared: dict[str, Tensor] = field(default_factory=dict)
    in_backward: bool = False
    due: dict[Call, tuple[str, nn.Module, Node]] = field(default_factory=dict)
    starts: list[Tensor] = field(default_factory=list)
    rematerialization: Rematerialization = field(default_factory=Rematerialization)
    ways: Ways = BY_LAYERS
    survey: Survey = field(default_factory=Survey)
    parameters: Checked = field(default_factory=dict)
    uses: Uses | None = None

    def on_output(
        self,
        layer: Layer,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Tensor,
    ) -> Tensor | None:
        """Forward hook: keep what the layer needs of its input, and hook the gradient at its
        output.
        """
        for p in layer.parameters:
            p.requires_grad_(True)
        if not torch.is_grad_enabled():
            return None  # no gradient comes back through this call
        if layer.is_norm:
            self.rematerialization.on_norm(module, args, kwargs, output)
        call = self.count(layer)
        if self.shared and (given := self.shared.pop(layer.path, None)) is not None:
            return without_batch(self, layer, given, output)
        x = args[0] if args else kwargs["input"]
        axis, given = self.survey.axis(*call), output
        if axis != 0 or not x.ndim or x.shape[0] != self.batch or not layer.formulas.batch_first(x):
            axis = axis_of(self, layer, x)
        output = own_memory(output)
        memory = self.keep(layer, x, output, axis)
        start = output is not given or not output.requires_grad
        output = self.enter(layer.path, module, output)
        if memory.again is not None:
            release(memory.again, x, output)
        node = producer(output)
        self.memories[call] = memory
        self.due[call] = layer.path, layer.module, node
        node.register_prehook(partial(self.on_gradient, layer, call, output.shape, axis))
        return output if start else None

    def count(self, layer: Layer | CallLayer) -> Call:
        """The key of a new call of a layer."""
        if self.in_backward:
            raise unsupported(layer.path, layer.module, AGAIN)
        number = self.called[layer.path] = self.called.get(layer.path, 0) + 1
        return layer.path, number

    def add(self, position: int, value: Any) -> None:
        """Add a gradient to a block."""
        before = self.values[position]
        self.values[position] = value if before is None else before + value

    def ghosts(self, path: str) -> bool:
        """Whether gradients of a layer may be ``GhostGradients``, which cannot be added."""
        return self.ghost and self.called[path] <= 1

    def enter(self, path: str, module: nn.Module, output: Tensor) -> Tensor:
        """The output of a layer as the model gets it: in the graph."""
        if not output.requires_grad:
            # Everything before this layer is frozen, so the graph starts here. The model gets a
            # copy, because it may change its activations in place, which a leaf of the graph
            # forbids.
            self.starts.append(output.requires_grad_())
            return output.clone()
        if not self.starts:
            raise unsupported(path, module, HIDDEN)
        return output

    def on_input(
        self,
        layer: Layer | CallLayer,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Forward pre-hook: a value that all examples share enters as it is, or as copies if it was
        expanded.
        """
        assert self.uses is not None
        x = args[0] if args else kwargs.get("input")
        if (
            isinstance(x, Tensor)
            and (self.uses.is_shared(x) or is_constant(self, layer, x))
            and takes_shared(layer, x)
        ):
            self.shared[layer.path] = x
            return ((plain(x), *args[1:]), kwargs) if args else (args, kwargs | {"input": plain(x)})
        return self.uses.into_layer(layer.path, module, args, kwargs)

    def on_call(
        self,
        layer: CallLayer,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> Any:
        """Forward hook of a layer whose gradients are a function of its call."""
        for p in layer.parameters:
            p.requires_grad_(True)
        if not torch.is_grad_enabled():
            return None
        self.count(layer)
        if (given := self.shared.pop(layer.path, None)) is not None:
            return without_batch(self, layer, given, output)
        inputs = arguments(layer, args, kwargs)
        if layer.kind is BUILT_IN[nn.Embedding]:
            slot = layer.slots["weight"]
            axis = axis_of_read(self, slot.block.parameter, self.called[layer.path], inputs[0])
            if axis is None:
                assert self.uses is not None
                assert isinstance(module, nn.Embedding)
                return table(self.uses, module, slot, inputs[0], output)
            return watch_call(self, layer, inputs, output, axis)
        axis = axis_of(self, layer, inputs[0]) if layer.kind.positions else 0
        if axis == 0:
            check_batch(layer, inputs, self.batch)
        return watch_call(self, layer, inputs, output, axis)

    def watch(
        self,
        path: str,
        module: nn.Module,
        node: Node,
        arrived: Callable[[tuple[Tensor | None, ...]], None],
    ) -> None:
        """Call ``arrived`` with the gradients at a node; the pass is refused if none arrive that
        should.
        """
        key = path, -1 - len(self.due)

        def once(gradients: tuple[Tensor | None, ...]) -> None:
            del self.due[key]
            arrived(gradients)

        self.due[key] = path, module, node
        node.register_prehook(once)

    def keep(self, layer: Layer, x: Tensor, output: Tensor, axis: Axis) -> LayerMemory:
        """What the layer's blocks need of its input x and its output."""
        same = x.dtype == layer.dtype
        keeps_inputs = axis == 0 and same and needs_input(layer)
        again, node = self.rematerialization.of(x) if keeps_inputs else None, output.grad_fn
        with torch.no_grad(), without_autocast(x.device.type):
            if axis != 0:
                x = examples_first(x, axis, self.batch)
                output = examples_first(output, axis, self.batch)
                node = None
            given = x = x.detach()
            x = x if same else x.to(layer.dtype)
            memory = remember(layer, x, again)
            remember_output(layer, memory, x, output, node)
            if not same and memory.x is x and given.itemsize < x.itemsize:
                # autograd keeps this one, not the wider copy
                memory.x, memory.version = given, given._version
            if self.storage is not None:
                memory.round_by(self.storage)
            return memory

    def on_gradient(
        self,
        layer: Layer,
        call: Call,
        shape: torch.Size,
        axis: Axis,
        gradients: tuple[Tensor | None, ...],
    ) -> None:
        """Backward hook: form the layer's blocks, then free its memory."""
        memory = self.memories.pop(call)
        del self.due[call]
        if changed := memory.changed:
            reason = (
                f"its {changed} was changed in place after the call; use the out-of-place "
                "operation (inplace=False)"
            )
            raise unsupported(layer.path, layer.module, reason)
        if gradients[0] is None:
            return  # autograd's way to say zero
        g = gradients[0]
        g = g if g.shape == shape else g.reshape(shape)
        g = g if g.dtype == layer.dtype else g.to(layer.dtype)
        g = g if axis == 0 else examples_first(g, axis, self.batch)
        with without_autocast(g.device.type):
            if memory.again is not None:
                keep_input(layer, memory, memory.again.read())
            for slot in layer.slots:
                self.add(slot.position, choose_block(self, layer, slot, memory, g))

    def backward(
        self, losses: Float[Tensor, " batch"], parameters: Checked
    ) -> tuple[Tensor | None, ...]:
        """Send the gradient of every example's own loss back to the first hooked layers, and to
        ``starts``.

        Returns the gradients at ``starts``, in their order, and others behind them.
        Raises UnsupportedLayerError if a gradient arrives at a parameter: the parameter was not
        frozen, so no hook saw its use. Also if no gradient reached a layer on which the losses
        depend.
        """
        if not losses.requires_grad:
            return ()
        sources = [] if self.uses is None else self.uses.sources
        named = [*parameters.items(), *((source.name, source.leaf) for source in sources)]
        wanted = [*self.starts, *(p for _, p in named)]
        # The sum sends a one to every loss. Given those ones, torch would import sympy, for half a
        # second a process.
        self.in_backward = True
        with torch._C.DisableTorchFunctionSubclass() if sources else nullcontext():
            gradients = torch.autograd.grad(losses.sum(), wanted, allow_unused=True)
        if elsewhere := [
            name
            for (name, _), g in zip(named, gradients[len(self.starts) :], strict=True)
            if g is not None
        ]:
            raise ReadElsewhereError(elsewhere)
        for path, module, node in self.due.values():
            if leads_to(losses.grad_fn, {node}):
                raise unsupported(path, module, HIDDEN)
        if self.uses is not None:
            self.uses.finish(gradients)
        return tuple(gradients)
