"""The blocks of a layer: what forward keeps of its input and output, and what backward makes of it.

Symbols: x input, y output, g gradient at the output; L (m, r), R (r, n) carriers of the weight;
u = x R^T, v = g L.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import Node

from fedlsg.gradients.calls import unsupported
from fedlsg.gradients.formulas.embedding_rows import product
from fedlsg.gradients.formulas.ghost import GhostGradients, ghost_is_cheaper
from fedlsg.gradients.formulas.layers import (
    CarriedGradients,
    Factors,
    StandardizedConvGradients,
    kept_values,
    units,
)
from fedlsg.gradients.formulas.norm import NormGradients, Statistics
from fedlsg.gradients.formulas.standardized import (
    OutputNote,
    finish_core,
    finish_left,
    finish_right,
    note_output,
)
from fedlsg.gradients.hooked_pass.activation_storage import ActivationStorage
from fedlsg.gradients.hooked_pass.call_layers import Graph
from fedlsg.gradients.hooked_pass.hooked_layers import Layer, Slot
from fedlsg.gradients.hooked_pass.rematerialization import Rematerialized


@dataclass(kw_only=True, eq=False, slots=True)
class LayerMemory:
    """What one layer keeps from its call until backward; None where its blocks do not need it.

    u: x R^T.
    x: the input, or its kept units.
    version: in-place version of x.
    again: recomputes x in backward, if x is not kept.
    note: what a carried standardized convolution needs of its output.
    statistics: means and deviations that a norm layer computed.
    done: gradients that were computed together with another one, by parameter.
    """

    u: Tensor | None = None
    x: Tensor | None = None
    version: int = 0
    again: Rematerialized | None = None
    note: OutputNote | None = None
    statistics: Statistics | None = None
    done: dict[str, Tensor] = field(default_factory=dict)

    @property
    def changed(self) -> str:
        """ "input" or "output", whichever was changed in place after the call; else empty."""
        if self.x is not None and self.x._version != self.version:
            return "input"
        return "output" if self.note is not None and self.note.changed else ""

    def round_by(self, storage: ActivationStorage) -> None:
        """Round what is kept of input and output."""
        if self.x is not None and storage.takes(self.x):
            self.x = storage.pack(self.x)
            self.version = self.x._version
        if self.note is not None and storage.takes(self.note.y):
            self.note.y = storage.pack(self.note.y)
            self.note.version = self.note.y._version


def needs_input(layer: Layer) -> bool:
    """Whether a block of the layer needs x itself.

    Norm layers need it, but autograd keeps x for them in any case.
    """
    return layer.from_input is not None and not layer.is_norm


def remember(layer: Layer, x: Tensor, again: Rematerialized | None = None) -> LayerMemory:
    """What the layer's blocks need of x; x itself only if it cannot be computed ``again``."""
    memory = LayerMemory(again=again)
    if again is None:
        keep_input(layer, memory, x)
    if layer.carried is not None and layer.from_inner and layer.carried.A is None:
        memory.u = layer.carried.formulas.inner(x, layer.carried.R)
    return memory


def keep_input(layer: Layer, memory: LayerMemory, x: Tensor) -> None:
    """Keep x, or its kept units, if a block of the weight needs it.

    In backward, x is the recomputed one.
    """
    if layer.from_input is not None:
        if not layer.formulas.selects_late:
            x = units(x, layer.formulas.axis, layer.from_input.units)
        memory.x = x
        memory.version = x._version


def remember_output(
    layer: Layer, memory: LayerMemory, x: Tensor, y: Tensor, node: Node | None
) -> None:
    """Add what the layer's blocks need of its output y, which ``node`` computed."""
    carried = layer.carried
    if layer.is_norm:
        if memory.x is not None:
            assert isinstance(layer.formulas, NormGradients)
            memory.statistics = layer.formulas.statistics(x, node)
    elif carried is not None and isinstance(carried.formulas, StandardizedConvGradients):
        memory.note = note_output(carried.formulas.layer, x, y.detach().to(layer.dtype))
    elif carried is not None and carried.A is not None:
        if y.dtype != layer.dtype:  # autocast rounded it
            memory.u = carried.formulas.inner(x, carried.R)
            return
        memory.u = carried.formulas.outer(y.detach(), carried.A)  # u = (y - b) A
        bias = layer.module.bias
        if isinstance(bias, Tensor):
            shift = bias.detach() @ carried.A
            memory.u -= shift if layer.formulas.axis == -1 else shift.view(-1, 1, 1)


def use_ghost(layer: Layer, slot: Slot, memory: LayerMemory, g: Tensor) -> bool:
    """Whether the slot is a whole dense weight for which ghost clipping is cheaper.

    The other way is one gradient for each example.
    """
    if not slot.whole or memory.x is None:
        return False
    if slot.turned:  # W is (n, m): x and g change places
        return product(layer.module, memory.x, g).cheaper
    return ghost_is_cheaper(layer.module, g)


