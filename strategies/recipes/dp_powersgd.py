"""DP-PowerSGD: dense DP-SGD whose noisy update is sent as rank-r factors (Vogels et al. 2019;
baseline of RGP).
"""

from fedlsg.carriers import Factors, PowerSteps, Rank, Warmup
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(
    *,
    rank: Rank = 4,
    power_steps: PowerSteps = 1,
    warmup: Warmup = 1,
    mechanism: Mechanism,
    server: ServerOptimizer,
) -> Method:
    """Dense per-example gradients, clip and noise; one power step from a shared start makes the
    factors.
    """
    carrier = Factors(rank=rank, power_steps=power_steps, warmup=warmup)
    return Method(name="dp-powersgd", carrier=carrier, mechanism=mechanism, server=server)
