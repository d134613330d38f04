"""One forward and backward pass with hooks: a layer's blocks form when its gradient arrives.

A forward hook on each layer that owns a trainable parameter keeps what the layer's formulas need of
the input. A hook in the autograd graph receives the gradient at the layer's output, forms the
layer's blocks and frees the memory. A layer's own parameters are frozen during its call, so
backward computes no weight gradient. If a parameter gets a gradient all the same, it was used
elsewhere (F.linear(x, layer.weight)), where no hook sees it: the pass is refused.
Symbols: x a layer's input, g the gradient at its output, axis where x has the examples: 0 for batch
first, else as ``survey.Axis`` says. Shared values belong to no example (``uses``).
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
from fedlsg.gradients.hooked_pass.activation_storage import ActivationStorage
from fedlsg.gradients.hooked_pass.blocks import (
    LayerMemory,
    choose_block,
    keep_input,
    needs_input,
    remember,
    remember_output,
)
from fedlsg.gradients.hooked_pass.call_layers import CallLayer, arguments, check_batch, watch_call
from fedlsg.gradients.hooked_pass.hooked_layers import (
    Layer,
    add_hook,
    ancestors,
    own_memory,
    producer,
)
from fedlsg.gradients.hooked_pass.model_facts import Prepared
from fedlsg.gradients.hooked_pass.precision import Precision, without_autocast
from fedlsg.gradients.hooked_pass.rematerialization import Rematerialization, release
from fedlsg.gradients.hooked_pass.sources import (
    axis_of,
    is_constant,
    replace_parameters,
    shared_rows,
    takes_shared,
    without_batch,
)
from fedlsg.gradients.hooked_pass.supported import Checked
from fedlsg.gradients.hooked_pass.unbatched import as_plain, axis_of_read
from fedlsg.gradients.hooked_pass.uses import Uses

HIDDEN = (
    "its input requires a gradient, but no call of a trainable layer comes before it; call layers "
    "in place of reading their weights, as F.conv2d(x, layer.weight) does, and detach inputs"
)
Call = tuple[str, int]
"""A call of a layer: its path, and the number of the call from 1. Other uses of parameters have a
negative number.
"""
CALLED_IN_BACKWARD = (
    "called in backward, as activation checkpointing does, where its gradient cannot be split by "
    "example; switch checkpointing off (model.gradient_checkpointing_disable()), or freeze it"
)


@contextmanager
def hook_layers(model: nn.Module, step: "Pass", prepared: Prepared) -> Iterator[None]:
    """Hook the layers inside the context.

    On exit the hooks are removed and the parameters unfrozen, even after an error.
    """
    entries: list[tuple[dict[Any, Any], object]] = []
    try:
        for call in prepared.calls:
            add_hook(entries, call.module, partial(freeze, call), before=True)
            add_hook(entries, call.module, partial(step.on_call, call))
        for layer in prepared.layers:
            add_hook(entries, layer.module, partial(freeze, layer), before=True)
            add_hook(entries, layer.module, partial(step.on_output, layer))
        for module in prepared.norms:
            add_hook(entries, module, step.rematerialization.on_norm)
        if step.uses is None:
            yield
            return
        everything: list[Layer | CallLayer] = [*prepared.layers, *prepared.calls]
        for hooked in everything:
            add_hook(entries, hooked.module, partial(step.on_input, hooked), before=True)
        with replace_parameters(model, prepared.slots, step.ways.uses, step.uses):
            yield
    finally:
        for p in prepared.parameters.values():
            p.requires_grad_(True)
        for hooks, key in entries:
            hooks.pop(key, None)
        step.rematerialization.forget()
        # Nodes hold their hooks, and the hooks hold the pass. Python cannot collect this circle.
        step.due.clear()
        step.memories.clear()
        step.uses = None  # it holds the pass, too


def freeze(layer: Layer | CallLayer, *_: object) -> None:
    """Before a layer's call: keep its parameters out of the graph, until ``Pass.on_output``."""
    for p in layer.parameters:
        p.requires_grad_(False)


def unfreeze(layer: Layer | CallLayer) -> None:
    """After a layer's call: let its parameters require gradients again."""
    for p in layer.parameters:
        p.requires_grad_(True)


