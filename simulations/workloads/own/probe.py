"""A user's function of public inputs, as a probe calls it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedlsg import user_code
from fedlsg.carriers.probe.source import Draw


@dataclass(frozen=True, eq=False)
class CheckedDraw:
    """``draw(count, generator)`` of a user; what it gives must have one row for each input that was asked for."""

    draw: Draw
    name: str

    def __call__(self, count: int, generator: torch.Generator) -> Any:
        """Raises ValueError for something else; ImportError, naming file and line, for code that fails."""
        drawn = user_code.run(self.name, lambda: self.draw(count, generator))
        inputs = drawn[0] if isinstance(drawn, tuple) and len(drawn) == 2 else drawn
        fields = list(inputs.values()) if isinstance(inputs, dict) else [inputs]
        if not fields or not all(isinstance(value, Tensor) and value.ndim and len(value) == count for value in fields):
            found = [tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__ for value in fields]
            raise ValueError(
                f"probe source {self.name} gave {found} for count={count}: return a tensor (count, ...), a dict of "
                "them, or a pair (inputs, targets)"
            )
        return drawn
