"""DP-SGD: dense per-example clipping and Gaussian noise (Abadi et al. 2016)."""

from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(*, mechanism: Mechanism, server: ServerOptimizer) -> Method:
    """Every trainable coordinate, dense."""
    return Method(name="dpsgd", mechanism=mechanism, server=server)
