"""Pruning before training: some weights are set to 0 for the whole run (Adamczewski et al. 2023,
sec. 3.1).

    kept = keep_top(scores, prunable(weights), rate)     which weights stay, by any score
    prune_in_place(parameters, kept)                     the public model before round 1

Symbols: W_0 initial weight, p pruning rate. Pruned weights are 0 in the public model and their
gradients are masked, so they stay 0 and no mask has to be sent: it follows from W_0 and W_t
(``not_pruned``). Random and SynFlow scores are public. Clients add noise to the scores of DP-SNIP
and charge them to their ledgers. Under weight standardisation a stored 0 is not an absent
connection: the kernel has the filter's mean taken off.

DP-SNIP, private pruning by connection sensitivity (SNIP: Lee et al. 2019):

    g_j = dL/dc_j = w_j dL/dw_j        effect of connection j on the loss
    s_j = |sum of noisy g_j| / N       its score

It takes one round before training, the pruning round. ``saliency_frame`` has the scored weights.
``client_step`` with the ``scale`` of ``saliency_scale`` gives one noisy sum of clipped per-example
saliencies a client. ``keep_snip`` ranks the total of these sums.
Differs from the paper that introduced DP-SNIP: it clips the sum over the data set, whose
sensitivity is then not the clip norm, so that its epsilon does not follow. Here every example's
whole saliency vector is clipped on its own, the noisy sum is divided by a public constant, and the
release is one q = 1 entry in the ledger of each client.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedlsg.config import Setting, check_declared
from fedlsg.config.rules import idle_unless
from fedlsg.frame import EVERYTHING, Block, Coordinates, Frame, Keep, make_blocks
from fedlsg.masks.freezing import check_sparsity, frozen_count, smallest
from fedlsg.privacy import Mechanism
from fedlsg.randomness import public_generator

PruneKind = Annotated[
    Literal["none", "random", "synflow", "dp-snip"],
    Setting("How weights are removed before training; dp-snip alone reads data.", name="prune"),
]
PruneRate = Annotated[
    float,
    Setting(
        "Share of the weights that is removed before training.",
        "share",
        at_least=0,
        below=1,
        name="prune_rate",
        why="it is the share of weights that is removed",
        rules=(idle_unless("prune!=none"),),
    ),
]
PruneEpsilonShare = Annotated[
    float,
    Setting(
        "Share of epsilon that dp-snip spends.",
        "share",
        above=0,
        below=1,
        name="prune_epsilon_share",
        why="training needs the rest",
        rules=(idle_unless("prune=dp-snip"),),
    ),
]
PruneClipNorm = Annotated[
    float,
    Setting(
        "Norm to which dp-snip clips saliencies.",
        "norm",
        above=0,
        below=math.inf,
        name="prune_clip_norm",
        rules=(idle_unless("prune=dp-snip"),),
    ),
]
Weights = Mapping[str, Tensor]
"""W_0 of the trainable parameters, by name."""
Masks = dict[str, Tensor]
"""Booleans in the shape of each weight tensor, by name."""


@dataclass(frozen=True, kw_only=True)
class Prune:
    """Pruning before training. Only ``dp-snip`` reads data, in a pruning round.

    kind: none, random, synflow or dp-snip.
    rate: the share p of the weights that is removed.
    epsilon_share: the share of epsilon that the pruning round alone spends; training gets the rest.
    clip_norm: norm to which each example's saliencies are clipped.
    """

    kind: PruneKind = "none"
    rate: PruneRate = 0.0
    epsilon_share: PruneEpsilonShare = 0.1
    clip_norm: PruneClipNorm = 1.0

    def __post_init__(self) -> None:
        check_declared(self)
        if self.kind == "none" and self.rate:
            raise ValueError(
                f"prune_rate={self.rate} needs a kind of pruning: random, synflow or dp-snip"
            )

    @property
    def active(self) -> bool:
        """Whether anything is pruned."""
        return self.kind != "none"

    @property
    def reads_data(self) -> bool:
        """Whether there is a pruning round, for which clients' ledgers are charged."""
        return self.kind == "dp-snip"


def prunable(weights: Weights) -> Masks:
    """True at the weights that may be pruned: entries of weight tensors (2-D or more) that are not
    0.

    Biases, norm scales and weights that start at 0 have no magnitude to prune by: they are always
    trained.
    """
    return {
        name: W.detach() != 0 for name, W in weights.items() if W.ndim >= 2 and bool((W != 0).any())
    }


