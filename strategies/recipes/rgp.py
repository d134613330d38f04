"""RGP: reparametrized gradient perturbation (Yu et al. 2021, Algorithm 1).

Differs from the paper: QR instead of Gram-Schmidt, Poisson batches instead of shuffled ones, all of
Eq. 3 where the authors' vision code uses half of it.
"""

from fedlsg.carriers import LowRankChange, PowerSteps, Rank, Residual, Warmup
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(
    *,
    rank: Rank = 4,
    power_steps: PowerSteps = 1,
    warmup: Warmup = 1,
    residual: Residual = True,
    mechanism: Mechanism,
    server: ServerOptimizer,
) -> Method:
    """Carriers of the historical update W - W_0 after ``warmup`` server updates, of W before; no
    mask.

    ``residual=False`` replaces W by its rank-r part before every round, as App. C tries.
    """
    carrier = LowRankChange(rank=rank, power_steps=power_steps, warmup=warmup, residual=residual)
    return Method(name="rgp", carrier=carrier, mechanism=mechanism, server=server)
