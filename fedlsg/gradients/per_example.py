"""Per-example gradients of a model in the coordinates of a frame, through hooks.

A forward hook on each layer that owns a trainable parameter remembers what its formulas need of the input; a tensor
hook on the layer's output turns the gradient that arrives there into the layer's blocks and frees the rest. A layer's
own parameters are frozen while it is called, so that backward computes no weight gradient at all; one that has a
gradient all the same was used elsewhere (F.linear(x, layer.weight)), where no hook sees it, and is refused. The
formulas are in layer_gradients.py, what else is refused in supported.py.

Sees private data, and what it returns is not private: clip and noise it (privatize.py) before anything leaves.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import Node

from fedlsg.frame import Frame
from fedlsg.gradients.activation_storage import ActivationStorage, storage_of, watched
from fedlsg.gradients.ghost import Held
from fedlsg.gradients.hooked_layers import (
    Layer,
    Remembered,
    block_gradient,
    can_hold,
    needs_input,
    plan,
    recall,
    remember,
    remember_output,
)
from fedlsg.gradients.precision import FLOAT32, Numbers
from fedlsg.gradients.rematerialize import NORMS, Rebuilding, let_go
from fedlsg.gradients.supported import Checked, UnsupportedLayerError, check, unsupported
from fedlsg.tensors import exactly, leads_to

Batch = Tensor | Mapping[str, Tensor]
LossFunction = Callable[[Any, Any], Tensor]

HIDDEN = "its input requires a gradient that no parameter asked for; detach it"


def per_example_gradients(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    frame: Frame,
    *,
    checked: Checked | None = None,
    numbers: Numbers = FLOAT32,
) -> list[Float[Tensor, "batch kept"]]:
    """Kept coordinates of each example's gradient, one tensor a block, in the order of ``frame.blocks``.

    ``inputs`` is a tensor or a dict of keyword tensors, batch first. ``loss_fn(outputs, targets)`` must give one
    loss an example, shape (B,): a mean would scale every gradient by 1 / B.
    Guarantee, for a model that treats examples independently (see independence.py): row i is a function of example i
    alone; the (m, n) gradient of a carried weight is never formed; no parameter's ``.grad`` or ``requires_grad``
    changes, also when something raises. A layer that the forward pass does not reach gives zeros; an empty batch gives
    tensors of shape (0, kept) without a call of the model; a loss that is not finite stays in its own row.
    Raises UnsupportedLayerError for what supported.py lists, and for a layer that is called twice, whose input is
    not batch first, whose input changes in place after the call, or whose parameters are used beside its call;
    ValueError for losses of another shape.
    ``checked``: what ``supported.check(model, frame)`` returned since either changed; else it is called here.
    ``numbers``: in which precision (precision.py); the blocks are of the parameters' type in any.
    """
    found = held_gradients(model, loss_fn, inputs, targets, frame, hold=False, checked=checked, numbers=numbers)
    return [value.flatten(1) for value in found if isinstance(value, Tensor)]


def held_gradients(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Batch,
    targets: Batch,
    frame: Frame,
    *,
    hold: bool = True,
    checked: Checked | None = None,
    numbers: Numbers = FLOAT32,
) -> list[Float[Tensor, "batch *kept"] | Held]:
    """As per_example_gradients, but not flattened, each block in the memory order that its product left it in.

    With ``hold``, what is dearer than its norm and its sum is held back for both (held.py).
    """
    parameters = check(model, frame) if checked is None else checked
    batch = batch_size(inputs, targets)
    like = next(iter(parameters.values()))
    storage = storage_of(model, inputs, numbers)
    step = Pass(batch=batch, blocks=len(frame.blocks), hold=hold, numbers=numbers, storage=storage)
    if batch:
        with eagerly(), hooked(model, frame, step, parameters), watched(storage, model), torch.enable_grad():
            losses = numbers.losses(partial(call, model, inputs), loss_fn, targets, like)
            if losses.shape != (batch,):
                raise ValueError(
                    f"expected one loss an example, shape ({batch},), got shape {tuple(losses.shape)}: use "
                    "reduction='none', and average within an example only"
                )
            step.backward(losses, parameters)
    return [like.new_zeros(batch, b.kept) if v is None else v for b, v in zip(frame.blocks, step.values, strict=True)]


def call(model: nn.Module, inputs: Batch) -> Any:
    """The model's outputs. Inputs are detached: a gradient with respect to them has no reader."""
    if isinstance(inputs, Tensor):
        return model(inputs.detach())
    return model(**{name: t.detach() for name, t in inputs.items()})


