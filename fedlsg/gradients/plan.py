"""Which layers of a model get hooks, and which blocks of the frame each of them computes.

Symbols: y = x W^T + b the output of a layer, L (m, r), R (r, n) carriers of its weight W (m, n), u = x R^T.
If the output is narrower than the input, u is computed from the output, by a shortcut A.
Carriers of W itself (``decompose``) have R = S^-1 L^T W with S = L^T W R^T, because R spans the rows of L^T W. So
    u = x R^T = (y - b) A        A = L S^-T, (m, r)
and the product of x and R, n wide (a whole convolution for a kernel), becomes a product of y and A, m wide.
Exact up to rounding, and checked for every layer: S^-1 L^T W differs from R if the weights have moved since the frame
was made, if the carriers are not those of W, or if S is too near singular. R = S^-1 L^T W implies R R^T = I, so that
scaled carriers of a core never pass. A bias far longer than x W^T rounds away digits of y. That does not show in R and
is checked separately (``bias_lost``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedlsg.frame import EVERYTHING, Block, Coordinates, Frame, Keep, Part
from fedlsg.gradients.calls.ways import Ways, ways_of
from fedlsg.gradients.formulas.layers import CarriedGradients, LayerGradients, formulas_of, is_turned
from fedlsg.gradients.formulas.norm import NormGradients
from fedlsg.gradients.precision import FLOAT32, Precision
from fedlsg.tensors import matrix_in_memory_order, to_memory_order

PRODUCTS = (nn.Linear, nn.Conv2d)
"""Layers whose output and blocks are plain products: the shortcut to u and blocks in bfloat16 need that."""
TURNED: Mapping[Part, Part] = {"L": "R", "R": "L"}
TOLERATED = 1e3
"""Units in the last place by which S^-1 L^T W may differ from R in Frobenius norm, for each row of R."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Slot:
    """One block that a layer computes: its position in the frame, and the module's own name of the parameter.

    ``units`` are the kept out units of dL or in units of dR, if the mask keeps whole units. The others are never
    computed, and ``keep`` then selects nothing. ``turned``: the layer stores its weight transposed (``make_layer``).
    """

    position: int
    parameter: str
    block: Block
    keep: Keep = EVERYTHING
    units: Int[Tensor, " kept"] | None = None
    turned: bool = False

    @property
    def part(self) -> Part:
        """The part of the block, for a weight (m, n)."""
        return TURNED.get(self.block.part, self.block.part) if self.turned else self.block.part


def make_slot(position: int, block: Block, *, turned: bool = False) -> Slot:
    """The slot of the frame's block at ``position``."""
    name = block.parameter.rpartition(".")[2]
    if block.kept == block.size:
        return Slot(position=position, parameter=name, block=block, turned=turned)
    if (block.part, block.keep.axis) in (("L", 0), ("R", 1)):
        return Slot(position=position, parameter=name, block=block, units=block.keep.index, turned=turned)
    return Slot(position=position, parameter=name, block=block, keep=block.keep, turned=turned)


@dataclass(frozen=True, kw_only=True, eq=False)
class Carried:
    """A layer's carriers and its formulas for a carried weight; ``A`` if u is computed from the output."""

    formulas: CarriedGradients
    L: Float[Tensor, "m r"]
    R: Float[Tensor, "s n"]
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

    @cached_property
    def types(self) -> dict[str, torch.dtype]:
        """The types of these parameters, by the module's own name."""
        return {name: p.dtype for name, p in self.module._parameters.items() if p is not None}

    @cached_property
    def from_input(self) -> Slot | None:
        """The slot of the weight whose block needs the input itself: dR, or the dense weight."""
        return next((s for s in self.slots if s.parameter == "weight" and s.part not in ("L", "core")), None)


def plan(model: nn.Module, frame: Frame, precision: Precision = FLOAT32, ways: Ways | None = None) -> list[Layer]:
    """The layers of ``LAYERS`` to hook, in model order. ``check_frame`` must have accepted the frame."""
    slots: dict[str, list[Slot]] = {}
    others = (ways or ways_of(model)).others
    for position, block in enumerate(frame.blocks):
        if block.parameter in others:
            continue
        path = block.parameter.rpartition(".")[0]
        turned = is_turned(model.get_submodule(path))
        slots.setdefault(path, []).append(make_slot(position, block, turned=turned))
    coordinates = {c.name: c for c in frame.coordinates}
    layers = [
        make_layer(path, module, tuple(slots[path]), coordinates)
        for path, module in model.named_modules()
        if path in slots
    ]
    layers = through_outputs(layers)
    return [in_bfloat16(layer) for layer in layers] if precision.mixed else layers


