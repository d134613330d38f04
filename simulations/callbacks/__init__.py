"""What runs around a run: early stopping, the best model, loggers, functions of a user's own.

callback      what a callback is, and how it ends a run
named         the setting ``callbacks``: "early-stopping patience=3; wandb; mine.py:watch"
"""

from simulations.callbacks.best_model import BestModel
from simulations.callbacks.callback import Callback, StopRun, Watched
from simulations.callbacks.early_stopping import EarlyStopping
from simulations.callbacks.mlflow import MLflow
from simulations.callbacks.wandb import WeightsAndBiases

__all__ = ["BestModel", "Callback", "EarlyStopping", "MLflow", "StopRun", "Watched", "WeightsAndBiases"]
