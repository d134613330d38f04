"""RGP-random: the same with random orthonormal carriers (Yu et al. 2021, sec. 4)."""

from fedlsg.carriers import Carrier, Rank
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import After


def recipe(*, rank: Rank = 4, mechanism: Mechanism, after: After) -> Method:
    """Carriers drawn each round from the public seed; no mask."""
    return Method(name="rgp-random", carrier=Carrier(kind="random", rank=rank), mechanism=mechanism, after=after)
