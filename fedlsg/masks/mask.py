"""Which coordinates are kept: the rules of the papers, as public data.

Symbols (Ito et al. 2023, Eq. 4-7; Zhu and Blaschko 2023, Alg. 1; Adamczewski et al. 2023, Alg. 3):
    O (m,) importance of the out units of W     p sparsity, the share that is frozen
    I (n,) or (c,) importance of the in units   e epoch, E epochs; t round, T rounds
Masks come from public values only (weights, carriers, round, epoch, public seed), never from gradients
without noise: no function here takes a gradient. A ranking (``Memory``) sees noisy gradients only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedlsg.frame import EVERYTHING, Block, Coordinates, Keep
from fedlsg.masks.own import Choose, keep_chosen
from fedlsg.masks.rules import (
    WHERE_FROZEN,
    Direction,
    frozen_count,
    gradual_cooling,
    keep_units,
    smallest,
    uniform,
    unit_importance,
)
from fedlsg.public import Public, RoundTime
from fedlsg.rules import idle_unless
from fedlsg.setting import Setting, check_declared

MaskKind = Literal["all", "units", "energy", "uniform", "magnitude", "drop", "own"]
Importance = Annotated[
    Literal["weights", "carriers", "random", "energy"],
    Setting("Importance of units: of weights or carriers, a probe's energy, or random.", rules=WHERE_FROZEN),
]
Redraw = Annotated[
    Literal["epoch", "step"], Setting("How often a random mask is drawn again; a step is a round.", rules=WHERE_FROZEN)
]
Ranking = Annotated[
    Literal["random", "gradients"], Setting("Freeze random coordinates, or those of the smallest noisy gradients.")
]
Drop = Annotated[
    Literal["none", "random", "magnitude"], Setting("Which gradients of a weight tensor are dropped in a round.")
]
Cooling = Annotated[
    bool, Setting("Raise the share that is frozen from 0 to sparsity over the epochs.", rules=WHERE_FROZEN)
]
Refresh = Annotated[
    bool, Setting("Choose the smallest weights of W_t in every round, not of W_0 once.", rules=WHERE_FROZEN)
]
Sparsity = Annotated[float, Setting("Share p of units or coordinates that is frozen.", "share", at_least=0, below=1)]
SparsityFrom = Annotated[
    float,
    Setting(
        "Share of the rounds before which nothing is frozen.",
        "share",
        at_least=0,
        below=1,
        why="a share of the rounds",
        rules=WHERE_FROZEN,
    ),
]
DropRate = Annotated[
    float,
    Setting(
        "Share of the gradients of a weight tensor that is dropped in a round.", "share", at_least=0, below=1,
        rules=(idle_unless("drop!=none"),),
    ),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Mask:
    """Which coordinates a step keeps; ``sparsity`` is the share that it freezes.

    ``all``: keeps every one. ``units``: rows of dL and columns of dR of important units, dense blocks whole (Ito
    et al. 2023, Alg. 1); ``importance`` is that of W or of the carriers, or the energy that a probe predicts in them;
    or the same number of units is random, drawn again every epoch (Ito et al. 2023, sec. 4.4; units and not entries,
    so that only the choice differs).
    ``energy``: entries (i, j) of each S whose predicted energy, that of row i times that of column j, is largest.
    ``uniform``: uniformly random over all coordinates, redrawn every epoch or every step; ``cooling`` ramps the rate
    from 0 to ``sparsity`` over the epochs (Zhu and Blaschko 2023, Alg. 1); ``ranking="gradients"`` freezes the
    coordinates that the noisy gradients of the last epoch rank lowest (App. I there).
    ``magnitude``: in every weight tensor the entries of smallest abs(W_0), or of smallest abs(W_t) with ``refresh``;
    biases and norms whole (the baseline "Sparse DPSGD" of Ito et al. 2023).
    ``drop``: in every weight tensor and every step, random entries or those of smallest abs(W_t) (Adamczewski et al.
    2023, Alg. 3).
    ``own``: the choice of a user's function. ``choose(block, public)`` takes a ``Block`` and public values
    (``fedlsg.Public``), and returns a boolean tensor of ``block.shape``: True where a coordinate is kept, one at least.
    The server and every client call it for each block in every round, and compare their frames by digest: it must
    always return the same, so it draws from ``public.generator`` only.
    ``sparsity_from``: before that share of the rounds nothing is frozen (Ito et al. 2023, sec. 4.3); a ramp is cut off
    there, not shifted. "Step" here is a round: the local steps of a round share its mask, so one payload can carry
    them.
    """

    kind: Annotated[MaskKind, Setting(name="mask kind")] = "all"
    sparsity: Sparsity = 0.0
    direction: Direction = "top"
    importance: Importance = "weights"
    cooling: Cooling = False
    redraw: Redraw = "epoch"
    ranking: Ranking = "random"
    refresh: Refresh = False
    drop: Drop = "none"
    sparsity_from: SparsityFrom = 0.0
    choose: Choose | None = None

    def __post_init__(self) -> None:
        check_declared(self)
        if self.kind == "all" and self.sparsity:
            raise ValueError(f"sparsity={self.sparsity} needs a mask: this method keeps every coordinate")
        if (self.kind == "own") != callable(self.choose):
            raise ValueError("a mask of kind 'own' needs choose=function, and no other kind takes one")
        given = [f.name for f in fields(self)[1:-1] if getattr(self, f.name) != f.default]
        if self.kind == "own" and given:
            raise ValueError(
                f"a mask of kind 'own' takes no {', '.join(given)}: its function decides (bind by functools.partial)"
            )
        if (self.kind == "drop") != (self.drop != "none"):
            raise ValueError(f"drop={self.drop!r} does not fit a mask of kind {self.kind!r}")
        if self.ranking == "gradients" and (self.kind != "uniform" or self.redraw == "step"):
            raise ValueError("ranking='gradients' ranks once an epoch: it needs a uniform mask and redraw='epoch'")

    @property
    def predicted(self) -> bool:
        """Whether it reads the energy that a probe predicts."""
        return self.kind == "energy" or (self.kind == "units" and self.importance == "energy")

    def rate(self, time: "RoundTime") -> float:
        """Share of the coordinates that is frozen in a round; after the last round, as in the last epoch."""
        if time.round - 1 < self.sparsity_from * time.rounds - 1e-9:
            return 0.0
        return (
            gradual_cooling(self.sparsity, min(time.epoch, time.epochs - 1), time.epochs)
            if self.cooling
            else self.sparsity
        )


def apply_mask(blocks: Sequence[Block], mask: Mask, public: Public) -> tuple[Block, ...]:
    """The blocks with what ``mask`` keeps of each. Deterministic in its arguments.

    Raises ValueError where W_0 is needed and absent.
    """
    rate = mask.rate(public.time)
    if mask.kind == "uniform":
        when = (public.time.epoch,) if mask.redraw == "epoch" else ("round", public.time.round)
        kept = uniform(sum(block.size for block in blocks), rate, generator=public.generator("mask", *when))
        return split_kept(blocks, kept.to(next(iter(public.weights.values())).device))
    if mask.choose is not None:
        choose = mask.choose
        return tuple(replace(block, keep=keep_chosen(block, choose, public)) for block in blocks)
    if mask.kind == "units":
        importance = cache(partial(_importance, mask, public))  # one look at W for both of its blocks
        return tuple(replace(block, keep=_unit_keep(block, mask, rate, public, importance)) for block in blocks)
    if mask.kind == "energy":
        return tuple(replace(block, keep=_energy_keep(block, rate, public)) for block in blocks)
    if mask.kind == "all" and not public.pruned:
        return tuple(blocks)
    return tuple(replace(block, keep=_entry_keep(block, mask, rate, public)) for block in blocks)


def _unit_keep(
    block: Block, mask: Mask, rate: float, public: Public, importance: Callable[[str], tuple[Tensor, Tensor]]
) -> Keep:
    axis = 0 if block.part == "L" else 1
    if block.part == "dense" or not frozen_count(block.shape[axis], rate):
        return EVERYTHING
    if mask.importance == "random":
        generator = public.generator("units", public.time.epoch, block.parameter, block.part)
        index = uniform(block.shape[axis], rate, generator=generator)
        return Keep(axis=axis, index=index.to(public.weights[block.parameter].device))
    return Keep(axis=axis, index=keep_units(importance(block.parameter)[axis], rate, mask.direction))


def _energy_keep(block: Block, rate: float, public: Public) -> Keep:
    frozen = min(frozen_count(block.size, rate), block.size - 1)
    if block.part != "core" or not frozen:
        return EVERYTHING
    rows, columns = public.energies[block.parameter]
    energy = (rows.unsqueeze(1) * columns).flatten()
    return Keep(index=(~smallest(energy, frozen)).nonzero().squeeze(1))


def _importance(mask: Mask, public: Public, parameter: str) -> tuple[Tensor, Tensor]:
    if mask.importance == "energy":
        return public.energies[parameter]
    if mask.importance == "carriers":
        return carrier_importance(next(c for c in public.coordinates if c.name == parameter))
    return unit_importance(public.weights[parameter])


def carrier_importance(c: Coordinates) -> tuple[Float[Tensor, " m"], Float[Tensor, " n_or_c"]]:
    """Importance of out and in units by the carriers' own weights: row sums of abs(L), column sums of abs(R).

    An in channel of a convolution sums over its taps. (Ito et al. 2023, sec. 4.4: "Sparsification based on low-rank
    matrices".)
    """
    assert c.L is not None
    assert c.R is not None
    units = c.shape[1]
    return c.L.detach().abs().sum(1), c.R.detach().abs().reshape(c.R.shape[0], units, -1).sum((0, 2))


def _entry_keep(block: Block, mask: Mask, rate: float, public: Public) -> Keep:
    if block.part != "dense" or len(block.shape) < 2:
        return EVERYTHING
    W, W_0 = public.weights[block.parameter].detach(), public.initial.get(block.parameter)
    from_start = mask.kind == "magnitude" and not mask.refresh
    if W_0 is None and (public.pruned or from_start):
        raise ValueError(f"the initial value of {block.parameter} is needed to say which of its entries are kept")
    left = not_pruned(W, W_0).flatten().nonzero().squeeze(1) if public.pruned and W_0 is not None else None
    count = W.numel() if left is None else len(left)
    frozen = max(0, min(frozen_count(count, rate), count - 1))
    if frozen == 0:
        return EVERYTHING if count == W.numel() else Keep(index=left)
    if mask.drop == "random":
        generator = public.generator("drop", public.time.round, block.parameter)
        chosen = uniform(count, rate, generator=generator).to(W.device)
    else:
        source = W_0.to(W) if from_start and W_0 is not None else W
        values = source.abs().flatten() if left is None else source.abs().flatten()[left]
        chosen = (~smallest(values, frozen)).nonzero().squeeze(1)
    return Keep(index=chosen if left is None else left[chosen])


def not_pruned(W: Float[Tensor, "*shape"], W_0: Float[Tensor, "*shape"]) -> Tensor:
    """True where a weight is trained: all but those that pruning set from a value other than 0 to exactly 0.

    Weights that start at 0 are never pruned. One that training moves to exactly 0 would count as pruned from then on.
    """
    return (W != 0) | (W_0.to(W.device) == 0)


def split_kept(blocks: Sequence[Block], kept: Int[Tensor, " k"]) -> tuple[Block, ...]:
    """The blocks with the ascending positions ``kept`` of their flat vector, each assigned to its own block."""
    ends = torch.tensor([block.size for block in blocks]).cumsum(0)
    cuts = torch.searchsorted(kept, torch.cat([torch.zeros(1, dtype=torch.int64), ends]).to(kept.device)).tolist()
    out = []
    for block, end, low, high in zip(blocks, ends.tolist(), cuts, cuts[1:], strict=False):
        inside = kept[low:high] - (end - block.size)
        out.append(replace(block, keep=EVERYTHING if high - low == block.size else Keep(index=inside)))
    return tuple(out)