@dataclass(kw_only=True, eq=False)
class Pass:
    """The state of one forward and backward pass.

    The gradients of several calls of a layer are added: the clip then sees one gradient of the
    example. ``per_example.run_pass`` and ``passes.run_isolated`` set the fields ``ways``,
    ``parameters``, ``survey``, ``uses`` and ``storage``.
    batch: number of examples.
    values: the blocks of the frame; None for those of layers that were not reached.
    ghost: whether blocks may be ``GhostGradients``.
    precision: of the pass.
    factored: weights of Linear and Conv2d that give ``Factors`` in place of a block.
    storage: of activations in fewer bits; None to keep them as they are.
    memories: what each call keeps until its gradient arrives.
    called: number of calls so far, by the path of the layer.
    shared: inputs, by path, of layers that are about to be called without the batch.
    in_backward: whether backward has begun.
    due: by call, the path, the module and the node whose gradient has not arrived yet.
    starts: outputs at which the graph begins, because everything before them is frozen, and copies
        of parameters.
    rematerialization: inputs of layers that can be recomputed.
    ways: how each parameter gets its gradients.
    survey: where the examples are in the inputs of layers.
    parameters: the trainable parameters, by name.
    uses: followed parameters without a layer; None if there are none.
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
        """Forward hook: keep what the layer needs of its input, and hook its output's gradient."""
        unfreeze(layer)
        if not torch.is_grad_enabled():
            return None  # no gradient comes back through this call
        if layer.is_norm:
            self.rematerialization.on_norm(module, args, kwargs, output)
        call = self.count(layer)
        if (shared := self.shared.pop(layer.path, None)) is not None:
            return without_batch(self, layer, shared, output)
        x = args[0] if args else kwargs["input"]
        axis = self.survey.axis(*call)
        # the common case in short: survey and shape agree on batch first; all others by axis_of
        if axis != 0 or not x.ndim or x.shape[0] != self.batch or not layer.formulas.batch_first(x):
            axis = axis_of(self, layer, x)
        y = own_memory(output)
        memory = self.keep(layer, x, y, axis)
        y = self.enter(layer.path, module, y)
        if memory.again is not None:
            release(memory.again, x, y)
        node = producer(y)
        self.memories[call] = memory
        self.due[call] = layer.path, layer.module, node
        node.register_prehook(partial(self.on_gradient, layer, call, y.shape, axis))
        return None if y is output else y

    def count(self, layer: Layer | CallLayer) -> Call:
        """The key of a new call of a layer."""
        if self.in_backward:
            raise unsupported(layer.path, layer.module, CALLED_IN_BACKWARD)
        self.called[layer.path] += 1
        return layer.path, self.called[layer.path]

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
        """Forward pre-hook: a shared value enters as it is, or as copies if it was expanded.

        A shared value is the same for all examples.
        """
        assert self.uses is not None
        x = args[0] if args else kwargs.get("input")
        if (
            isinstance(x, Tensor)
            and (self.uses.is_shared(x) or is_constant(self, layer, x))
            and takes_shared(layer, x)
        ):
            self.shared[layer.path] = x
            return (
                ((as_plain(x), *args[1:]), kwargs)
                if args
                else (args, kwargs | {"input": as_plain(x)})
            )
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
        unfreeze(layer)
        if not torch.is_grad_enabled():
            return None
        self.count(layer)  # numbers the call, and refuses one in backward
        if (shared := self.shared.pop(layer.path, None)) is not None:
            return without_batch(self, layer, shared, output)
        inputs = arguments(layer, args, kwargs)
        if layer.kind is BUILT_IN[nn.Embedding]:
            slot = layer.slots_by_name["weight"]
            axis = axis_of_read(self, slot.block.parameter, self.called[layer.path], inputs[0])
            if axis is None:
                assert self.uses is not None  # a pass with call layers has it (``run_pass``)
                assert isinstance(module, nn.Embedding)
                return shared_rows(self.uses, module, slot, inputs[0], output)
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
        receive: Callable[[tuple[Tensor | None, ...]], None],
    ) -> None:
        """Call ``receive`` with the gradients at a node.

        The pass is refused if the losses depend on the node and no gradients arrive.
        """
        key = path, -1 - len(self.due)  # unique: in forward ``due`` only grows

        def on_arrival(gradients: tuple[Tensor | None, ...]) -> None:
            del self.due[key]
            receive(gradients)

        self.due[key] = path, module, node
        node.register_prehook(on_arrival)

    def keep(self, layer: Layer, x: Tensor, output: Tensor, axis: Axis) -> LayerMemory:
        """What the layer's blocks need of its input x and its output."""
        same_type = x.dtype == layer.dtype
        again = None
        if axis == 0 and same_type and needs_input(layer):
            again = self.rematerialization.value_of(x)
        node = output.grad_fn
        with torch.no_grad(), without_autocast(x.device.type):
            if axis != 0:
                x = examples_first(x, axis, self.batch)
                output = examples_first(output, axis, self.batch)
                node = None
            x = x.detach()
            cast = x if same_type else x.to(layer.dtype)
            memory = remember(layer, cast, again)
            remember_output(layer, memory, cast, output, node)
            if not same_type and memory.x is cast and x.itemsize < cast.itemsize:
                # autograd keeps x in any case, so the wider copy is freed
                memory.x, memory.version = x, x._version
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
        g = gradients[0]
        if g is None:
            return  # autograd gives None for a gradient of zeros
        g = g.reshape(shape).to(layer.dtype)
        g = g if axis == 0 else examples_first(g, axis, self.batch)
        with without_autocast(g.device.type):
            if memory.again is not None:
                keep_input(layer, memory, memory.again.read())
            for slot in layer.slots:
                self.add(slot.position, choose_block(self, layer, slot, memory, g))

    def backward(self, losses: Float[Tensor, " batch"]) -> tuple[Tensor | None, ...]:
        """Run backward from the sum of the losses to ``starts``.

        The sum gives each example the gradient of its own loss.
        Returns the gradients at ``starts``, in their order, and those of parameters after them.
        Raises UnsupportedLayerError if a gradient arrives at a parameter: the parameter was not
        frozen, so no hook saw its use. Also if no gradient reached a layer on which the losses
        depend.
        """
        if not losses.requires_grad:
            return ()
        sources = [] if self.uses is None else self.uses.sources
        named = [*self.parameters.items(), *((source.name, source.leaf) for source in sources)]
        wanted = [*self.starts, *(p for _, p in named)]
        # A sum, and not a gradient of ones for each loss: torch would import sympy for that, which
        # takes half a second in each process.
        self.in_backward = True
        with torch._C.DisableTorchFunctionSubclass() if sources else nullcontext():
            gradients = torch.autograd.grad(losses.sum(), wanted, allow_unused=True)
        of_parameters = gradients[len(self.starts) :]
        pairs = zip(named, of_parameters, strict=True)
        if elsewhere := [name for (name, _), g in pairs if g is not None]:
            raise ReadElsewhereError(elsewhere)
        for path, module, node in self.due.values():
            if node in ancestors(losses.grad_fn):
                raise unsupported(path, module, HIDDEN)
        if self.uses is not None:
            self.uses.finish(gradients)
        return tuple(gradients)
