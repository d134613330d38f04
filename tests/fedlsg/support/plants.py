"""Mistakes that tests plant in a step, each in place of the function that it is named after."""

from dataclasses import replace

import torch
from torch import Tensor

from fedlsg.frame import make_blocks
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.privacy.clip_norms import clip_factors

CLIP_NORM = 0.3
"""The clip norm of the steps in which these are planted."""


def clip_after_sum(gradients, mechanism, **options) -> Tensor:
    total = torch.cat([block.sum(0).flatten() for block in gradients])
    return total * min(1.0, mechanism.clip_norm / max(float(total.norm()), 1e-300))


def clipped_before_the_mask(model, loss_fn, inputs, targets, frame, **options) -> list[Tensor]:
    """Scaled to C by the norm of all coordinates, then masked."""
    whole = replace(frame, blocks=make_blocks(frame.coordinates))
    gradients = torch.cat(per_example_gradients(model, loss_fn, inputs, targets, whole), dim=1)
    factors = clip_factors(gradients.norm(dim=1), CLIP_NORM, gradients.dtype, 0)
    kept = (gradients * factors.unsqueeze(1))[:, frame.indices]
    return list(kept.split([block.kept for block in frame.blocks], dim=1))
