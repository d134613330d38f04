"""The layers of a model that get hooks, and the blocks of the frame that each computes.

Symbols: y = x W^T + b the output of a layer; L (m, r), R (r, n) carriers of its weight W (m, n);
u = x R^T. If the output is narrower than the input, u is computed from the output, by a shortcut A.
Carriers of W itself (``decompose``) have R = S^-1 L^T W with S = L^T W R^T, because R spans the
rows of L^T W. So
    u = x R^T = (y - b) A        A = L S^-T, (m, r)
and the product of x and R, n wide (a whole convolution for a kernel), becomes a product of y and A,
m wide.
It is exact up to rounding. Every layer is checked in every pass: S^-1 L^T W differs from R if the
weights have moved since the frame was made, if the carriers are not those of W, or if S is too near
singular. R = S^-1 L^T W implies R R^T = I, so that scaled carriers of a core never pass. A bias far
longer than x W^T rounds away digits of y. That does not show in R and is checked separately
(``bias_error``).
"""

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.graph import Node

from fedlsg.frame import EVERYTHING, Block, Coordinates, Frame, Keep, Part
from fedlsg.gradients.calls.registry import Ways
from fedlsg.gradients.formulas.layers import (
    CarriedGradients,
    LayerGradients,
    formulas_of,
    is_turned,
)
from fedlsg.gradients.formulas.norm import NormGradients
from fedlsg.gradients.hooked_pass.precision import Precision
from fedlsg.tensors import matrix_in_memory_order, to_device, to_memory_order

PRODUCTS = (nn.Linear, nn.Conv2d)
"""Layers whose output and blocks are plain products: the shortcut to u and blocks in bfloat16 need
that.
"""
TURNED: Mapping[Part, Part] = {"L": "R", "R": "L"}
"""The part of W^T for each part of W that changes."""
TOLERATED = 1e3
"""Allowed Frobenius norm of S^-1 L^T W - R, in units in the last place times sqrt(r)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Slot:
    """One block that a layer computes.

    position: of the block in the frame.
    parameter: the module's own name of the parameter.
    block: of the frame.
    keep: coordinates that are selected from the result.
    units: the kept out units of dL or in units of dR, if the mask keeps whole units, else None. The
        others are never computed, and ``keep`` then selects nothing.
    turned: whether the layer stores its weight transposed (``make_layer``).
    part: the part of the block, for a weight (m, n).
    whole: whether it is a whole dense weight that nothing weighs in the clip, for which ghost
        clipping may be used.
    """

    position: int
    parameter: str
    block: Block
    keep: Keep = EVERYTHING
    units: Int[Tensor, " kept"] | None = None
    turned: bool = False
    part: Part
    whole: bool


def make_slots(frame: Frame, device: torch.device) -> list[Slot]:
    """The slots of the frame's blocks, with what is kept of each on a device."""
    indices = [b.keep.index for b in frame.blocks if b.keep.index is not None]
    moved = iter(to_device(indices, device))  # in one transfer
    slots = []
    for position, block in enumerate(frame.blocks):
        keep = block.keep
        if keep.index is not None:
            keep = Keep(axis=keep.axis, index=next(moved))
        slots.append(make_slot(position, block, keep))
    return slots


def make_slot(position: int, block: Block, keep: Keep) -> Slot:
    """The slot of the frame's block at ``position``."""
    name = block.parameter.rpartition(".")[2]
    whole = block.kept == block.size
    units = not whole and (block.part, keep.axis) in (("L", 0), ("R", 1))
    return Slot(
        position=position,
        parameter=name,
        block=block,
        keep=EVERYTHING if whole or units else keep,
        units=keep.index if units else None,
        part=block.part,
        whole=whole and block.part == "dense" and name == "weight" and block.weight == 1,
    )


@dataclass(kw_only=True, eq=False)
class Carried:
    """A layer's carriers, and its formulas for a carried weight.

    formulas: of the layer's type.
    L, R: the carriers; r = s but for a core.
    A: the shortcut to u in a pass that computes u from the output, else None.
    """

    formulas: CarriedGradients
    L: Float[Tensor, "m r"]
    R: Float[Tensor, "s n"]
    A: Float[Tensor, "m r"] | None = None


