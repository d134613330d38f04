"""Which coordinates a round keeps: importance of units, weights or gradients, random draws, pruning before training."""

from fedlsg.masks.dp_snip import keep_snip, pruning_mechanism, saliency_frame, saliency_scale
from fedlsg.masks.mask import Drop, Importance, Mask, Moment, Public, Ranking, Redraw, masked, split_kept
from fedlsg.masks.pruning import Masks, Prune, PruneKind, prunable, prune_in_place
from fedlsg.masks.ranking import Memory, accumulated_noise, noised_everywhere
from fedlsg.masks.rules import Direction, frozen_count, keep_units, smallest, uniform, unit_importance
from fedlsg.masks.synflow import keep_public

__all__ = [
    "Direction",
    "Drop",
    "Importance",
    "Mask",
    "Masks",
    "Memory",
    "Moment",
    "Prune",
    "PruneKind",
    "Public",
    "Ranking",
    "Redraw",
    "accumulated_noise",
    "frozen_count",
    "keep_public",
    "keep_snip",
    "keep_units",
    "masked",
    "noised_everywhere",
    "prunable",
    "prune_in_place",
    "pruning_mechanism",
    "saliency_frame",
    "saliency_scale",
    "smallest",
    "split_kept",
    "uniform",
    "unit_importance",
]
