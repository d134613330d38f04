"""What a probe pushes through the model: public inputs, targets for them, and the loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.gradients import LossFunction

Draw = Callable[[int, torch.Generator], Any]
"""``draw(count, generator)``: ``count`` public inputs as the model takes them, or a pair (inputs, targets)."""


class CannotDrawError(ValueError):
    """This process must not, or cannot, make the inputs of a probe: what it would derive has to be sent to it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProbeSource:
    """Public inputs of a probe, and the loss of the workload.

    ``name`` is what a report prints. ``draw`` is deterministic in its generator, and reads public values only; it is
    None where this process cannot draw.
    ``num_classes`` is None where ``draw`` gives targets; otherwise targets are drawn here.
    """

    name: str
    draw: Draw | None
    loss: LossFunction
    num_classes: int | None = None

    def drawn(self, count: int, generator: torch.Generator) -> Any:
        """What ``draw`` gives. Raises CannotDrawError where this process cannot draw."""
        if self.draw is None:
            raise CannotDrawError(f"the inputs of probe source {self.name!r} are not here: the carriers must be sent")
        return self.draw(count, generator)

    def inputs(self, count: int, generator: torch.Generator) -> Any:
        """``count`` inputs without targets. Raises as ``drawn``."""
        found = self.drawn(count, generator)
        return found[0] if isinstance(found, tuple) else found

    def batch(self, model: nn.Module, count: int, *, trained: bool, generator: torch.Generator) -> tuple[Any, Any]:
        """``count`` inputs with targets: uniform classes at the start, from the model's own prediction once trained.

        Raises ValueError where nothing gives targets, CannotDrawError where this process cannot draw.
        """
        drawn = self.drawn(count, generator)
        if self.num_classes is None:
            if not isinstance(drawn, tuple) or len(drawn) != 2:
                raise ValueError(f"probe source {self.name!r} must give (inputs, targets): the targets are no classes")
            return on_device_of(model, drawn[0]), on_device_of(model, drawn[1])
        inputs = on_device_of(model, drawn[0] if isinstance(drawn, tuple) else drawn)
        if not trained:
            return inputs, on_device_of(model, torch.randint(self.num_classes, (count,), generator=generator))
        with torch.no_grad():
            outputs: Tensor = model(**inputs) if isinstance(inputs, dict) else model(inputs)
        chances = outputs.double().softmax(-1).cpu()
        return inputs, on_device_of(model, torch.multinomial(chances, 1, generator=generator).squeeze(1))


def on_device_of(model: nn.Module, part: Any) -> Any:
    """Inputs or targets, a tensor or tensors by keyword, where the model computes."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return {name: value.to(device) for name, value in part.items()} if isinstance(part, dict) else part.to(device)
