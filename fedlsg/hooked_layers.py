"""A model's hooked layers: which blocks of the frame each one owes, what it must remember of its input for them.

Symbols as in layer_gradients.py.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedlsg.frame import EVERYTHING, Block, Coordinates, Frame, Keep
from fedlsg.layer_gradients import (
    LAYERS,
    CarriedGradients,
    LayerGradients,
    StandardizedConvGradients,
    kept_values,
    units,
)
from fedlsg.standardized import OutputNote, finish_left, finish_right, note_output


@dataclass(frozen=True, kw_only=True, eq=False)
class Slot:
    """One block that a layer owes: its place in the frame, and the module's own name of its parameter.

    ``units`` are the kept out units of dL or in units of dR where the mask keeps whole units: the others are not
    computed, and ``keep`` has nothing left to do.
    """

    position: int
    parameter: str
    block: Block
    keep: Keep = EVERYTHING
    units: Int[Tensor, " kept"] | None = None


def make_slot(position: int, block: Block) -> Slot:
    """The slot of the frame's block at ``position``."""
    name = block.parameter.rpartition(".")[2]
    if block.kept == block.size:
        return Slot(position=position, parameter=name, block=block)
    if (block.part, block.keep.axis) in (("L", 0), ("R", 1)):
        return Slot(position=position, parameter=name, block=block, units=block.keep.index)
    return Slot(position=position, parameter=name, block=block, keep=block.keep)


@dataclass(frozen=True, kw_only=True, eq=False)
class Carried:
    """A layer's carriers, and the formulas that only a carried weight has."""

    formulas: CarriedGradients
    L: Float[Tensor, "m r"]
    R: Float[Tensor, "r n"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """A module that owns trainable parameters, with its formulas, the blocks it owes, and its weight's carriers."""

    path: str
    module: nn.Module
    formulas: LayerGradients
    slots: tuple[Slot, ...]
    dtype: torch.dtype
    carried: Carried | None


@dataclass(kw_only=True, eq=False)
class Remembered:
    """What backward needs of a layer's input: u = x R^T, and x (its kept units) as of one in-place version.

    ``note`` is what it needs of the output, where the weight is carried and standardised.
    """

    u: Tensor | None = None
    x: Tensor | None = None
    version: int = 0
    note: OutputNote | None = None


def plan(model: nn.Module, frame: Frame) -> list[Layer]:
    """The layers to hook, in model order. The frame has passed supported.check_frame."""
    slots: dict[str, list[Slot]] = {}
    for position, block in enumerate(frame.blocks):
        path = block.parameter.rpartition(".")[0]
        slots.setdefault(path, []).append(make_slot(position, block))
    coordinates = {c.name: c for c in frame.coordinates}
    return [
        make_layer(path, module, tuple(slots[path]), coordinates)
        for path, module in model.named_modules()
        if path in slots
    ]


def make_layer(path: str, module: nn.Module, slots: tuple[Slot, ...], coordinates: dict[str, Coordinates]) -> Layer:
    """The layer at ``path``, which owes ``slots``."""
    formulas = LAYERS[type(module)](module)
    carried = None
    weight = coordinates.get(f"{path}.weight" if path else "weight")
    if weight is not None and weight.L is not None and weight.R is not None:
        assert isinstance(formulas, CarriedGradients)  # supported.check_frame refused anything else
        carried = Carried(formulas=formulas, L=weight.L, R=weight.R)
    dtype = module.get_parameter(slots[0].parameter).dtype
    return Layer(path=path, module=module, formulas=formulas, slots=slots, dtype=dtype, carried=carried)


def remember(layer: Layer, x: Tensor) -> Remembered:
    """What the layer's blocks need of x, and no more."""
    memory = Remembered()
    for slot in layer.slots:
        if slot.block.part == "L":
            assert layer.carried is not None
            memory.u = layer.carried.formulas.inner(x, layer.carried.R)
        elif slot.parameter == "weight":
            memory.x = units(x, layer.formulas.axis, slot.units)
            memory.version = memory.x._version
    return memory


def note(layer: Layer, x: Tensor, y: Tensor) -> OutputNote | None:
    """What the layer's blocks need of its output y; None for most layers."""
    if layer.carried is not None and isinstance(layer.carried.formulas, StandardizedConvGradients):
        return note_output(layer.carried.formulas.layer, x, y.detach().to(layer.dtype))
    return None


def block_gradient(layer: Layer, slot: Slot, memory: Remembered, g: Tensor) -> Float[Tensor, "batch kept"]:
    """Kept coordinates of one block, from the gradient g at the layer's output."""
    formulas, carried, block = layer.formulas, layer.carried, slot.block
    if slot.parameter == "bias":
        value = formulas.bias(g)
    elif block.part == "dense":
        assert memory.x is not None
        value = formulas.weight(g, memory.x)
    elif block.part == "L":
        assert carried is not None
        assert memory.u is not None
        value = carried.formulas.left(units(g, formulas.axis, slot.units), memory.u)
        if memory.note is not None:
            value = finish_left(value, g, carried.R, memory.note, slot.units)
    else:
        assert carried is not None
        assert memory.x is not None
        value = carried.formulas.right(carried.formulas.outer(g, carried.L), memory.x)
        if memory.note is not None:
            value = finish_right(value, g, carried.L, memory.note, slot.units)
    if slot.units is not None:
        return value.flatten(1)
    return kept_values(value.reshape(len(g), *block.shape), slot.keep)
