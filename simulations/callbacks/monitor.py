"""Whether a column of rounds.csv got better: what early stopping and the best model wait for."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fedlsg.setting import Setting

Monitor = Annotated[str, Setting("Column of rounds.csv that is watched.")]
Mode = Annotated[
    Literal["auto", "max", "min"], Setting("Whether more is better; auto: less for a loss, more for the others.")
]


class Best:
    """The best value of a column so far. ``offer`` says whether a row improved it by more than ``least``."""

    def __init__(self, monitor: str, mode: str, least: float = 0.0) -> None:
        self.monitor, self.least = monitor, least
        self._sign = -1.0 if mode == "min" or (mode == "auto" and "loss" in monitor) else 1.0
        self.value: float | None = None
        self.round: int | None = None

    def measured(self, row: Mapping[str, Any]) -> float | None:
        """The value of a row; None if the round was not evaluated. Raises ValueError for an unknown column."""
        if self.monitor not in row:
            raise ValueError(f"monitor={self.monitor!r} is no column of rounds.csv: expected one of {', '.join(row)}")
        value = row[self.monitor]
        if value is not None and not isinstance(value, int | float):
            raise ValueError(f"monitor={self.monitor!r} holds {value!r}: expected a column of numbers")
        return None if value is None or math.isnan(value) else float(value)

    def offer(self, row: Mapping[str, Any]) -> bool:
        """Take the row's value if it is better."""
        value = self.measured(row)
        if value is None or (self.value is not None and self._sign * (value - self.value) <= self.least):
            return False
        self.value, self.round = value, int(row["round"])
        return True
