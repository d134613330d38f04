"""RS: random-sparsified DP-SGD (Zhu and Blaschko 2023, Algorithm 1).

``mechanism="noise-only"`` and ``"clip-only"`` are the paper's ablations, Algorithms 2 and 3 (its
Appendix E); ``ranking="gradients"`` is its ranked sparsification, Algorithm 4.
"""

from fedlsg.carriers import Rank, StepCarrier, step_carrier
from fedlsg.masks import Mask, Sparsity, SparsityFrom
from fedlsg.masks.mask import Cooling, Ranking, Redraw
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(
    *,
    sparsity: Sparsity = 0.5,
    cooling: Cooling = True,
    redraw: Redraw = "epoch",
    ranking: Ranking = "random",
    sparsity_from: SparsityFrom = 0.0,
    carrier: StepCarrier = "dense",
    rank: Rank = 4,
    mechanism: Mechanism,
    server: ServerOptimizer,
) -> Method:
    """A uniformly random mask over all coordinates; with ``cooling`` its rate ramps from 0 to
    ``sparsity``.

    On dense gradients, or on those of low-rank carriers of ``rank`` (which dense gradients do not
    look at).
    """
    return Method(
        name="rs",
        carrier=step_carrier(carrier, rank),
        mask=Mask(
            kind="uniform",
            sparsity=sparsity,
            cooling=cooling,
            redraw=redraw,
            ranking=ranking,
            sparsity_from=sparsity_from,
        ),
        mechanism=mechanism,
        server=server,
    )
