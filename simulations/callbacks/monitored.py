"""What watches a column of rounds.csv: early stopping, and the weights of the best round."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from fedlsg.setting import Setting
from simulations.callbacks.callback import Callback, StopRun, Watched

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


Patience = Annotated[int, Setting("Evaluations without improvement before a run is stopped.", at_least=1)]
MinDelta = Annotated[float, Setting("Smallest change that counts as an improvement.", at_least=0)]


class EarlyStopping(Callback):
    """Stop after ``patience`` evaluations in a row in which ``monitor`` did not improve by more than ``min_delta``.

    Rounds that are not evaluated do not count. A resumed run counts the rounds before it as well.
    """

    def __init__(
        self, *, monitor: Monitor = "accuracy", patience: Patience = 5, min_delta: MinDelta = 0.0, mode: Mode = "auto"
    ) -> None:
        if patience < 1 or min_delta < 0:
            raise ValueError(f"early stopping: expected {patience=} >= 1 and {min_delta=} >= 0")
        self.monitor, self.patience, self.min_delta, self.mode = monitor, patience, min_delta, mode
        self._start()

    def _start(self) -> None:
        self._best, self._waited = Best(self.monitor, self.mode, self.min_delta), 0

    def on_begin(self, run: Watched) -> None:
        self._start()
        for row in run.rows:
            self._count(row)
        self._stop_if_due()

    def on_round(self, row: dict[str, Any]) -> None:
        self._count(row)
        self._stop_if_due()

    def _count(self, row: Any) -> None:
        if self._best.measured(row) is not None:
            self._waited = 0 if self._best.offer(row) else self._waited + 1

    def _stop_if_due(self) -> None:
        if self._waited >= self.patience:
            raise StopRun(
                f"early stopping: {self.monitor} was best in round {self._best.round} ({self._best.value:.4g}), and "
                f"{self._waited} evaluations since then were no better"
            )


FOLDER = "best"


class BestModel(Callback):
    """Write ``best/model.safetensors`` and ``best/config.json`` whenever ``monitor`` improves.

    The run's own ``model.safetensors`` stays the last one. The test accuracy of the best round is optimistic: the round
    was chosen by it.
    """

    def __init__(self, *, monitor: Monitor = "accuracy", mode: Mode = "auto") -> None:
        self.monitor, self.mode = monitor, mode

    def on_begin(self, run: Watched) -> None:
        self._best, self._run = Best(self.monitor, self.mode), run
        better = [self._best.offer(row) for row in run.rows]
        if better and better[-1]:  # the process before may have ended between the round and its copy
            run.save_model(Path(run.path) / FOLDER)

    def on_round(self, row: dict[str, Any]) -> None:
        if self._best.offer(row):
            self._run.save_model(Path(self._run.path) / FOLDER)
