"""LSG: low-rank carriers of W, sparse by unit importance (Ito et al. 2023, Algorithm 1).

Differs from the paper: one joint clip over all blocks (``clip="per-block"`` reproduces the paper's
and is accounted truthfully); the least important units are frozen, as the paper's text says and its
lines 8-9 do not.
"""

from fedlsg.carriers import LowRank, PowerSteps, Rank, Residual
from fedlsg.masks import Direction, Mask, Sparsity, SparsityFrom
from fedlsg.masks.mask import Importance
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(
    *,
    rank: Rank = 4,
    sparsity: Sparsity = 0.3,
    power_steps: PowerSteps = 1,
    residual: Residual = True,
    direction: Direction = "top",
    importance: Importance = "weights",
    sparsity_from: SparsityFrom = 0.0,
    mechanism: Mechanism,
    server: ServerOptimizer,
) -> Method:
    """Carriers of W, unit importance p on the carriers; ``sparsity=0`` is what the paper calls
    RGP.
    """
    return Method(
        name="lsg",
        carrier=LowRank(rank=rank, power_steps=power_steps, residual=residual),
        mask=Mask(
            kind="units",
            sparsity=sparsity,
            direction=direction,
            importance=importance,
            sparsity_from=sparsity_from,
        ),
        mechanism=mechanism,
        server=server,
    )
