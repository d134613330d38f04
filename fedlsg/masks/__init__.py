"""Which coordinates a round keeps: importance of units, weights or gradients, random draws, pruning
before training.
"""

from fedlsg.masks.freezing import (
    Direction,
    Memory,
    frozen_count,
    keep_units,
    keep_units_of_each,
    noisy_everywhere,
    smallest,
    uniform,
    unit_importance,
)
from fedlsg.masks.kinds import carrier_importance, keep_chosen, not_pruned
from fedlsg.masks.mask import Mask, Sparsity, SparsityFrom
from fedlsg.masks.pruning import (
    Masks,
    Prune,
    keep_snip,
    prunable,
    prune_in_place,
    pruning_mechanism,
    saliency_frame,
    saliency_scale,
)
from fedlsg.masks.synflow import keep_public

__all__ = [
    "Direction",
    "Mask",
    "Masks",
    "Memory",
    "Prune",
    "Sparsity",
    "SparsityFrom",
    "carrier_importance",
    "frozen_count",
    "keep_chosen",
    "keep_public",
    "keep_snip",
    "keep_units",
    "keep_units_of_each",
    "noisy_everywhere",
    "not_pruned",
    "prunable",
    "prune_in_place",
    "pruning_mechanism",
    "saliency_frame",
    "saliency_scale",
    "smallest",
    "uniform",
    "unit_importance",
]
