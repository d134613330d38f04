"""Weights & Biases: settings, the numbers of each round and the results of a run (pip install "fedlsg[wandb]").

Its own variables say where they go: WANDB_MODE=offline keeps them in ``wandb/`` of the run directory.
"""

import secrets
from typing import Annotated, Any

from fedlsg.setting import Setting
from simulations.callbacks.callback import Callback, Columns, Watched
from simulations.callbacks.logged import extra, metrics_of, names_of, results_of
from simulations.rundir.files.atomic import write_atomically

RUN_ID = "wandb-run-id"
"""File of the run directory: a resumed run continues the same run of Weights & Biases."""


class WeightsAndBiases(Callback):
    """Log a run to Weights & Biases. ``project``: its project; a resumed run continues the same run."""

    def __init__(self, *, project: Annotated[str, Setting("Project of Weights & Biases.")] = "fedlsg") -> None:
        self._wandb, self.project = extra("wandb"), project
        self._run: Any = None

    def on_begin(self, run: Watched) -> None:
        file = run.path / RUN_ID
        if not file.exists():
            write_atomically(file, f"{secrets.token_hex(4)}\n".encode())
        try:
            self._run = self._wandb.init(
                project=self.project, name=run.path.name, id=file.read_text().strip(), resume="allow",
                dir=str(run.path), config=names_of(run.settings),
                settings=self._wandb.Settings(console="off", save_code=False, disable_git=True),
            )  # fmt: skip
        except self._wandb.Error as error:
            raise ValueError(f"callbacks=wandb: {error} (WANDB_MODE=offline needs no account)") from None

    def on_round(self, row: dict[str, Any]) -> None:
        self._run.log(metrics_of(row), step=row["round"])

    def on_end(self, summary: Columns) -> None:
        self._run.summary.update(results_of(summary))
        self._run.finish()

    def on_failure(self, error: BaseException) -> None:
        if self._run is not None:
            self._run.finish(exit_code=1)