def keep_random(weights: Weights, rate: float, *, seed: int) -> Masks:
    """Kept weights: in each tensor all but floor(p n), drawn uniformly, at least one (Adamczewski
    et al. 2023).
    """
    kept: Masks = {}
    for name, mask in prunable(weights).items():
        scores = torch.rand(
            mask.shape, generator=public_generator(seed, "prune", name), dtype=torch.float64
        )
        kept |= keep_top({name: scores}, {name: mask}, rate)
    return kept


def keep_top(scores: Mapping[str, Float[Tensor, "*shape"]], may: Masks, rate: float) -> Masks:
    """Kept weights: all but the floor(p n) of lowest score over all tensors together.

    ``may``: True at the n prunable weights; the others are kept. Of equal scores the earlier weight
    is removed first. A tensor that would lose every weight keeps its best one, so that no layer is
    cut (as SNIP's successors do).
    """
    check_sparsity(rate)
    flat = torch.cat(
        [scores[name].detach().cpu().double()[mask.cpu()] for name, mask in may.items()]
    )
    if not bool(flat.isfinite().all()):
        raise ValueError(
            "pruning scores are not finite: the model's weights or the noise are out of range"
        )
    frozen = min(frozen_count(len(flat), rate), len(flat) - 1) if len(flat) else 0
    drop = smallest(flat, frozen) if frozen else torch.zeros(len(flat), dtype=torch.bool)
    kept: Masks = {}
    sizes = [int(mask.sum()) for mask in may.values()]
    for name, removed in zip(may, drop.split(sizes), strict=True):
        mask = may[name].cpu()
        if bool(removed.all()):
            removed = removed.clone()
            removed[int(scores[name].detach().cpu().flatten()[mask.flatten()].argmax())] = False
        keep = torch.ones(mask.shape, dtype=torch.bool)
        keep[mask] = ~removed
        kept[name] = keep
    return kept


def prune_in_place(
    parameters: Mapping[str, Tensor], kept: Mapping[str, Bool[Tensor, "*shape"]]
) -> None:
    """Set every weight that is not kept to exactly 0."""
    with torch.no_grad():
        for name, keep in kept.items():
            parameters[name].masked_fill_(~keep.to(parameters[name].device), 0.0)


def saliency_frame(weights: Weights) -> Frame:
    """The frame of the pruning round: all trainable parameters dense, of which only the prunable
    weights are kept.

    It depends only on which weights are 0, so it is the same in every process. Raises ValueError if
    no weight is left.
    """
    may = prunable(weights)
    if not may:
        raise ValueError("nothing to prune: no trainable weight tensor has an entry other than 0")
    where = tuple(Coordinates(name=name, shape=tuple(W.shape)) for name, W in weights.items())
    blocks = tuple(replace(block, keep=_keep(block, may)) for block in make_blocks(where))
    return Frame(coordinates=where, blocks=blocks)


def _keep(block: Block, may: Masks) -> Keep:
    """The prunable weights of a dense block."""
    mask = may.get(block.parameter)
    if mask is None:
        return Keep(index=torch.zeros(0, dtype=torch.int64))
    return EVERYTHING if bool(mask.all()) else Keep(index=mask.flatten().nonzero().squeeze(1).cpu())


def saliency_scale(weights: Weights, frame: Frame) -> list[Float[Tensor, " kept"]]:
    """w_j of the kept weights of each block: a gradient times w_j is a saliency."""
    flat = ((block, weights[block.parameter].detach().flatten()) for block in frame.blocks)
    return [W[block.keep.positions(block.shape).to(W.device)] for block, W in flat]


def pruning_mechanism(mechanism: Mechanism, prune: Prune) -> Mechanism:
    """The mechanism of the pruning round: a joint clip over all scored weights, at pruning's clip
    norm.
    """
    return replace(
        mechanism,
        clip_norm=prune.clip_norm,
        clip="joint",
        norms_clip_weight=1.0,
        classifier_clip_weight=1.0,
    )


def keep_snip(
    total: Float[Tensor, " kept"], frame: Frame, weights: Weights, rate: float, *, num_examples: int
) -> dict[str, Tensor]:
    """Kept weights by noisy saliencies: all but the floor(p n) smallest |total| / N of the network.

    total: the sum of the clients' values.
    num_examples: N, the declared number of all clients' examples, a public constant.
    At least one weight of every tensor stays (the paper's threshold can cut a layer off).
    Post-processing: no privacy is spent here.
    """
    values = frame.unflatten(total / num_examples)
    scores: Mapping[str, Tensor] = {
        b.parameter: v.abs() for b, v in zip(frame.blocks, values, strict=True)
    }
    return keep_top(scores, prunable(weights), rate)
