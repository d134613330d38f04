"""A model's hooked layers: which blocks of the frame each one owes, what it must remember of its input for them.

Symbols as in layer_gradients.py.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.graph import Node

from fedlsg.frame import EVERYTHING, Block, Coordinates, Frame, Keep
from fedlsg.gradients.ghost import worth_holding
from fedlsg.gradients.layers import (
    LAYERS,
    THROUGH_OUTPUT,
    CarriedGradients,
    LayerGradients,
    StandardizedConvGradients,
    kept_values,
    units,
)
from fedlsg.gradients.norm import NormGradients, Statistics
from fedlsg.gradients.rematerialize import Rebuilt
from fedlsg.gradients.standardized import OutputNote, finish_left, finish_right, note_output
from fedlsg.gradients.through_output import bias_lost, output_carriers, tolerance


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
    """A layer's carriers, and the formulas that only a carried weight has; A of through_output.py where it pays."""

    formulas: CarriedGradients
    L: Float[Tensor, "m r"]
    R: Float[Tensor, "r n"]
    A: Float[Tensor, "m r"] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """A module that owns trainable parameters, with its formulas, the blocks it owes, and its weight's carriers."""

    path: str
    module: nn.Module
    formulas: LayerGradients | NormGradients
    slots: tuple[Slot, ...]
    dtype: torch.dtype
    carried: Carried | None

    @cached_property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The module's own trainable parameters."""
        own = self.module._parameters  # get_parameter takes 20 times as long
        return tuple(p for slot in self.slots if slot.block.part != "R" and (p := own[slot.parameter]) is not None)


@dataclass(kw_only=True, eq=False)
class Remembered:
    """What backward needs of a layer's input: u = x R^T, and x (its kept units) as of one in-place version.

    ``note`` is what it needs of the output, where the weight is carried and standardised; ``statistics`` what a norm
    layer found in the forward pass; ``again`` makes x again where it is not held (rebuilt.py). ``done`` holds
    gradients that came with another one, by parameter.
    """

    u: Tensor | None = None
    x: Tensor | None = None
    version: int = 0
    again: Rebuilt | None = None
    note: OutputNote | None = None
    statistics: Statistics | None = None
    done: dict[str, Tensor] = field(default_factory=dict)


def plan(model: nn.Module, frame: Frame) -> list[Layer]:
    """The layers to hook, in model order. The frame has passed supported.check_frame."""
    slots: dict[str, list[Slot]] = {}
    for position, block in enumerate(frame.blocks):
        path = block.parameter.rpartition(".")[0]
        slots.setdefault(path, []).append(make_slot(position, block))
    coordinates = {c.name: c for c in frame.coordinates}
    layers = [
        make_layer(path, module, tuple(slots[path]), coordinates)
        for path, module in model.named_modules()
        if path in slots
    ]
    return through_outputs(layers)


def through_outputs(layers: list[Layer]) -> list[Layer]:
    """The layers with A where the output is the narrower way to u and the carriers allow it."""
    found = {}
    for layer in layers:
        carried = layer.carried
        if carried is not None and type(layer.module) in THROUGH_OUTPUT and carried.L.shape[0] < carried.R.shape[1]:
            A, gap = output_carriers(layer.module.get_parameter("weight").detach(), carried.L, carried.R)
            bias = layer.module.bias
            found[layer.path] = A, gap + bias_lost(bias.detach(), A) if isinstance(bias, Tensor) else gap
    if not found:
        return layers
    gaps = dict(zip(found, torch.stack([gap for _, gap in found.values()]).tolist(), strict=True))  # one transfer
    out = []
    for layer in layers:
        carried = layer.carried
        if carried is not None and gaps.get(layer.path, math.inf) <= tolerance(carried.R):
            layer = replace(layer, carried=replace(carried, A=found[layer.path][0]))
        out.append(layer)
    return out


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


def needs_input(layer: Layer) -> bool:
    """Whether a block of the layer needs x itself, for nothing that autograd holds it for."""
    needed = any(slot.parameter == "weight" and slot.block.part != "L" for slot in layer.slots)
    return needed and not isinstance(layer.formulas, NormGradients)


