"""Callbacks of fedlsg, and the setting ``callbacks``: their names with parameters, "early-stopping
patience=3; wandb".

EarlyStopping and BestModel watch what is measured on the test splits. The loggers send settings,
the numbers of each round and the results, all of them public, to MLflow and Weights & Biases.
Variables of their own say where these go: MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME (by
default a file here); WANDB_MODE=offline keeps them in ``wandb/`` of the run directory.
"""

import math
import secrets
from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import isclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from fedlsg.config import Setting, declared, unknown
from fedlsg.config.choices import choose, did_you_mean
from fedlsg.simulations.server.callbacks import (
    Callback,
    Columns,
    Directions,
    Function,
    StopRun,
    Watched,
)
from fedlsg.simulations.settings.settings import FOLDERS, callback_words
from fedlsg.simulations.storage.atomic_files import write_atomically
from fedlsg.simulations.storage.round_tables import scalars_of
from fedlsg.user_code import is_reference, load, shown

Monitor = Annotated[
    str, Setting("What is watched: accuracy, loss or a metric of the workload's own.")
]
Mode = Annotated[
    Literal["auto", "max", "min"],
    Setting("Whether more is better; auto: as the metric declares it, or by its name."),
]


class Best:
    """The best value of a column so far. ``offer`` says whether a row improved it by more than
    ``least``.

    Raises ValueError, with the line to write, for a column that is not measured, and one of which
    nobody knows whether more is better.
    """

    def __init__(
        self, directions: Directions, monitor: str, mode: Mode, least: float = 0.0
    ) -> None:
        self.monitor, self.least = monitor, least
        known = choose("monitor", monitor, directions)
        higher = choose("mode", mode, {"auto": known, "max": True, "min": False})
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
        """Take the row's value if it is better; one that is no finite number never is."""
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

    Rounds that are not evaluated do not count; a value that is no finite number (NaN, infinite) is
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


FOLDER = "best"


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
            run.save_model(Path(run.path) / FOLDER)

    def on_round(self, row: dict[str, Any]) -> None:
        if self._best.offer(row):
            self._run.save_model(Path(self._run.path) / FOLDER)


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
"""Of summary.json. ``private`` (1 or 0) goes with epsilon, which is infinite without privacy."""


def extra(package: str) -> Any:
    """A package that is an extra of fedlsg. Raises ValueError, with the command, if it is not
    installed.
    """
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
    """The settings that are set, without the folders of this machine."""
    hidden = (*FOLDERS, "callbacks")
    said = {
        name: value for name, value in settings.items() if value is not None and name not in hidden
    }
    return {name: shown(value) if isinstance(value, str) else value for name, value in said.items()}


def results_of(summary: Columns) -> dict[str, float]:
    """The finite numbers of the results."""
    found = {f"final/{name}": summary.get(name) for name in RESULTS}
    return {
        name: float(value)
        for name, value in found.items()
        if value is not None and math.isfinite(value)
    }


class MLflow(Callback):
    """Log a run to MLflow. ``experiment``: its experiment; by default what MLflow's own variable
    says.
    """

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
    """Log a run to Weights & Biases. ``project``: its project; a resumed run continues the same
    run.
    """

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


BUILT_IN: Mapping[str, type[Callback]] = MappingProxyType(
    {
        "early-stopping": EarlyStopping,
        "best-model": BestModel,
        "mlflow": MLflow,
        "wandb": WeightsAndBiases,
    }
)


def named(text: str | None) -> tuple[Callback, ...]:
    """The callbacks of a setting. Raises ValueError for an unknown name or parameter, with the
    nearest known one.
    """
    return tuple(_callback(*words) for words in callback_words(text or ""))


def _callback(name: str, *given: str) -> Callback:
    if is_reference(name):
        return _own(name, load(name, "callback"), given)
    if name not in BUILT_IN:
        known = ", ".join(BUILT_IN)
        raise ValueError(
            f"callbacks: unknown name {name!r}{did_you_mean(name, BUILT_IN)}; expected {known} or "
            "FILE.py:NAME"
        )
    return BUILT_IN[name](**_parameters(name, BUILT_IN[name], given))


def _own(name: str, found: Any, given: tuple[str, ...]) -> Callback:
    """A class of a user's own, made here, or a function of a row."""
    if isclass(found) and issubclass(found, Callback):
        return found(**_parameters(name, found, given))
    if isinstance(found, Callback) or not callable(found) or given:
        raise ValueError(
            f"callbacks: expected {name} to be a class of fedlsg.Callback, or a function of a dict "
            "without parameters"
        )
    return Function(found)


def _parameters(name: str, of: Callable[..., Callback], given: tuple[str, ...]) -> dict[str, Any]:
    known = declared(of.__init__, without=("self",))  # the hints of a class are those of its fields
    found = {}
    for part in given:
        key, equals, value = part.partition("=")
        key = key.replace("-", "_")
        if not equals:
            raise ValueError(f"callbacks: expected {part!r} of {name} as parameter=value")
        if key not in known:
            raise unknown(f"parameter of {name}", key, known)
        found[key] = known[key].parse(value)
    return found
