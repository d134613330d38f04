"""A client's private steps in one frame, and the server's step on their sum."""

from fedlsg.training.client_round import client_step, per_unit
from fedlsg.training.local_training import (
    Batch,
    Groups,
    LocalTraining,
    Positions,
    accumulated_noise,
    norm_bound,
    together,
)
from fedlsg.training.persons import Persons
from fedlsg.training.server_round import ServerOptimizer, aggregate, make_optimizer, server_step

__all__ = [
    "Batch",
    "Groups",
    "LocalTraining",
    "Persons",
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
