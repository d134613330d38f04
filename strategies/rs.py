"""RS: random-sparsified DP-SGD (Zhu and Blaschko 2023, Algorithm 1)."""

from fedlsg.after import After
from fedlsg.masks import Mask
from fedlsg.method import Method
from fedlsg.privatize import Mechanism


def recipe(
    *,
    sparsity: float = 0.5,
    cooling: bool = True,
    mechanism: Mechanism,
    after: After,
) -> Method:
    """Dense gradients, a uniformly random mask a epoch; with ``cooling`` its rate ramps from 0 to ``sparsity``."""
    mask = Mask(kind="uniform", sparsity=sparsity, cooling=cooling)
    return Method(name="rs", mask=mask, mechanism=mechanism, after=after)
