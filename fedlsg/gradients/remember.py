"""Forward: what a layer keeps of its input and output for its blocks, and no more.

Symbols: x input, y output, L (m, r), R (r, n) carriers of the weight, u = x R^T.
"""

from dataclasses import dataclass, field

from torch import Tensor
from torch.autograd.graph import Node

from fedlsg.gradients.formulas.layers import StandardizedConvGradients, units
from fedlsg.gradients.formulas.norm import NormGradients, Statistics
from fedlsg.gradients.formulas.standardized import OutputNote, note_output
from fedlsg.gradients.plan import Layer
from fedlsg.gradients.rematerialize import Rematerialized


@dataclass(kw_only=True, eq=False)
class LayerMemory:
    """What one layer keeps from its call until backward.

    ``u`` is x R^T. ``x`` is the input, or its kept units, at in-place version ``version``. ``again`` computes x again
    in backward, if x is not kept. ``note`` is what a carried standardized convolution needs of its output.
    ``statistics`` are those that a norm layer found. ``done`` has gradients that were computed together with another
    one, by parameter.
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
        """Which of "input" and "output" was changed in place after the call; empty if neither was."""
        if self.x is not None and self.x._version != self.version:
            return "input"
        return "output" if self.note is not None and self.note.changed else ""


def needs_input(layer: Layer) -> bool:
    """Whether a block of the layer needs x itself. Norm layers do, but autograd keeps x for them anyway."""
    needed = any(slot.parameter == "weight" and slot.block.part != "L" for slot in layer.slots)
    return needed and not isinstance(layer.formulas, NormGradients)


def remember(layer: Layer, x: Tensor, again: Rematerialized | None = None) -> LayerMemory:
    """What the layer's blocks need of x; x itself only if it cannot be computed ``again``."""
    memory = LayerMemory(again=again)
    for slot in layer.slots:
        if slot.block.part == "L":
            assert layer.carried is not None
            if layer.carried.A is None:
                memory.u = layer.carried.formulas.inner(x, layer.carried.R)
        elif slot.parameter == "weight" and again is None:
            memory.x = x if layer.formulas.selects_late else units(x, layer.formulas.axis, slot.units)
            memory.version = memory.x._version
    return memory


def recall(layer: Layer, memory: LayerMemory) -> None:
    """In backward: compute x again if ``remember`` did not keep it."""
    if memory.again is None:
        return
    x, selects_late = memory.again.read(), layer.formulas.selects_late
    for slot in layer.slots:
        if slot.parameter == "weight" and slot.block.part != "L":
            memory.x = x if selects_late else units(x, layer.formulas.axis, slot.units)


def remember_output(layer: Layer, memory: LayerMemory, x: Tensor, y: Tensor, node: Node | None) -> None:
    """Add what the layer's blocks need of its output y, which ``node`` computed."""
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
    """What the layer's blocks need of its output y beyond u; None for most layers."""
    if layer.carried is not None and isinstance(layer.carried.formulas, StandardizedConvGradients):
        return note_output(layer.carried.formulas.layer, x, y.detach().to(layer.dtype))
    return None
