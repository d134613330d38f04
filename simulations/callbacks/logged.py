"""What loggers are given of a run: public values, by names that every logger takes."""

import math
from importlib import import_module
from typing import Any

from fedlsg.user_code import shown
from simulations.callbacks.callback import Columns
from simulations.rundir.tables import scalars_of

PLACES = ("run_dir", "data_dir", "data_root", "callbacks")
RESULTS = (
    "accuracy", "loss", "private", "epsilon_max", "epsilon_median", "delta", "rounds", "uplink_bytes", "downlink_bytes",
)  # fmt: skip
"""Of summary.json. ``private`` (1 or 0) goes with epsilon: a run in test mode has an epsilon and no privacy."""


def extra(package: str) -> Any:
    """A package that is an extra of fedlsg. Raises ValueError, with the command, if it is not installed."""
    try:
        return import_module(package)
    except ImportError as error:
        raise ValueError(f"callbacks={package} needs the package: pip install 'fedlsg[{package}]' ({error})") from None


def metrics_of(row: Columns) -> dict[str, float]:
    """The numbers of a round, by TensorBoard's tags."""
    return scalars_of(row)


def names_of(settings: Columns) -> dict[str, Any]:
    """The settings that are set, without the folders of this machine."""
    said = {name: value for name, value in settings.items() if value is not None and name not in PLACES}
    return {name: shown(value) if isinstance(value, str) else value for name, value in said.items()}


def results_of(summary: Columns) -> dict[str, float]:
    """The finite numbers of the results."""
    found = {f"final/{name}": summary.get(name) for name in RESULTS}
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}
