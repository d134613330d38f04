"""A client's private steps in one frame, and the server's step on their sum."""

from fedlsg.training.client import client_step, per_unit
from fedlsg.training.compression import Compression, TopkRate, check_memory, largest
from fedlsg.training.local import Batch, Groups, LocalTraining, Positions, accumulated_noise, norm_bound
from fedlsg.training.microbatches import together
from fedlsg.training.server import aggregate, server_step
from fedlsg.training.server_optimizer import ServerOptimizer, make_optimizer

__all__ = [
    "Batch",
    "Compression",
    "Groups",
    "LocalTraining",
    "Positions",
    "ServerOptimizer",
    "TopkRate",
    "accumulated_noise",
    "aggregate",
    "check_memory",
    "client_step",
    "largest",
    "make_optimizer",
    "norm_bound",
    "per_unit",
    "server_step",
    "together",
]  # fmt: skip
