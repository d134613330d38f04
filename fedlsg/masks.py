"""Which coordinates are kept: unit importance (LSG) and uniform random (random sparsification).

Symbols (000 Eq. 4-7; 003 Alg. 1):
    O (m,) importance of the out units of W     p sparsity, the share that is frozen
    I (n,) or (c,) importance of the in units   e epoch, E epochs
Masks come from public values only (weights, round, public seed), never from un-noised gradients.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedlsg.frame import EVERYTHING, Block, Keep
from fedlsg.randomness import public_generator

MaskKind = Literal["all", "units", "uniform"]
Direction = Literal["top", "bottom"]


@dataclass(frozen=True, kw_only=True)
class Mask:
    """Which coordinates a step keeps.

    ``all``: every one. ``units``: rows of dL and columns of dR of important units, dense blocks whole (000 Alg. 1).
    ``uniform``: uniformly random over all trainable coordinates, redrawn every epoch; ``cooling`` ramps the rate
    from 0 to ``sparsity`` over the epochs (003 Alg. 1).
    """

    kind: MaskKind = "all"
    sparsity: float = 0.0
    direction: Direction = "top"
    cooling: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(MaskKind):
            raise ValueError(f"expected mask kind in {get_args(MaskKind)}, got {self.kind!r}")
        if self.direction not in get_args(Direction):
            raise ValueError(f"expected mask direction in {get_args(Direction)}, got {self.direction!r}")
        check_sparsity(self.sparsity)
        if self.kind == "all" and self.sparsity:
            raise ValueError(f"sparsity={self.sparsity} needs a mask: this method keeps every coordinate")


def masked(
    blocks: Sequence[Block], weights: Mapping[str, Tensor], *, mask: Mask, epoch: int, epochs: int, seed: int
) -> tuple[Block, ...]:
    """The blocks with what ``mask`` keeps of each in this epoch (from 0). Public and deterministic."""
    if mask.kind == "units":
        return tuple(replace(block, keep=_unit_keep(block, weights[block.parameter], mask)) for block in blocks)
    if mask.kind == "uniform":
        rate = gradual_cooling(mask.sparsity, epoch, epochs) if mask.cooling else mask.sparsity
        kept = uniform(sum(block.size for block in blocks), rate, generator=public_generator(seed, "mask", epoch))
        return _split(blocks, kept.to(next(iter(weights.values())).device))
    return tuple(blocks)


def _unit_keep(block: Block, W: Tensor, mask: Mask) -> Keep:
    if block.part == "dense":
        return EVERYTHING
    O, I = unit_importance(W)
    axis, importance = (0, O) if block.part == "L" else (1, I)
    return Keep(axis=axis, index=keep_units(importance, mask.sparsity, mask.direction))


def _split(blocks: Sequence[Block], kept: Int[Tensor, " k"]) -> tuple[Block, ...]:
    start, out = 0, []
    for block in blocks:
        inside = kept[(kept >= start) & (kept < start + block.size)] - start
        out.append(replace(block, keep=EVERYTHING if len(inside) == block.size else Keep(index=inside)))
        start += block.size
    return tuple(out)


def unit_importance(W: Tensor) -> tuple[Float[Tensor, " m"], Float[Tensor, " n_or_c"]]:
    """Importance O of out units and I of in units: row and column sums of abs(W) (000 Eq. 4-5).

    For a convolution kernel (m, c, kh, kw) the sums run over whole kernels (Eq. 6-7): I has one entry an input
    channel. Differs from the paper: its symbols I and O name the rows and columns of a transposed W.
    Raises ValueError unless W has two or four dimensions.
    """
    if W.ndim not in (2, 4):
        raise ValueError(f"expected a linear (2-D) or convolution (4-D) weight, got shape {tuple(W.shape)}")
    magnitude = W.detach().abs().flatten(2) if W.ndim == 4 else W.detach().abs().unsqueeze(2)
    return magnitude.sum((1, 2)), magnitude.sum((0, 2))


def keep_units(importance: Float[Tensor, " units"], sparsity: float, direction: Direction = "top") -> Int[Tensor, " k"]:
    """Indices of the kept units, ascending: all but the floor(p * units) least important.

    Of equally important units the one of lower index is frozen first; at least one unit is kept.
    ``direction="bottom"`` freezes the most important instead (a setting, because on small encoders it kept
    more gradient). Raises ValueError for a sparsity outside [0, 1).
    """
    check_sparsity(sparsity)
    units = len(importance)
    frozen = min(frozen_count(units, sparsity), units - 1)
    order = torch.argsort(importance.cpu(), stable=True, descending=direction == "bottom")
    return order[frozen:].sort().values.to(importance.device)


def uniform(total: int, rate: float, *, generator: torch.Generator) -> Int[Tensor, " k"]:
    """Kept coordinates, ascending, after freezing exactly floor(rate * total) drawn uniformly (003 sec. 3)."""
    check_sparsity(rate)
    frozen = min(frozen_count(total, rate), total - 1)
    return torch.randperm(total, generator=generator)[frozen:].sort().values


def gradual_cooling(final_rate: float, epoch: int, epochs: int) -> float:
    """Sparsification rate of one epoch: p_e = p* e / (E - 1), from 0 in the first to p* in the last (003 sec. 4.1)."""
    check_sparsity(final_rate)
    if not 0 <= epoch < epochs:
        raise ValueError(f"expected 0 <= {epoch=} < {epochs=}")
    return final_rate * epoch / (epochs - 1) if epochs > 1 else final_rate


def frozen_count(units: int, sparsity: float) -> int:
    """floor(p * units), immune to p = 0.29 being stored as 0.28999...: 0.29 * 100 freezes 29."""
    return math.floor(sparsity * units + 1e-9)


def check_sparsity(sparsity: float) -> None:
    """Raise ValueError unless 0 <= sparsity < 1."""
    if not 0 <= sparsity < 1:
        raise ValueError(f"expected 0 <= {sparsity=} < 1: it is the share of coordinates that is frozen")
