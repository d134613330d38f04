"""DP-SGD: dense per-example clipping and Gaussian noise (Abadi et al. 2016)."""

from fedlsg.after import After
from fedlsg.method import Method
from fedlsg.privatize import Mechanism


def recipe(*, mechanism: Mechanism, after: After) -> Method:
    """Every trainable coordinate, dense."""
    return Method(name="dpsgd", mechanism=mechanism, after=after)
