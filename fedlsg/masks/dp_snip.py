"""DP-SNIP: private pruning by connection sensitivity (SNIP: Lee et al. 2019).

    g_j = dL/dc_j = w_j dL/dw_j        effect of connection j on the loss      score s_j = |sum of noisy g_j| / N

It is the pruning round, before training. ``saliency_frame`` says which weights are scored. ``client_step`` with the
``scale`` of ``saliency_scale`` gives one noisy sum of clipped per-example saliencies a client. ``keep_snip`` ranks the
total of these sums.
Differs from the paper that introduced DP-SNIP: it clips the sum over the data set, whose sensitivity is then not the
clip norm, so that its epsilon does not follow. Here every example's whole saliency vector is clipped on its own, the
noisy sum is divided by a public constant, and the release is one q = 1 entry in the ledger of each client.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.frame import EVERYTHING, Block, Coordinates, Frame, Keep, make_blocks
from fedlsg.masks.pruning import Masks, Prune, Weights, keep_top, prunable
from fedlsg.privacy import Mechanism


def saliency_frame(weights: Weights) -> Frame:
    """The frame of the pruning round: all trainable parameters dense, of which only the prunable weights are kept.

    It depends only on which weights are 0, so it is the same in every process. Raises ValueError if no weight is left.
    """
    may = prunable(weights)
    if not may:
        raise ValueError("nothing to prune: no trainable weight tensor has an entry other than 0")
    where = tuple(Coordinates(name=name, shape=tuple(W.shape)) for name, W in weights.items())
    blocks = tuple(replace(block, keep=_keep(block, may)) for block in make_blocks(where))
    return Frame(coordinates=where, blocks=blocks)


def _keep(block: Block, may: Masks) -> Keep:
    mask = may.get(block.parameter)
    if mask is None:
        return Keep(index=torch.zeros(0, dtype=torch.int64, device=next(iter(may.values())).device))
    return EVERYTHING if bool(mask.all()) else Keep(index=mask.flatten().nonzero().squeeze(1))


def saliency_scale(weights: Weights, frame: Frame) -> list[Float[Tensor, " kept"]]:
    """w_j of the kept weights of each block: a gradient times w_j is a saliency."""
    flat = ((block, weights[block.parameter].detach().flatten()) for block in frame.blocks)
    return [W[block.keep.positions(block.shape).to(W.device)] for block, W in flat]


def pruning_mechanism(mechanism: Mechanism, prune: Prune) -> Mechanism:
    """The mechanism of the pruning round: the same kind, joint over all scored weights, at pruning's own clip norm."""
    return replace(
        mechanism, clip_norm=prune.clip_norm, clip="joint", norms_clip_weight=1.0, classifier_clip_weight=1.0
    )


def keep_snip(
    total: Float[Tensor, " kept"], frame: Frame, weights: Weights, rate: float, *, num_examples: int
) -> dict[str, Tensor]:
    """Kept weights by the summed noisy saliencies: all but the floor(p n) smallest |sum| / N over the whole network.

    ``num_examples`` is the declared N of all clients, a public constant. At least one weight of every tensor stays
    (differs from the paper, whose threshold can cut a layer off). Post-processing: no privacy is spent here.
    """
    values = frame.unflatten(total / num_examples)
    scores: Mapping[str, Tensor] = {b.parameter: v.abs() for b, v in zip(frame.blocks, values, strict=True)}
    return keep_top(scores, prunable(weights), rate)
