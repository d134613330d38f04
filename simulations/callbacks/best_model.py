"""The best model: the weights of the round whose test metric was best, in ``best/`` of the run directory."""

from pathlib import Path
from typing import Any

from simulations.callbacks.callback import Callback, Watched
from simulations.callbacks.monitor import Best, Mode, Monitor

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
