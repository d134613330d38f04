"""Which layers of a model get hooks, and which blocks of the frame each of them computes.

Symbols: L (m, r), R (r, n) carriers of a weight W (m, n), u = x R^T, A (m, r) the shortcut to u from the output.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedlsg.frame import EVERYTHING, Block, Coordinates, Frame, Keep
from fedlsg.gradients.formulas.layers import LAYERS, THROUGH_OUTPUT, CarriedGradients, LayerGradients
from fedlsg.gradients.formulas.norm import NormGradients
from fedlsg.gradients.formulas.through_output import bias_lost, output_carriers, tolerance


@dataclass(frozen=True, kw_only=True, eq=False)
class Slot:
    """One block that a layer computes: its position in the frame, and the module's own name of the parameter.

    ``units`` are the kept out units of dL or in units of dR, if the mask keeps whole units. The others are never
    computed, and ``keep`` then selects nothing.
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
    """A layer's carriers and its formulas for a carried weight; ``A`` if u is computed from the output."""

    formulas: CarriedGradients
    L: Float[Tensor, "m r"]
    R: Float[Tensor, "r n"]
    A: Float[Tensor, "m r"] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """A module that owns trainable parameters, with its formulas, its blocks, and its weight's carriers."""

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


def plan(model: nn.Module, frame: Frame) -> list[Layer]:
    """The layers to hook, in model order. ``check_frame`` must have accepted the frame."""
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


def make_layer(path: str, module: nn.Module, slots: tuple[Slot, ...], coordinates: dict[str, Coordinates]) -> Layer:
    """The layer at ``path``, which computes ``slots``."""
    formulas = LAYERS[type(module)](module)
    carried = None
    weight = coordinates.get(f"{path}.weight" if path else "weight")
    if weight is not None and weight.L is not None and weight.R is not None:
        assert isinstance(formulas, CarriedGradients)  # check_frame refused anything else
        carried = Carried(formulas=formulas, L=weight.L, R=weight.R)
    dtype = module.get_parameter(slots[0].parameter).dtype
    return Layer(path=path, module=module, formulas=formulas, slots=slots, dtype=dtype, carried=carried)


def through_outputs(layers: list[Layer]) -> list[Layer]:
    """The layers, with A where the output is narrower than the input and the carriers allow this shortcut to u."""
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
