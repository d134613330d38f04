"""DP-SGD: dense per-example clipping and Gaussian noise (Abadi et al. 2016)."""

from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import After


def recipe(*, mechanism: Mechanism, after: After) -> Method:
    """Every trainable coordinate, dense."""
    return Method(name="dpsgd", mechanism=mechanism, after=after)
