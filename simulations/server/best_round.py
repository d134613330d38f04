"""Callbacks that watch a test score: stop a run that stops improving, keep the best model."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from fedlsg.config import Setting
from fedlsg.config.choices import choose
from fedlsg.simulations.server.callbacks import Callback, Columns, Directions, StopRun, Watched

Monitor = Annotated[
    str, Setting("What is watched: accuracy, loss or a metric of the workload's own.")
]
Mode = Annotated[
    Literal["auto", "max", "min"],
    Setting("Whether more is better; auto: as the metric declares it, or by its name."),
]


class Best:
    """The best value of a column so far, and its round; None before the first value."""

    def __init__(
        self, directions: Directions, monitor: str, mode: Mode, least: float = 0.0
    ) -> None:
        """Watch the column ``monitor``; an improvement is a change by more than ``least``.

        Raises ValueError, with the line to write, for a column that is not measured, and for one of
        which nobody knows whether more is better.
        """
        self.monitor, self.least = monitor, least
        declared = choose("monitor", monitor, directions)
        higher = choose("mode", mode, {"auto": declared, "max": True, "min": False})
        if higher is None:
            function = monitor if monitor.isidentifier() else "function"
            raise ValueError(
                f"monitor={monitor!r}: mode='auto' does not know whether more or less is better: "
                f"write metrics={{{monitor!r}: fedlsg.Lower({function})}} or mode='min' if less is,"
                f" metrics={{{monitor!r}: fedlsg.Higher({function})}} or mode='max' if more is"
            )
        self._sign = 1.0 if higher else -1.0
        self.value: float | None = None
        self.round: int | None = None

    def offer(self, row: Columns) -> bool:
        """Take the row's value if it is better, and say whether it is; only finite values are."""
        value = row.get(self.monitor)
        if (
            value is None
            or not math.isfinite(value)
            or (self.value is not None and self._sign * (value - self.value) <= self.least)
        ):
            return False
        self.value, self.round = value, int(row["round"])
        return True


Patience = Annotated[
    int, Setting("Evaluations without improvement before a run is stopped.", at_least=1)
]
MinDelta = Annotated[float, Setting("Smallest change that counts as an improvement.", at_least=0)]


class EarlyStopping(Callback):
    """Stop after ``patience`` evaluations in a row in which ``monitor`` did not improve by more
    than ``min_delta``.

    Rounds that are not evaluated do not count; a value that is not finite (NaN, infinite) is
    no improvement. A resumed run counts the rounds before it as well.
    """

    def __init__(
        self,
        *,
        monitor: Monitor = "accuracy",
        patience: Patience = 5,
        min_delta: MinDelta = 0.0,
        mode: Mode = "auto",
    ) -> None:
        if patience < 1 or min_delta < 0:
            raise ValueError(f"early stopping: expected {patience=} >= 1 and {min_delta=} >= 0")
        self.monitor, self.patience, self.min_delta, self.mode = monitor, patience, min_delta, mode

    def on_plan(self, directions: Directions) -> None:
        self._best, self._waited = Best(directions, self.monitor, self.mode, self.min_delta), 0

    def on_begin(self, run: Watched) -> None:
        self.on_plan(run.directions)
        for row in run.rows:
            self._count(row)
        self._stop_if_due()

    def on_round(self, row: dict[str, Any]) -> None:
        self._count(row)
        self._stop_if_due()

    def _count(self, row: Columns) -> None:
        if row.get(self.monitor) is not None:
            self._waited = 0 if self._best.offer(row) else self._waited + 1

    def _stop_if_due(self) -> None:
        if self._waited < self.patience:
            return
        if self._best.value is None:
            raise StopRun(
                f"early stopping: {self.monitor} was no finite number in {self._waited} evaluations"
            )
        raise StopRun(
            f"early stopping: {self.monitor} was best in round {self._best.round} "
            f"({self._best.value:.4g}), and {self._waited} evaluations since then were no better"
        )


BEST_FOLDER = "best"


class BestModel(Callback):
    """Write ``best/model.safetensors`` and ``best/config.json`` whenever ``monitor`` improves.

    The run's own ``model.safetensors`` stays the last one. The test accuracy of the best round is
    optimistic: the round was chosen by it.
    """

    def __init__(self, *, monitor: Monitor = "accuracy", mode: Mode = "auto") -> None:
        self.monitor, self.mode = monitor, mode

    def on_plan(self, directions: Directions) -> None:
        self._best = Best(directions, self.monitor, self.mode)

    def on_begin(self, run: Watched) -> None:
        self.on_plan(run.directions)
        self._run = run
        better = [self._best.offer(row) for row in run.rows]
        # the process before may have ended between the round and its copy
        if better and better[-1]:
            run.save_model(Path(run.path) / BEST_FOLDER)

    def on_round(self, row: dict[str, Any]) -> None:
        if self._best.offer(row):
            self._run.save_model(Path(self._run.path) / BEST_FOLDER)
