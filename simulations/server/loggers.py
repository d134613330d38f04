"""Callbacks that log a run to MLflow or Weights & Biases.

They send its settings, the numbers of each round and the results, which are all public. Variables
of these programs say where to: MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME (by default a file
here); WANDB_MODE=offline keeps everything in ``wandb/`` of the run directory.
"""

import math
import secrets
from importlib import import_module
from typing import Annotated, Any

from fedlsg.config import Setting
from fedlsg.simulations.server.callbacks import Callback, Columns, Watched
from fedlsg.simulations.settings.settings import FOLDERS
from fedlsg.simulations.storage.atomic_files import write_atomically
from fedlsg.simulations.storage.round_tables import scalars_of
from fedlsg.user_code import shown

RESULTS = (
    "accuracy",
    "loss",
    "private",
    "epsilon_max",
    "epsilon_median",
    "delta",
    "rounds",
    "uplink_bytes",
    "downlink_bytes",
)
"""Entries of summary.json that are logged.

An infinite epsilon is left out, and ``private`` (1 or 0) says why."""


def extra(package: str) -> Any:
    """Import an optional package. Raises ValueError, with the command, if it is not installed."""
    try:
        return import_module(package)
    except ImportError as error:
        raise ValueError(
            f"callbacks={package} needs the package: pip install 'fedlsg[{package}]' ({error})"
        ) from None


def metrics_of(row: Columns) -> dict[str, float]:
    """The numbers of a round, by TensorBoard's tags."""
    return scalars_of(row)


def names_of(settings: Columns) -> dict[str, Any]:
    """The settings that are not None, without the folders of this machine."""
    hidden = (*FOLDERS, "callbacks")
    return {
        name: shown(value) if isinstance(value, str) else value
        for name, value in settings.items()
        if value is not None and name not in hidden
    }


def results_of(summary: Columns) -> dict[str, float]:
    """The finite numbers among the results, as "final/NAME"."""
    values = {f"final/{name}": summary.get(name) for name in RESULTS}
    return {
        name: float(value)
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    }


class MLflow(Callback):
    """Log a run to MLflow. ``experiment``: its name; by default MLFLOW_EXPERIMENT_NAME."""

    def __init__(
        self, *, experiment: Annotated[str, Setting("Experiment of MLflow.")] = ""
    ) -> None:
        self._mlflow, self.experiment = extra("mlflow"), experiment

    def on_begin(self, run: Watched) -> None:
        if self.experiment:
            self._mlflow.set_experiment(self.experiment)
        file = run.path / "mlflow-run-id"  # a resumed run continues the same run
        if file.exists():
            self._mlflow.start_run(run_id=file.read_text().strip())
            return
        started = self._mlflow.start_run(run_name=run.path.name)
        write_atomically(file, f"{started.info.run_id}\n".encode())
        self._mlflow.log_params(names_of(run.settings))

    def on_round(self, row: dict[str, Any]) -> None:
        self._mlflow.log_metrics(metrics_of(row), step=row["round"])

    def on_end(self, summary: Columns) -> None:
        self._mlflow.log_metrics(results_of(summary))
        self._mlflow.end_run()

    def on_failure(self, error: BaseException) -> None:
        self._mlflow.end_run(
            "KILLED" if isinstance(error, KeyboardInterrupt | SystemExit) else "FAILED"
        )


class WeightsAndBiases(Callback):
    """Log a run to Weights & Biases, in ``project``; a resumed run continues its run there."""

    def __init__(
        self, *, project: Annotated[str, Setting("Project of Weights & Biases.")] = "fedlsg"
    ) -> None:
        self._wandb, self.project = extra("wandb"), project
        self._run: Any = None

    def on_begin(self, run: Watched) -> None:
        file = run.path / "wandb-run-id"
        if not file.exists():
            write_atomically(file, f"{secrets.token_hex(4)}\n".encode())
        try:
            self._run = self._wandb.init(
                project=self.project,
                name=run.path.name,
                id=file.read_text().strip(),
                resume="allow",
                dir=str(run.path),
                config=names_of(run.settings),
                settings=self._wandb.Settings(console="off", save_code=False, disable_git=True),
            )
        except self._wandb.Error as error:
            raise ValueError(
                f"callbacks=wandb: {error} (WANDB_MODE=offline needs no account)"
            ) from None

    def on_round(self, row: dict[str, Any]) -> None:
        self._run.log(metrics_of(row), step=row["round"])

    def on_end(self, summary: Columns) -> None:
        self._run.summary.update(results_of(summary))
        self._run.finish()

    def on_failure(self, error: BaseException) -> None:
        if self._run is not None:
            self._run.finish(exit_code=1)
