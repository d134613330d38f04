"""Where values that all examples share enter a pass (``uses``), and the frame's blocks that take their gradients."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedlsg.frame import Frame
from fedlsg.gradients.called import Graph, settle
from fedlsg.gradients.calls.ways import Place
from fedlsg.gradients.formulas.rows import Lazy, ProductGradients, RowGradients
from fedlsg.gradients.formulas.tied import TiedGradients, tied
from fedlsg.gradients.plan import Slot, make_slot
from fedlsg.gradients.uses import Uses


@contextmanager
def replace_parameters(model: nn.Module, frame: Frame, places: Mapping[str, list[Place]], uses: Uses) -> Iterator[None]:
    """Inside the context, the parameters at ``places`` are Unbatched; their gradients go to the frame's blocks."""
    slots = {block.parameter: make_slot(i, block) for i, block in enumerate(frame.blocks)}
    saved = [(module, own, module._parameters[own]) for found in places.values() for module, own in found]
    frozen = [*model.buffers(), *(p for p in model.parameters() if not p.requires_grad)]
    uses.constant |= {t.untyped_storage().data_ptr() for t in frozen}
    try:
        for name, found in places.items():
            p = found[0][0]._parameters[found[0][1]]
            assert p is not None
            leaf = uses.source(p, name, to_slot(uses.step, slots[name]))
            for module, own in found:
                module._parameters[own] = leaf  # type: ignore[assignment]
        yield
    finally:
        for module, own, p in saved:
            module._parameters[own] = p
        uses.forget()


def table(uses: Uses, module: nn.Embedding, slot: Slot, ids: Tensor, output: Tensor) -> Tensor:
    """The output of an embedding that was read without the batch, as an Unbatched value."""
    uses.note_rows((slot.block.parameter,), ids)

    def receive(parts: Sequence[Tensor | Lazy]) -> None:
        dense = [part for part in parts if isinstance(part, Tensor)]
        if dense:
            g = torch.stack(dense).sum(0).reshape(uses.step.batch, -1, output.shape[-1])
            rows = RowGradients(module, g, ids.reshape(1, -1).expand(len(g), -1), g._version, module.padding_idx)  # type: ignore[arg-type]
            uses.step.values[slot.position] = settle(rows, slot, ghost=uses.step.ghost)

    return uses.source(output, slot.block.parameter, receive)


def to_slot(step: Graph, slot: Slot) -> Callable[[Sequence[Tensor | Lazy]], None]:
    """Put the sum of a parameter's gradients in its block."""

    def receive(parts: Sequence[Tensor | Lazy]) -> None:
        if len(parts) == 1:
            step.values[slot.position] = settle(parts[0], slot, ghost=step.ghost)
        elif step.ghost and slot.block.kept == slot.block.size and slot.block.weight == 1 and (both := tie(parts)):
            step.values[slot.position] = both
        elif parts:
            settled = [settle(part, slot, ghost=False) for part in parts]
            step.values[slot.position] = torch.stack(settled).sum(0) if len(settled) > 2 else settled[0] + settled[1]

    return receive


def tie(parts: Sequence[Tensor | Lazy]) -> TiedGradients | None:
    """The gradients of a linear and an embedding use as factors, if there is no other and ghost clipping is cheaper."""
    tables = [part for part in parts if isinstance(part, RowGradients)]
    linear = [part for part in parts if isinstance(part, ProductGradients)]
    if len(parts) != 2 or len(tables) != 1 or len(linear) != 1 or not linear[0].cheaper:
        return None
    return tied(linear[0], tables[0])
