"""A client's private steps in one frame, and the server's step on their sum."""

from fedlsg.training.client import client_step, per_unit
from fedlsg.training.local import (
    Batch,
    Groups,
    LocalTraining,
    Positions,
    accumulated_noise,
    norm_bound,
    together,
)
from fedlsg.training.server import ServerOptimizer, aggregate, make_optimizer, server_step

__all__ = [
    "Batch",
    "Groups",
    "LocalTraining",
    "Positions",
    "ServerOptimizer",
    "accumulated_noise",
    "aggregate",
    "client_step",
    "make_optimizer",
    "norm_bound",
    "per_unit",
    "server_step",
    "together",
]
