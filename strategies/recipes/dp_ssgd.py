"""DP-SSGD: pruning before training, and gradients dropped in every step (Adamczewski et al. 2023,
Algorithm 1).

Differs from the paper: DP-SNIP clips each example's saliency, not a sum, and is entered in the
ledger; with it the whole run keeps within epsilon, rather than epsilon_pp + epsilon_gd by simple
addition.
"""

from fedlsg.masks import Mask, Prune
from fedlsg.masks.mask import Drop, DropRate
from fedlsg.masks.pruning import PruneClipNorm, PruneEpsilonShare, PruneKind, PruneRate
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(
    *,
    prune: PruneKind = "synflow",
    prune_rate: PruneRate = 0.3,
    prune_epsilon_share: PruneEpsilonShare = 0.1,
    prune_clip_norm: PruneClipNorm = 1.0,
    drop: Drop = "random",
    drop_rate: DropRate = 0.5,
    mechanism: Mechanism,
    server: ServerOptimizer,
) -> Method:
    """A share ``prune_rate`` of the weights is 0 for good, ``drop_rate`` of each tensor's others
    rests in a step.

    ``prune="none"`` or ``drop="none"`` switches one of the two off, whatever its rate.
    """
    return Method(
        name="dp-ssgd",
        mask=Mask() if drop == "none" else Mask(kind="drop", drop=drop, sparsity=drop_rate),
        prune=Prune(
            kind=prune,
            rate=0.0 if prune == "none" else prune_rate,
            epsilon_share=prune_epsilon_share,
            clip_norm=prune_clip_norm,
        ),
        mechanism=mechanism,
        server=server,
    )
