"""Masks: which coordinates a round keeps, and which weights are pruned before training.

mask       what every mask is, with its settings
kinds      the kinds of masks, one class each
freezing   importance of units, smallest values, random draws
ranking    freezing by the noisy gradients of the last epoch
pruning    pruning before training, random or with private saliencies
synflow    pruning without data
"""

from fedlsg.masks.freezing import (
    Direction,
    frozen_count,
    keep_units,
    keep_units_of_each,
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
from fedlsg.masks.ranking import Memory, noisy_everywhere
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
