"""RGP with random orthonormal carriers (Yu et al. 2021, sec. 4)."""

from fedlsg.carriers import RandomCarriers, Rank
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(*, rank: Rank = 4, mechanism: Mechanism, server: ServerOptimizer) -> Method:
    """Carriers drawn each round from the public seed; no mask."""
    return Method(
        name="rgp-random", carrier=RandomCarriers(rank=rank), mechanism=mechanism, server=server
    )
