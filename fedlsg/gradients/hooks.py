"""One forward and backward pass with hooks: each layer's blocks are formed as soon as its gradient arrives.

A forward hook on each layer that owns a trainable parameter keeps what the layer's formulas need of the input. A hook
in the autograd graph receives the gradient at the layer's output, forms the layer's blocks and frees the memory.
A layer's own parameters are frozen during its call, so backward computes no weight gradient. If a parameter gets a
gradient all the same, it was used elsewhere (F.linear(x, layer.weight)), where no hook sees it: the pass is refused.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import Node

from fedlsg.frame import Frame
from fedlsg.gradients.activation_storage import ActivationStorage
from fedlsg.gradients.blocks import (
    LayerMemory,
    form_block,
    keep_input,
    needs_input,
    remember,
    remember_output,
    use_ghost,
)
from fedlsg.gradients.called import CallLayer, arguments, call_layers, check_batch, producer, watch_call
from fedlsg.gradients.calls import UnsupportedLayerError, unsupported
from fedlsg.gradients.calls.ways import BY_LAYERS, Ways
from fedlsg.gradients.formulas.factors import Factors
from fedlsg.gradients.formulas.ghost import GhostGradients
from fedlsg.gradients.formulas.layers import CarriedGradients
from fedlsg.gradients.plan import Layer, Slot, plan
from fedlsg.gradients.precision import Precision, without_autocast
from fedlsg.gradients.rematerialize import NORMS, Rematerialization, release
from fedlsg.gradients.sources import replace_parameters, table
from fedlsg.gradients.supported import Checked
from fedlsg.gradients.uses import Uses

HIDDEN = "its input requires a gradient, but no trainable parameter comes before it; detach the input"
TWICE = (
    "called twice in one pass (activation checkpointing does that, too); its gradient is then a sum over the calls: "
    "give each call its own module, switch checkpointing off, or freeze it"
)


@contextmanager
def hook_layers(model: nn.Module, frame: Frame, step: "Pass", parameters: Checked) -> Iterator[None]:
    """Hook the layers inside the context; on exit remove the hooks and unfreeze ``parameters``, even after an error."""
    handles = []
    ways = step.ways
    layers = plan(model, frame, step.precision, ways)
    calls = list(call_layers(model, frame, ways))
    try:
        for call in calls:
            handles.append(call.module.register_forward_pre_hook(partial(freeze, call)))
            handles.append(
                call.module.register_forward_hook(partial(step.on_call, call), with_kwargs=True, prepend=True)
            )
        for layer in layers:
            handles.append(layer.module.register_forward_pre_hook(partial(freeze, layer)))
            # The first hook sees the layer's own output, before a hook of the user changes it.
            on_output = partial(step.on_output, layer)
            handles.append(layer.module.register_forward_hook(on_output, with_kwargs=True, prepend=True))
        norms = (module for module in model.modules() if type(module) in NORMS)
        handles += [module.register_forward_hook(step.rematerialization.on_norm, prepend=True) for module in norms]
        if step.uses is not None:
            hooked = [(layer.path, layer.module) for layer in layers] + [(call.path, call.module) for call in calls]
            for path, module in hooked:
                handles.append(module.register_forward_pre_hook(partial(step.on_input, path), with_kwargs=True))
        with nullcontext() if step.uses is None else replace_parameters(model, frame, ways.uses, step.uses):
            yield
    finally:
        for p in parameters.values():
            p.requires_grad_(True)
        for handle in handles:
            handle.remove()
        step.rematerialization.forget()
        step.due.clear()  # nodes hold their hooks, and the hooks hold the pass: no collector sees this circle
        step.uses = None  # it holds the pass, too


def freeze(layer: Layer | CallLayer, *_: object) -> None:
    """Before a layer's call: keep its parameters out of the graph, until ``Pass.on_output``."""
    for p in layer.parameters:
        p.requires_grad_(False)


