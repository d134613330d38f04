"""RGP-random: the same with random orthonormal carriers (Yu et al. 2021, sec. 4)."""

from fedlsg.after import After
from fedlsg.carriers import Carrier
from fedlsg.method import Method
from fedlsg.privatize import Mechanism


def recipe(*, rank: int = 4, mechanism: Mechanism, after: After) -> Method:
    """Carriers drawn anew each round from the public seed; no mask."""
    return Method(name="rgp-random", carrier=Carrier(kind="random", rank=rank), mechanism=mechanism, after=after)
