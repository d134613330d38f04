"""Backward: the blocks of a layer, from what it kept and the gradient g at its output.

Symbols: g gradient at the output, x input, L (m, r), R (r, n) carriers of the weight, u = x R^T.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.gradients.formulas.ghost import ghost_is_cheaper
from fedlsg.gradients.formulas.layers import kept_values, units
from fedlsg.gradients.formulas.norm import NormGradients
from fedlsg.gradients.formulas.standardized import finish_left, finish_right
from fedlsg.gradients.plan import Layer, Slot
from fedlsg.gradients.remember import LayerMemory


def use_ghost(layer: Layer, slot: Slot, g: Tensor) -> bool:
    """Whether the slot is a whole dense weight for which ghost clipping is cheaper than one gradient an example."""
    block = slot.block
    whole = slot.parameter == "weight" and block.part == "dense" and block.kept == block.size and block.weight == 1
    return whole and ghost_is_cheaper(layer.module, g)


def form_block(layer: Layer, slot: Slot, memory: LayerMemory, g: Tensor) -> Float[Tensor, "batch *kept"]:
    """Kept coordinates of one block for each example, in ascending order once they are flattened."""
    formulas, block = layer.formulas, slot.block
    if slot.parameter in memory.done:
        value = memory.done.pop(slot.parameter)
    elif isinstance(formulas, NormGradients) and memory.x is not None:
        assert memory.statistics is not None
        scale, shift = formulas.scale_and_shift(g, memory.x, memory.statistics)
        memory.done = {"weight": scale, "bias": shift}
        value = memory.done.pop(slot.parameter)
    elif slot.parameter == "bias":
        value = formulas.bias(g)
    elif block.part == "dense":
        assert memory.x is not None
        assert not isinstance(formulas, NormGradients)
        value = formulas.weight(g, memory.x)
    elif block.part == "L":
        value = left_gradient(layer, slot, memory, g)
    else:
        value = right_gradient(layer, slot, memory, g)
    if slot.units is None and value.shape[1:] != block.shape:
        value = value.reshape(len(g), *block.shape)
    return kept_values(value, slot.keep)


def left_gradient(layer: Layer, slot: Slot, memory: LayerMemory, g: Tensor) -> Float[Tensor, "batch kept r"]:
    """dL of the slot's kept out units.

    A column of ones behind u adds the gradient of the bias to the same product. Units are selected from the product,
    which is r wide, and not from g.
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
    return value if memory.note is None else finish_right(value, g, carried.L, memory.note, slot.units)
