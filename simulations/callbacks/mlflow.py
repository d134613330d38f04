"""MLflow: settings, the numbers of each round and the results of a run (pip install "fedlsg[mlflow]").

MLflow's own variables say where they go: MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME; by default a file here.
"""

from typing import Annotated, Any

from fedlsg.setting import Setting
from simulations.callbacks.callback import Callback, Columns, Watched
from simulations.callbacks.logged import extra, metrics_of, names_of, results_of
from simulations.rundir.files.atomic import write_atomically

RUN_ID = "mlflow-run-id"
"""File of the run directory: a resumed run continues the same run of MLflow."""


class MLflow(Callback):
    """Log a run to MLflow. ``experiment``: its experiment; by default what MLflow's own variable says."""

    def __init__(self, *, experiment: Annotated[str, Setting("Experiment of MLflow.")] = "") -> None:
        self._mlflow, self.experiment = extra("mlflow"), experiment

    def on_begin(self, run: Watched) -> None:
        if self.experiment:
            self._mlflow.set_experiment(self.experiment)
        file = run.path / RUN_ID
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
        self._mlflow.end_run("KILLED" if isinstance(error, KeyboardInterrupt | SystemExit) else "FAILED")