def batch_size(inputs: Batch, targets: Batch) -> int:
    """The common first dimension of all tensors. Raises ValueError where there is none."""
    tensors = [t for group in (inputs, targets) for t in ([group] if isinstance(group, Tensor) else group.values())]
    sizes = {t.shape[0] if t.ndim else None for t in tensors}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None:
        shapes = [tuple(t.shape) for t in tensors]
        raise ValueError(f"expected inputs and targets that share their first dimension, the batch, got {shapes}")
    return size


@contextmanager
def hooked(model: nn.Module, frame: Frame, step: "Pass", parameters: Checked) -> Iterator[None]:
    """Hook the layers, whose calls freeze their own parameters; on exit undo both, whatever happened."""
    handles = []
    try:
        for layer in map(step.numbers.formed, plan(model, frame)):
            handles.append(layer.module.register_forward_pre_hook(partial(freeze, layer)))
            # First in line, so that g is the gradient at the layer's own output, not at what a user's hook made of it.
            on_output = partial(step.on_output, layer)
            handles.append(layer.module.register_forward_hook(on_output, with_kwargs=True, prepend=True))
        norms = (module for module in model.modules() if type(module) in NORMS)
        handles += [module.register_forward_hook(step.rebuilding.on_norm, prepend=True) for module in norms]
        yield
    finally:
        for p in parameters.values():
            p.requires_grad_(True)
        for handle in handles:
            handle.remove()
        step.rebuilding.forget()
        step.due.clear()  # nodes hold their hooks, and these the pass: no collector sees that circle


def freeze(layer: Layer, *_: object) -> None:
    """Before a layer's call: its parameters stay out of the graph, until ``Pass.on_output``."""
    for p in layer.parameters:
        p.requires_grad_(False)


def eagerly() -> AbstractContextManager[object]:
    """No torch.compile in this pass. What is compiled with hooks is compiled anew with every pass's own hooks, until
    torch gives up; what was compiled without them may run without them, and a gradient of zeros looks like any other.
    """
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def maker(output: Tensor) -> Node:
    """The node of the graph that made the values of a layer's output.

    A hook on the output itself would be lost: a linear layer returns a view, and the first in-place change of a view
    (ReLU(inplace=True)) cuts its own node out of the graph, with its hooks. The node of the viewed tensor stays.
    """
    made = output._base if output._is_view() and output._base is not None else output
    assert made.grad_fn is not None
    assert made.numel() == output.numel()
    return made.grad_fn


