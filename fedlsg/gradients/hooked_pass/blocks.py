"""The blocks of a layer: what it keeps of its input and output in forward, and what it computes
from that in backward.

Symbols: x input, y output, g gradient at the output, L (m, r), R (r, n) carriers of the weight, u =
x R^T.

Blocks of embedded parameters (Yu, Zhang, Chen and Liu 2021, GEP): a dense gradient as an embedding
and a rest.
Symbols there: g (m,) one example's gradient of one parameter, flattened; L (m, k) orthonormal
columns, public; w = L^T g the embedding, g - L w the rest; C clip norm and sigma noise multiplier
of both together.
The paper clips embeddings to C_1 and rests to C_2, and adds noise s C_1 and s C_2, so that a batch
is released twice. Here rests are first multiplied by C_1 / C_2 (``Block.weight``) and both are
clipped to C_1 = C / sqrt(2). What follows is the joint clip to C, which changes nothing any more,
and noise sigma C. So s = sqrt(2) sigma, and both releases together are one Gaussian release of
noise multiplier 1 / sqrt(1 / s^2 + 1 / s^2) = sigma, exactly. Two subsampled releases composed as
if each had a Poisson batch of its own would be another mechanism: these share one. What the ledger
is charged with rests on the joint clip alone, not on this module.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import Node

from fedlsg.frame import Frame
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
from fedlsg.gradients.hooked_pass.activation_storage import ActivationStorage, Rematerialized
from fedlsg.gradients.hooked_pass.call_layers import Graph
from fedlsg.gradients.hooked_pass.hooked_layers import Layer, Slot


@dataclass(kw_only=True, eq=False, slots=True)
class LayerMemory:
    """What one layer keeps from its call until backward.

    ``u`` is x R^T. ``x`` is the input, or its kept units, at in-place version ``version``.
    ``again`` computes x again in backward, if x is not kept. ``note`` is what a carried
    standardized convolution needs of its output. ``statistics`` are those that a norm layer found.
    ``done`` has gradients that were computed together with another one, by parameter.
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
        """Which of "input" and "output" was changed in place after the call; empty if neither
        was.
        """
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
    """Whether a block of the layer needs x itself. Norm layers do, but autograd keeps x for them
    anyway.
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
    """Keep x, or its kept units, if a block of the weight needs it. In backward this is x that was
    computed again.
    """
    if layer.from_input is not None:
        memory.x = (
            x
            if layer.formulas.selects_late
            else units(x, layer.formulas.axis, layer.from_input.units)
        )
        memory.version = memory.x._version


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
        memory.u = carried.formulas.outer(y.detach(), carried.A)
        bias = layer.module.bias
        if isinstance(bias, Tensor):
            shift = bias.detach() @ carried.A
            memory.u -= shift if layer.formulas.axis == -1 else shift.view(-1, 1, 1)


def use_ghost(layer: Layer, slot: Slot, memory: LayerMemory, g: Tensor) -> bool:
    """Whether the slot is a whole dense weight for which ghost clipping is cheaper than one
    gradient an example.
    """
    if not slot.whole or memory.x is None:
        return False
    return (
        product(layer.module, memory.x, g).cheaper
        if slot.turned
        else ghost_is_cheaper(layer.module, g)
    )


def choose_block(
    step: Graph, layer: Layer, slot: Slot, memory: LayerMemory, g: Tensor
) -> Tensor | GhostGradients | Factors:
    """The slot's gradients, in the type of the parameter; as ``GhostGradients`` where those are
    cheaper.
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
        kept = g if step.storage is None else step.storage.rounded(g)
        if slot.turned:
            return product(layer.module, memory.x, kept)
        assert isinstance(layer.module, nn.Linear | nn.Conv2d)
        return GhostGradients(layer.module, kept, memory.x, kept._version)
    if memory.x is not None and memory.x.dtype != layer.dtype:
        memory.x = (
            memory.x.to(layer.dtype) if step.storage is None else step.storage.unpack(memory.x)
        )
    value, dtype = form_block(layer, slot, memory, g), layer.types[slot.parameter]
    return value if value.dtype == dtype else value.to(dtype)


def form_block(
    layer: Layer, slot: Slot, memory: LayerMemory, g: Tensor
) -> Float[Tensor, "batch *kept"]:
    """Kept coordinates of one block for each example, in ascending order once they are
    flattened.
    """
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
    rows = u.movedim(axis, 0)  # its memory order, if the layer is linear
    value = carried.formulas.left(g, torch.cat([rows, torch.ones_like(rows[:1])]).movedim(0, axis))
    memory.done["bias"] = value[:, :, -1]
    return units(value[:, :, :-1], 1, slot.units)


def right_gradient(layer: Layer, slot: Slot, memory: LayerMemory, g: Tensor) -> Tensor:
    """dR of the slot's kept in units."""
    carried, x = layer.carried, memory.x
    assert carried is not None
    assert x is not None
    if layer.formulas.selects_late:
        x = units(x, layer.formulas.axis, slot.units)
    value = carried.formulas.right(carried.formulas.outer(g, carried.L), x)
    return (
        value if memory.note is None else finish_right(value, g, carried.L, memory.note, slot.units)
    )


def core_gradient(layer: Layer, memory: LayerMemory, g: Tensor) -> Float[Tensor, "batch r s"]:
    """S = L^T dW R^T, from v = g L and u = x R^T."""
    carried, u = layer.carried, memory.u
    assert carried is not None
    assert u is not None
    value = carried.formulas.left(carried.formulas.outer(g, carried.L), u)
    return (
        value if memory.note is None else finish_core(value, g, carried.L, carried.R, memory.note)
    )


def embed(
    gradients: Sequence[Float[Tensor, "batch m"]], frame: Frame
) -> list[Float[Tensor, "batch kept"]]:
    """What is clipped of each example, one tensor a block of ``frame``: all embeddings, then all
    rests.

    ``gradients``: dense, one tensor a parameter in the order of ``frame.coordinates``.
    Guarantee: row i is a function of row i alone, and L w + rest is g to rounding where the frame
    keeps all coordinates. The mask is applied here, before any clip.
    """
    blocks = {}
    for c, g in zip(frame.coordinates, gradients, strict=True):
        assert c.L is not None, "a frame of embeddings embeds every parameter"
        w = g @ c.L
        blocks[c.name, "core"] = w
        if "rest" in c.parts:
            blocks[c.name, "rest"] = g - w @ c.L.mT
    return [
        value
        if block.keep.index is None
        else value[:, block.keep.positions(block.shape).to(value.device)]
        for block in frame.blocks
        for value in [blocks[block.parameter, block.part]]
    ]