def choose_block(
    step: Graph, layer: Layer, slot: Slot, memory: LayerMemory, g: Tensor
) -> Tensor | GhostGradients | Factors:
    """The slot's gradients, in the type of the parameter.

    ``Factors`` for a weight in ``step.factored``; ``GhostGradients`` where they are cheaper.
    """
    if step.factored and slot.block.parameter in step.factored:
        assert memory.x is not None
        assert isinstance(layer.formulas, CarriedGradients)
        if step.called[layer.path] > 1 and isinstance(layer.module, nn.Conv2d):
            reason = (
                "a probe needs a convolution that is called once; choose another method, such as "
                "lsg"
            )
            raise unsupported(layer.path, layer.module, reason)
        first, second = (memory.x, g) if slot.turned else (g, memory.x)
        return Factors(formulas=layer.formulas, g=first, x=second, version=first._version)
    if slot.whole and step.ghosts(layer.path) and use_ghost(layer, slot, memory, g):
        assert memory.x is not None
        g = g if step.storage is None else step.storage.round_gradient(g)
        if slot.turned:
            return product(layer.module, memory.x, g)
        assert isinstance(layer.module, nn.Linear | nn.Conv2d)
        return GhostGradients(layer.module, g, memory.x, g._version)
    if memory.x is not None and memory.x.dtype != layer.dtype:
        memory.x = (
            memory.x.to(layer.dtype) if step.storage is None else step.storage.unpack(memory.x)
        )
    return form_block(layer, slot, memory, g).to(layer.types[slot.parameter])


def form_block(
    layer: Layer, slot: Slot, memory: LayerMemory, g: Tensor
) -> Float[Tensor, "batch *kept"]:
    """Kept coordinates of one block for each example, in ascending order after flattening."""
    formulas, block = layer.formulas, slot.block
    if layer.is_norm and memory.x is not None and not memory.done:
        assert isinstance(formulas, NormGradients)
        assert memory.statistics is not None
        scale, shift = formulas.scale_and_shift(g, memory.x, memory.statistics)
        memory.done = {"weight": scale, "bias": shift}
    if slot.parameter in memory.done:
        value = memory.done.pop(slot.parameter)
    elif slot.parameter == "bias":
        value = formulas.bias(g)
    elif block.part == "dense":
        assert memory.x is not None
        assert not isinstance(formulas, NormGradients)
        value = formulas.weight(g, memory.x)
    elif slot.part == "L":
        value = left_gradient(layer, slot, memory, g)
    elif block.part == "core":
        value = core_gradient(layer, memory, g)
    else:
        value = right_gradient(layer, slot, memory, g)
    if slot.turned and slot.parameter == "weight":
        value = value.mT
    if slot.units is None and value.shape[1:] != block.shape:
        value = value.reshape(g.shape[0], *block.shape)
    return value if slot.keep.index is None else kept_values(value, slot.keep)


def left_gradient(
    layer: Layer, slot: Slot, memory: LayerMemory, g: Tensor
) -> Float[Tensor, "batch kept r"]:
    """dL of the slot's kept out units.

    A column of ones behind u adds the gradient of the bias to the same product. Units are selected
    from the product, which is r wide, and not from g.
    """
    carried, u = layer.carried, memory.u
    assert carried is not None
    assert u is not None
    if memory.note is not None:
        value = units(carried.formulas.left(g, u), 1, slot.units)
        return finish_left(value, g, carried.R, memory.note, slot.units)
    if not any(other.parameter == "bias" for other in layer.slots):
        return units(carried.formulas.left(g, u), 1, slot.units)
    axis = layer.formulas.axis
    rows = u.movedim(axis, 0)  # u's memory order, if the layer is linear
    with_ones = torch.cat([rows, torch.ones_like(rows[:1])]).movedim(0, axis)
    value = carried.formulas.left(g, with_ones)
    memory.done["bias"] = value[:, :, -1]
    return units(value[:, :, :-1], 1, slot.units)


def right_gradient(layer: Layer, slot: Slot, memory: LayerMemory, g: Tensor) -> Tensor:
    """dR = v^T x of the slot's kept in units."""
    carried, x = layer.carried, memory.x
    assert carried is not None
    assert x is not None
    if layer.formulas.selects_late:
        x = units(x, layer.formulas.axis, slot.units)
    value = carried.formulas.right(carried.formulas.outer(g, carried.L), x)
    if memory.note is None:
        return value
    return finish_right(value, g, carried.L, memory.note, slot.units)


def core_gradient(layer: Layer, memory: LayerMemory, g: Tensor) -> Float[Tensor, "batch r s"]:
    """S = L^T dW R^T = v^T u."""
    carried, u = layer.carried, memory.u
    assert carried is not None
    assert u is not None
    value = carried.formulas.left(carried.formulas.outer(g, carried.L), u)
    if memory.note is None:
        return value
    return finish_core(value, g, carried.L, carried.R, memory.note)