@dataclass(kw_only=True, eq=False)
class Pass:
    """The state of one forward and backward pass: what layers keep, and the blocks, None for layers not reached.

    ``factored``: weights of Linear and Conv2d that give ``Factors`` in place of a block.
    """

    batch: int
    values: list[Tensor | GhostGradients | Factors | None]
    ghost: bool
    precision: Precision
    factored: Collection[str] = ()
    storage: ActivationStorage | None = None
    memories: dict[str, LayerMemory] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    due: dict[str, tuple[str, nn.Module, Node]] = field(default_factory=dict)
    starts: list[Tensor] = field(default_factory=list)
    rematerialization: Rematerialization = field(default_factory=Rematerialization)
    ways: Ways = BY_LAYERS
    tables: frozenset[str] = frozenset()
    uses: Uses | None = None

    def on_output(
        self, layer: Layer, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> Tensor | None:
        """Forward hook: keep what the layer needs of its input, and hook the gradient at its output."""
        for p in layer.parameters:
            p.requires_grad_(True)
        if not torch.is_grad_enabled():
            return None  # no gradient comes back through this call
        x = args[0] if args else kwargs["input"]
        self.check_call(layer, x)
        self.keep(layer, x, output)
        start = not output.requires_grad
        output = self.enter(layer.path, module, output)
        again = self.memories[layer.path].again
        if again is not None:
            release(again, x, output)
        node = producer(output)
        self.due[layer.path] = layer.path, layer.module, node
        node.register_prehook(partial(self.on_gradient, layer, output.shape))
        return output if start else None

    def enter(self, path: str, module: nn.Module, output: Tensor) -> Tensor:
        """The output of a layer as the model gets it: in the graph."""
        if not output.requires_grad:
            # Everything before this layer is frozen, so the graph starts here. The model gets a copy, because it may
            # change its activations in place, which a leaf of the graph forbids.
            self.starts.append(output.requires_grad_())
            return output.clone()
        if not self.starts:
            raise unsupported(path, module, HIDDEN)
        return output

    def on_input(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Forward pre-hook: a parameter that was expanded to the batch enters the layer as copies."""
        assert self.uses is not None
        return self.uses.into_layer(path, module, args, kwargs)

    def on_call(
        self, layer: CallLayer, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        """Forward hook of a layer whose gradients are a function of its call."""
        for p in layer.parameters:
            p.requires_grad_(True)
        if not torch.is_grad_enabled():
            return None
        if layer.path in self.called:
            raise unsupported(layer.path, layer.module, TWICE)
        self.called.add(layer.path)
        inputs = arguments(layer, args, kwargs)
        if isinstance(module, nn.Embedding) and type(module) is nn.Embedding and not self.reads_batch(layer, inputs[0]):
            assert self.uses is not None
            return table(self.uses, module, layer.slots["weight"], inputs[0], output)
        check_batch(layer, inputs, self.batch)
        return watch_call(self, layer, inputs, output)

    def reads_batch(self, layer: CallLayer, ids: Tensor) -> bool:
        """Whether an embedding was read by the batch, and not by positions, of which there may be as many."""
        return ids.ndim > 0 and len(ids) == self.batch and (self.batch == 1 or layer.path not in self.tables)

    def watch(
        self, path: str, module: nn.Module, node: Node, arrived: Callable[[tuple[Tensor | None, ...]], None]
    ) -> None:
        """Call ``arrived`` with the gradients at a node; the pass is refused if none arrive that should."""
        key = f"{path} {len(self.due)}"

        def once(gradients: tuple[Tensor | None, ...]) -> None:
            del self.due[key]
            arrived(gradients)

        self.due[key] = path, module, node
        node.register_prehook(once)

    def check_call(self, layer: Layer, x: Tensor) -> None:
        """Raise UnsupportedLayerError for a second call, or an input that is not batch first."""
        if layer.path in self.called:
            raise unsupported(layer.path, layer.module, TWICE)
        self.called.add(layer.path)
        if not layer.formulas.batch_first(x) or x.shape[0] != self.batch:
            raise unsupported(
                layer.path,
                layer.module,
                f"expected an input whose first dimension is the batch of {self.batch}, got shape {tuple(x.shape)}; "
                "keep examples on the first dimension (no flattening of positions into it), or freeze it",
            )

    def keep(self, layer: Layer, x: Tensor, output: Tensor) -> None:
        """Store what the layer's blocks need of its input x and its output."""
        with torch.no_grad(), without_autocast(x.device.type):
            again = self.rematerialization.of(x) if needs_input(layer) and x.dtype == layer.dtype else None
            given, x = x.detach(), x.detach().to(layer.dtype)
            self.memories[layer.path] = memory = remember(layer, x, again)
            remember_output(layer, memory, x, output, output.grad_fn)
            if memory.x is not None and memory.x is x and given.itemsize < x.itemsize:
                memory.x, memory.version = given, given._version  # autograd keeps this one, not the wider copy
            if self.storage is not None:
                self.storage.pack_memory(memory)

    def on_gradient(self, layer: Layer, shape: torch.Size, gradients: tuple[Tensor | None, ...]) -> None:
        """Backward hook: form the layer's blocks, then free its memory."""
        memory = self.memories.pop(layer.path)
        del self.due[layer.path]
        if changed := memory.changed:
            reason = (
                f"its {changed} was changed in place after the call; use the out-of-place operation (inplace=False)"
            )
            raise unsupported(layer.path, layer.module, reason)
        if gradients[0] is None:
            return  # autograd's way to say zero
        g = gradients[0].reshape(shape).to(layer.dtype)
        with without_autocast(g.device.type):
            if memory.again is not None:
                keep_input(layer, memory, memory.again.read())
            for slot in layer.slots:
                self.values[slot.position] = self.block(layer, slot, memory, g)

    def block(self, layer: Layer, slot: Slot, memory: LayerMemory, g: Tensor) -> Tensor | GhostGradients | Factors:
        """The slot's gradients, in the type of the parameter; as ``GhostGradients`` where those are cheaper."""
        if slot.block.parameter in self.factored:
            assert memory.x is not None
            assert isinstance(layer.formulas, CarriedGradients)
            return Factors(formulas=layer.formulas, g=g, x=memory.x, version=g._version)
        if self.ghost and use_ghost(layer, slot, g):
            assert memory.x is not None
            assert isinstance(layer.module, nn.Linear | nn.Conv2d)
            kept = g if self.storage is None else self.storage.rounded(g)
            return GhostGradients(layer.module, kept, memory.x, kept._version)
        if memory.x is not None and memory.x.dtype != layer.dtype:
            memory.x = memory.x.to(layer.dtype) if self.storage is None else self.storage.unpack(memory.x)
        return form_block(layer, slot, memory, g).to(layer.types[slot.parameter])

    def backward(self, losses: Float[Tensor, " batch"], parameters: Checked) -> None:
        """Send the gradient of every example's own loss back to the first hooked layers.

        Raises UnsupportedLayerError if a gradient arrives at a parameter: the parameter was not frozen, so no hook saw
        its use. Also if no gradient reached a layer on which the losses depend.
        """
        if not losses.requires_grad:
            return
        sources = [] if self.uses is None else self.uses.sources
        named = [*parameters.items(), *((source.name, source.leaf) for source in sources)]
        wanted = [*self.starts, *(p for _, p in named)]
        # The sum sends a one to every loss. Given those ones, torch would import sympy, for half a second a process.
        with torch._C.DisableTorchFunctionSubclass() if sources else nullcontext():
            gradients = torch.autograd.grad(losses.sum(), wanted, allow_unused=True)
        if elsewhere := [
            name for (name, _), g in zip(named, gradients[len(self.starts) :], strict=True) if g is not None
        ]:
            raise UnsupportedLayerError(
                f"{', '.join(elsewhere)}: used outside of its own layer's call, where its gradient cannot be split by "
                "example; call the layer instead of reading its weight (F.linear(x, layer.weight), layer.forward(x), a "
                "penalty in the loss), or freeze it"
            )
        for path, module, node in self.due.values():
            if leads_to(losses.grad_fn, {node}):
                raise unsupported(path, module, HIDDEN)
        if self.uses is not None:
            self.uses.finish(gradients)


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