@dataclass(kw_only=True, eq=False)
class Layer:
    """A module that owns trainable parameters, and how its blocks are computed.

    path: of the module in the model.
    formulas: of the module's type.
    slots: its blocks.
    dtype: type in which the blocks are computed.
    carried: the carriers of its weight; None if the weight is dense or absent.
    The other fields follow from these:
    is_norm: whether it is a norm.
    parameters: the module's own trainable parameters.
    types: types of the module's own parameters, by its own names.
    from_input: the slot of the weight whose block needs the input itself: dR, or the dense
        weight. None if no block needs it.
    from_inner: whether a block needs u.
    narrows: whether u may be computed from the output, because it is narrower than the input
        (``through_outputs``).
    """

    path: str
    module: nn.Module
    formulas: LayerGradients | NormGradients
    slots: tuple[Slot, ...]
    dtype: torch.dtype
    carried: Carried | None
    is_norm: bool = field(init=False)
    parameters: tuple[nn.Parameter, ...] = field(init=False)
    types: Mapping[str, torch.dtype] = field(init=False)
    from_input: Slot | None = field(init=False)
    from_inner: bool = field(init=False)
    narrows: bool = field(init=False)

    def __post_init__(self) -> None:
        parameters = self.module._parameters  # get_parameter takes 20 times as long
        c = self.carried
        self.is_norm = isinstance(self.formulas, NormGradients)
        self.types = {name: p.dtype for name, p in parameters.items() if p is not None}
        self.parameters = ()
        self.from_input = None
        self.from_inner = False
        for slot in self.slots:
            p = parameters[slot.parameter]
            if p is not None and slot.block.part != "R":
                self.parameters += (p,)
            if slot.part in ("L", "core"):
                self.from_inner = c is not None
            elif slot.parameter == "weight" and self.from_input is None:
                self.from_input = slot
        self.narrows = (
            c is not None
            and type(self.module) in PRODUCTS
            and c.L.shape[0] < c.R.shape[1]
            and c.L.shape[1] == c.R.shape[0]
            and c.L.dtype in (self.types["weight"], torch.float32, torch.float64)
        )


def make_layers(
    model: nn.Module, frame: Frame, precision: Precision, ways: Ways, slots: Sequence[Slot]
) -> list[Layer]:
    """The layers without the shortcuts of a pass, which depend on the values of the weights."""
    slots_of: dict[str, list[Slot]] = {}
    others = ways.others
    for slot in slots:
        if slot.block.parameter not in others:
            slots_of.setdefault(slot.block.parameter.rpartition(".")[0], []).append(slot)
    coordinates = {c.name: c for c in frame.coordinates}
    layers = []
    for path, module in modules_of(model).items():
        if path in slots_of:
            slots_here = tuple(map(turn, slots_of[path]) if is_turned(module) else slots_of[path])
            layers.append(make_layer(path, module, slots_here, coordinates))
    return [in_bfloat16(layer) for layer in layers] if precision.mixed else layers


def turn(slot: Slot) -> Slot:
    """The slot of a layer that stores its weight transposed."""
    return replace(slot, turned=True, part=TURNED.get(slot.part, slot.part))