class Pass:
    """The state of one forward and backward pass: what layers remember, and the blocks, None where not reached."""

    def __init__(
        self, *, batch: int, blocks: int, hold: bool, numbers: Numbers, storage: ActivationStorage | None
    ) -> None:
        self.batch = batch
        self.hold = hold
        self.numbers = numbers
        self.storage = storage
        self.values: list[Tensor | Held | None] = [None] * blocks
        self.memories: dict[str, Remembered] = {}
        self.called: set[str] = set()
        self.due: dict[str, tuple[Layer, Node]] = {}
        self.starts: list[Tensor] = []
        self.rebuilding = Rebuilding()

    def on_output(
        self, layer: Layer, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> Tensor | None:
        """Remember the layer's input, and ask for the gradient at its output."""
        for p in layer.parameters:
            p.requires_grad_(True)
        if not torch.is_grad_enabled():
            return None  # no gradient comes back through this call
        x = args[0] if args else kwargs["input"]
        self.check_call(layer, x)
        with torch.no_grad(), exactly(x.device.type):
            again = self.rebuilding.of(x) if needs_input(layer) and x.dtype == layer.dtype else None
            given, x = x.detach(), x.detach().to(layer.dtype)
            self.memories[layer.path] = memory = remember(layer, x, again)
            remember_output(layer, memory, x, output, output.grad_fn)
            if memory.x is not None and memory.x is x and given.itemsize < x.itemsize:
                memory.x, memory.version = given, given._version  # autograd holds it, not the wider copy
            if self.storage is not None:
                self.storage.pack_memory(memory)
        start = not output.requires_grad
        if start:
            # Everything below is frozen: the graph has to begin here. The model gets a copy, because it may change
            # its activations in place, which a leaf of the graph forbids.
            self.starts.append(output.requires_grad_())
            output = output.clone()
        elif not self.starts:
            raise unsupported(layer.path, module, HIDDEN)
        if again is not None:
            let_go(again, x, output)
        node = maker(output)
        self.due[layer.path] = layer, node
        node.register_prehook(partial(self.on_gradient, layer, output.shape))
        return output if start else None

    def check_call(self, layer: Layer, x: Tensor) -> None:
        """Raise UnsupportedLayerError for a second call, or an input that is not batch first."""
        if layer.path in self.called:
            raise unsupported(
                layer.path,
                layer.module,
                "called twice in one pass (activation checkpointing does that, too); its gradient is then a sum over "
                "the calls: give each call its own module, switch checkpointing off, or freeze it",
            )
        self.called.add(layer.path)
        if not layer.formulas.batch_first(x) or x.shape[0] != self.batch:
            raise unsupported(
                layer.path,
                layer.module,
                f"expected an input whose first dimension is the batch of {self.batch}, got shape {tuple(x.shape)}; "
                "keep examples on the first dimension (no flattening of positions into it), or freeze it",
            )

    def on_gradient(self, layer: Layer, shape: torch.Size, gradients: tuple[Tensor | None, ...]) -> None:
        """Compute the layer's blocks, then let go of its input."""
        memory = self.memories.pop(layer.path)
        del self.due[layer.path]
        if memory.x is not None and memory.x._version != memory.version:
            raise unsupported(
                layer.path,
                layer.module,
                "its input was changed in place after the call; use the out-of-place operation (inplace=False)",
            )
        if memory.note is not None and memory.note.changed:
            raise unsupported(
                layer.path,
                layer.module,
                "its output was changed in place after the call; use the out-of-place operation (inplace=False)",
            )
        if gradients[0] is None:
            return  # autograd's way to say zero
        g = gradients[0].reshape(shape).to(layer.dtype)
        with exactly(g.device.type):
            recall(layer, memory)
            for slot in layer.slots:
                if self.hold and can_hold(layer, slot, g):
                    assert memory.x is not None
                    assert isinstance(layer.module, nn.Linear | nn.Conv2d)
                    kept = g if self.storage is None else self.storage.rounded(g)
                    self.values[slot.position] = Held(layer.module, kept, memory.x, kept._version)
                else:
                    if memory.x is not None and memory.x.dtype != layer.dtype:
                        memory.x = memory.x.to(layer.dtype) if self.storage is None else self.storage.unpack(memory.x)
                    own = layer.module.get_parameter(slot.parameter).dtype
                    self.values[slot.position] = block_gradient(layer, slot, memory, g).to(own)

    def backward(self, losses: Float[Tensor, " batch"], parameters: Checked) -> None:
        """Send the gradient of every example's own loss back to the first hooked layers.

        Raises UnsupportedLayerError where it arrives at a parameter: nobody froze it, so no hook saw its use. Also
        where a layer that the losses depend on was passed over, because no first layer lies behind it.
        """
        if not losses.requires_grad:
            return
        wanted = [*self.starts, *parameters.values()]
        # The sum sends a one to every loss. Handed those ones, torch would import sympy: half a second a process.
        found = torch.autograd.grad(losses.sum(), wanted, allow_unused=True)[len(self.starts) :]
        if elsewhere := [name for name, g in zip(parameters, found, strict=True) if g is not None]:
            raise UnsupportedLayerError(
                f"{', '.join(elsewhere)}: used outside of its own layer's call, where its gradient cannot be told by "
                "example; call the layer instead of reading its weight (F.linear(x, layer.weight), layer.forward(x), a "
                "penalty in the loss), or freeze it"
            )
        for layer, node in self.due.values():
            if leads_to(losses.grad_fn, {node}):
                raise unsupported(layer.path, layer.module, HIDDEN)
