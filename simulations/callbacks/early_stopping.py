"""Early stopping: end a run whose test metric no longer improves. The other rounds then spend no epsilon."""

from typing import Annotated, Any

from fedlsg.setting import Setting
from simulations.callbacks.callback import Callback, StopRun, Watched
from simulations.callbacks.monitor import Best, Mode, Monitor

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
