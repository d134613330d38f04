"""RGP: reparametrized gradient perturbation (Yu et al. 2021, Algorithm 1).

Differs from the paper: QR instead of Gram-Schmidt, Poisson batches instead of shuffled ones.
The authors' code differs from their paper: it divides both weights by their norms before it
subtracts them (``history``), sends half of Eq. 3 for images (``factors``), and trains no bias, norm
or embedding of BERT (``trained``). All of that is public: no setting reads a gradient.
"""

from fedlsg.carriers import LowRankChange, PowerSteps, Rank, Residual, Warmup
from fedlsg.carriers.low_rank import Factor, History, Trained
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(
    *,
    rank: Rank = 4,
    power_steps: PowerSteps = 1,
    warmup: Warmup = 1,
    residual: Residual = True,
    history: History = "difference",
    factors: Factor = "both",
    trained: Trained = "all",
    mechanism: Mechanism,
    server: ServerOptimizer,
) -> Method:
    """Carriers of the historical update W - W_0 after ``warmup`` server updates, of W before; no
    mask.

    ``residual=False`` replaces W by its rank-r part before every round, as App. C tries.
    """
    carrier = LowRankChange(
        rank=rank,
        power_steps=power_steps,
        warmup=warmup,
        residual=residual,
        history=history,
        factors=factors,
        train=trained,
    )
    return Method(name="rgp", carrier=carrier, mechanism=mechanism, server=server)
