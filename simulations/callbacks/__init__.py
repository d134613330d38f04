"""What runs around a run: early stopping, the best model, loggers, functions of a user's own.

callback      what a callback is, and how it ends a run
named         the setting ``callbacks``: "early-stopping patience=3; wandb; mine.py:watch"
"""

from simulations.callbacks.callback import Callback, StopRun, Watched
from simulations.callbacks.loggers import MLflow, WeightsAndBiases
from simulations.callbacks.monitored import BestModel, EarlyStopping

__all__ = ["BestModel", "Callback", "EarlyStopping", "MLflow", "StopRun", "Watched", "WeightsAndBiases"]