def make_layer(path: str, module: nn.Module, slots: tuple[Slot, ...], coordinates: dict[str, Coordinates]) -> Layer:
    """The layer at ``path``, which computes ``slots``.

    A weight W (n, m) that is stored transposed counts as W^T: its carriers are R^T and L^T, its dL is that of W^T's dR,
    transposed, and its dR that of dL.
    """
    formulas = formulas_of(module)
    carried = None
    weight = coordinates.get(f"{path}.weight" if path else "weight")
    if weight is not None and weight.L is not None and weight.R is not None:
        assert isinstance(formulas, CarriedGradients)  # check_frame refused anything else
        L, R = (weight.R.mT, weight.L.mT) if is_turned(module) else (weight.L, weight.R)
        carried = Carried(formulas=formulas, L=L, R=R)
    parameter = module._parameters[slots[0].parameter]
    assert parameter is not None
    dtype = parameter.dtype
    return Layer(path=path, module=module, formulas=formulas, slots=slots, dtype=dtype, carried=carried)


def through_outputs(layers: list[Layer]) -> list[Layer]:
    """The layers, with A where the output is narrower than the input and the carriers allow this shortcut to u."""
    shortcuts = {}
    for layer in layers:
        carried = layer.carried
        if carried is None or carried.L.shape[1] != carried.R.shape[0]:
            continue
        if type(layer.module) in PRODUCTS and carried.L.shape[0] < carried.R.shape[1]:
            A, gap = output_carriers(layer.module.get_parameter("weight").detach(), carried.L, carried.R)
            bias = layer.module.bias
            shortcuts[layer] = A, gap + bias_lost(bias.detach(), A) if isinstance(bias, Tensor) else gap
    if not shortcuts:
        return layers
    gaps = torch.stack([gap for _, gap in shortcuts.values()]).tolist()  # one transfer
    for (layer, (A, _)), gap in zip(shortcuts.items(), gaps, strict=True):
        carried = layer.carried
        if carried is not None and gap <= tolerance(carried.R):
            layers[layers.index(layer)] = replace(layer, carried=replace(carried, A=A))
    return layers


def output_carriers(
    W: Float[Tensor, "m *rest"], L: Float[Tensor, "m r"], R: Float[Tensor, "r n"]
) -> tuple[Float[Tensor, "m r"], Float[Tensor, ""]]:
    """A, and the Frobenius norm of S^-1 L^T W - R: NaN or huge if there is no such A."""
    core, rows = L.mT @ matrix_in_memory_order(W), to_memory_order(R, W)
    inverse, _ = torch.linalg.inv_ex(core @ rows.mT)
    return L @ inverse.mT, torch.linalg.vector_norm(inverse @ core - rows)


def bias_lost(bias: Float[Tensor, " m"], A: Float[Tensor, "m r"]) -> Float[Tensor, ""]:
    """The error in u, for an input of length 1, that rounding y = x W^T + b can cause; add it to the norm above."""
    lost: Tensor = torch.finfo(A.dtype).eps * torch.linalg.vector_norm(bias) * torch.linalg.vector_norm(A)
    return lost


def tolerance(R: Float[Tensor, "r n"]) -> float:
    """The largest norm that rounding explains."""
    return TOLERATED * float(torch.finfo(R.dtype).eps) * math.sqrt(R.shape[0])


def in_bfloat16(layer: Layer) -> Layer:
    """The layer as its blocks are formed under autocast: in bfloat16 if autocast takes its product in bfloat16.

    Then u is computed from x. The shortcut from the output would multiply the rounding of y by the condition number
    of the carriers.
    """
    if layer.dtype != torch.float32 or type(layer.module) not in PRODUCTS:
        return layer
    carried = layer.carried
    if carried is not None:
        carried = replace(carried, L=carried.L.bfloat16(), R=carried.R.bfloat16(), A=None)
    return replace(layer, dtype=torch.bfloat16, carried=carried)