def make_layer(
    path: str, module: nn.Module, slots: tuple[Slot, ...], coordinates: dict[str, Coordinates]
) -> Layer:
    """The layer at ``path``, which computes ``slots``.

    A weight W (n, m) that is stored transposed counts as W^T: its carriers are R^T and L^T, its dL
    is that of W^T's dR, transposed, and its dR that of dL.
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
    return Layer(
        path=path, module=module, formulas=formulas, slots=slots, dtype=dtype, carried=carried
    )


def through_outputs(layers: Sequence[Layer]) -> None:
    """Set A where a layer's output is narrower than its input, and its carriers allow the shortcut.

    This is decided anew in every pass, because it depends on the values of the weights.
    """
    carriers, products = [], []
    for layer in layers:
        if layer.narrows and (carried := layer.carried) is not None:
            W, bias = (layer.module._parameters[name] for name in ("weight", "bias"))
            assert W is not None
            carriers.append((carried, bias))
            products.append(
                (carried.L.mT @ matrix_in_memory_order(W.detach()), to_memory_order(carried.R, W))
            )
    if not products:
        return
    inverses = inverse_of_each([core @ rows.mT for core, rows in products])
    rests = [
        torch.addmm(rows, inverse, core, beta=-1)
        for inverse, (core, rows) in zip(inverses, products, strict=True)
    ]
    gaps = list(torch._foreach_norm(rests))  # |S^-1 L^T W - R|: NaN or huge if S has no inverse
    for i, (inverse, (carried, bias)) in enumerate(zip(inverses, carriers, strict=True)):
        carried.A = carried.L @ inverse.mT
        if bias is not None:
            gaps[i] = gaps[i] + bias_error(bias.detach(), carried.A)
    for (carried, _), gap in zip(carriers, torch.stack(gaps).tolist(), strict=True):  # one transfer
        if not gap <= tolerance(carried.R):
            carried.A = None


def inverse_of_each(squares: Sequence[Float[Tensor, "_ _"]]) -> list[Float[Tensor, "_ _"]]:
    """The inverse of each square matrix, in one call for all of a size, type and device.

    There is no error for a matrix without an inverse: its result is not finite, or useless.
    """
    groups: dict[tuple[torch.Size, torch.dtype, torch.device], list[int]] = {}
    for i, S in enumerate(squares):
        groups.setdefault((S.shape, S.dtype, S.device), []).append(i)
    inverses: dict[int, Tensor] = {}
    for indices in groups.values():
        stack = torch.stack([squares[i] for i in indices])
        # LAPACK has no half precision
        inverted, _ = torch.linalg.inv_ex(stack.float() if stack.dtype.itemsize < 4 else stack)
        inverses |= zip(indices, inverted.to(stack.dtype).unbind(), strict=True)
    return [inverses[i] for i in range(len(squares))]


def bias_error(bias: Float[Tensor, " m"], A: Float[Tensor, "m r"]) -> Float[Tensor, ""]:
    """A bound of the error in u that rounding y = x W^T + b causes: eps |b| |A|.

    ``through_outputs`` adds it to |S^-1 L^T W - R|, which is the error in u for an x of length 1.
    """
    error: Tensor = (
        torch.finfo(A.dtype).eps * torch.linalg.vector_norm(bias) * torch.linalg.vector_norm(A)
    )
    return error


def tolerance(R: Float[Tensor, "r n"]) -> float:
    """The largest |S^-1 L^T W - R| that rounding explains."""
    return TOLERATED * float(torch.finfo(R.dtype).eps) * math.sqrt(R.shape[0])


def in_bfloat16(layer: Layer) -> Layer:
    """The layer under autocast: its blocks in bfloat16, if its product runs in bfloat16.

    Then u is computed from x. The shortcut from the output would multiply the rounding of y by the
    condition number of the carriers.
    """
    if layer.dtype != torch.float32 or type(layer.module) not in PRODUCTS:
        return layer
    carried = layer.carried
    if carried is not None:
        carried = replace(carried, L=carried.L.bfloat16(), R=carried.R.bfloat16())
    return replace(layer, dtype=torch.bfloat16, carried=carried)


def modules_of(model: nn.Module) -> dict[str, nn.Module]:
    """All modules by path, as ``model.named_modules()`` gives them, in a fifth of its time."""
    first: dict[int, tuple[str, nn.Module]] = {}
    _collect(model, "", first)
    return dict(first.values())


def _collect(module: nn.Module, path: str, first: dict[int, tuple[str, nn.Module]]) -> None:
    if id(module) in first:
        return
    first[id(module)] = path, module
    for name, child in module._modules.items():
        if child is not None:
            _collect(child, f"{path}.{name}" if path else name, first)


def add_hook(
    entries: list[tuple[dict[Any, Any], object]],
    module: nn.Module,
    hook: Callable[..., Any],
    *,
    before: bool = False,
) -> None:
    """Register a hook with keyword arguments, in a twentieth of torch's time.

    entries: gets the dictionaries that the hook was written to, with its key there, so that the
        caller can remove it.
    A forward hook comes first: it sees the layer's own output, before a hook of the user changes
    it. A hook ``before`` the call comes last.
    """
    attributes, key = vars(module), object()
    hooks = attributes["_forward_pre_hooks" if before else "_forward_hooks"]
    hooks[key] = hook
    if not before and len(hooks) > 1:
        hooks.move_to_end(key, last=False)
    with_kwargs = attributes[
        "_forward_pre_hooks_with_kwargs" if before else "_forward_hooks_with_kwargs"
    ]
    with_kwargs[key] = True
    entries += ((hooks, key), (with_kwargs, key))


def own_memory(output: Tensor) -> Tensor:
    """The output, or a copy of a view that stores its values in another order.

    The gradient that arrives at ``producer`` then has the values in the output's own order.
    """
    base = output._base if output._is_view() else None
    in_order = base is None or (base.is_contiguous() and output.is_contiguous())
    return output if in_order else output.clone()


def producer(output: Tensor) -> Node:
    """The node of the graph that computed the values of a layer's output.

    A hook on the output itself can be lost: a linear layer returns a view, and the first in-place
    change of a view (ReLU(inplace=True)) removes its node from the graph, with its hooks. The node
    of the viewed tensor stays.
    """
    base = output._base if output._is_view() and output._base is not None else output
    assert base.grad_fn is not None
    assert base.numel() == output.numel()
    return base.grad_fn


def leaves_of(x: Tensor) -> list[Tensor]:
    """The leaves of the graph from which a value was computed, such as parameters."""
    if x.is_leaf:
        return [x] if x.requires_grad else []
    variables = (getattr(node, "variable", None) for node in ancestors(x.grad_fn))
    return [variable for variable in variables if isinstance(variable, Tensor)]


def ancestors(end: Node | None) -> Iterator[Node]:
    """The node ``end``, and all nodes whose values its value was computed from, each once."""
    seen: set[Node] = set()
    waiting = [end]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [before for before, _ in node.next_functions]


def force_eager() -> AbstractContextManager[object]:
    """Switch torch.compile off inside the context.

    A model that is compiled with hooks is compiled again for the hooks of every pass, until torch
    gives up. A model that was compiled without hooks may skip them, and its gradients would
    silently be zeros.
    """
    return (
        torch.compiler.set_stance("force_eager")
        if "torch._dynamo" in sys.modules
        else nullcontext()
    )