def remember(layer: Layer, x: Tensor, again: Rebuilt | None = None) -> Remembered:
    """What the layer's blocks need of x, and no more; x itself only where it cannot be made ``again``."""
    memory = Remembered(again=again)
    for slot in layer.slots:
        if slot.block.part == "L":
            assert layer.carried is not None
            if layer.carried.A is None:
                memory.u = layer.carried.formulas.inner(x, layer.carried.R)
        elif slot.parameter == "weight" and again is None:
            memory.x = x if layer.formulas.selects_late else units(x, layer.formulas.axis, slot.units)
            memory.version = memory.x._version
    return memory


def recall(layer: Layer, memory: Remembered) -> None:
    """Make x again where ``remember`` did not hold it."""
    if memory.again is None:
        return
    x, selects_late = memory.again.read(), layer.formulas.selects_late
    for slot in layer.slots:
        if slot.parameter == "weight" and slot.block.part != "L":
            memory.x = x if selects_late else units(x, layer.formulas.axis, slot.units)


def remember_output(layer: Layer, memory: Remembered, x: Tensor, y: Tensor, node: Node | None) -> None:
    """Add what the layer's blocks need of its output y, made by ``node``."""
    if isinstance(layer.formulas, NormGradients):
        if memory.x is not None:
            memory.statistics = layer.formulas.statistics(x, node)
        return
    memory.note = note(layer, x, y)
    if layer.carried is not None and layer.carried.A is not None:
        if y.dtype != layer.dtype:  # autocast rounded it
            memory.u = layer.carried.formulas.inner(x, layer.carried.R)
            return
        memory.u = layer.carried.formulas.outer(y.detach(), layer.carried.A)
        bias = layer.module.bias
        if isinstance(bias, Tensor):
            shift = bias.detach() @ layer.carried.A
            memory.u -= shift if layer.formulas.axis == -1 else shift.view(-1, 1, 1)


def note(layer: Layer, x: Tensor, y: Tensor) -> OutputNote | None:
    """What the layer's blocks need of its output y; None for most layers."""
    if layer.carried is not None and isinstance(layer.carried.formulas, StandardizedConvGradients):
        return note_output(layer.carried.formulas.layer, x, y.detach().to(layer.dtype))
    return None


def block_gradient(layer: Layer, slot: Slot, memory: Remembered, g: Tensor) -> Float[Tensor, "batch *kept"]:
    """Kept coordinates of one block, in order once they are flattened, from the gradient g at the layer's output."""
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


def can_hold(layer: Layer, slot: Slot, g: Tensor) -> bool:
    """Whether the slot's gradient, a whole dense weight's, is better held back than formed example by example."""
    block = slot.block
    whole = slot.parameter == "weight" and block.part == "dense" and block.kept == block.size and block.weight == 1
    return whole and worth_holding(layer.module, g)


def left_gradient(layer: Layer, slot: Slot, memory: Remembered, g: Tensor) -> Float[Tensor, "batch kept r"]:
    """dL of the slot's kept out units. The bias rides along: behind a column of ones in u, dL has its gradient.

    Rows are taken of the product, which is r wide, and not of g.
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
    rows = u.movedim(axis, 0)  # as it lies in memory where the layer is linear
    value = carried.formulas.left(g, torch.cat([rows, torch.ones_like(rows[:1])]).movedim(0, axis))
    memory.done["bias"] = value[:, :, -1]
    return units(value[:, :, :-1], 1, slot.units)


def right_gradient(layer: Layer, slot: Slot, memory: Remembered, g: Tensor) -> Tensor:
    """dR of the slot's kept in units."""
    carried, x = layer.carried, memory.x
    assert carried is not None
    assert x is not None
    if layer.formulas.selects_late:
        x = units(x, layer.formulas.axis, slot.units)
    value = carried.formulas.right(carried.formulas.outer(g, carried.L), x)
    return value if memory.note is None else finish_right(value, g, carried.L, memory.note, slot.units)
