"""Choices of frozen units and coordinates: importance, smallest values, uniform draws, gradual
cooling.

Pure functions of public values. Of equal values the one of lower index is frozen first; at least
one is kept.
Symbols: W (m, n) weight, O and I importance of its out and in units, p sparsity, e epoch of E.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedlsg.config import Setting
from fedlsg.config.rules import idle_unless
from fedlsg.tensors import matrix_in_memory_order, sum_over_taps

WHERE_FROZEN = (idle_unless("sparsity>0"),)
"""Rules of settings that say what is frozen."""
Direction = Annotated[
    Literal["top", "bottom"],
    Setting(
        "Which units are kept: the most important (top) or the least (bottom).", rules=WHERE_FROZEN
    ),
]


def unit_importance(W: Tensor) -> tuple[Float[Tensor, " m"], Float[Tensor, " n_or_c"]]:
    """Importance O of out units and I of in units: row and column sums of abs(W) (Ito et al. 2023,
    Eq. 4-5).

    For a convolution kernel (m, c, kh, kw) the sums run over whole kernels (Eq. 6-7): I has one
    entry an input channel. Differs from the paper: its symbols I and O name the rows and columns of
    a transposed W.
    Raises ValueError unless W has two or four dimensions.
    """
    if W.ndim not in (2, 4):
        raise ValueError(
            f"expected a linear (2-D) or convolution (4-D) weight, got shape {tuple(W.shape)}"
        )
    W = W.detach()
    magnitude = matrix_in_memory_order(W).abs()
    return magnitude.sum(1), sum_over_taps(magnitude.sum(0), W)


def keep_units(
    importance: Float[Tensor, " units"], sparsity: float, direction: Direction = "top"
) -> Int[Tensor, " k"]:
    """Indices of the kept units, ascending: all but the floor(p * units) least important.

    Of equally important units the one of lower index is frozen first; at least one unit is kept.
    ``direction="bottom"`` freezes the most important instead (a setting, because on small encoders
    it kept more gradient). Raises ValueError for a sparsity outside [0, 1).
    """
    check_sparsity(sparsity)
    units = len(importance)
    frozen = min(frozen_count(units, sparsity), units - 1)
    order = torch.argsort(importance, stable=True, descending=direction == "bottom")
    return order[frozen:].sort().values


def keep_units_of_each(
    importances: Sequence[Float[Tensor, " _"]], sparsity: float, direction: Direction
) -> list[Int[Tensor, " _"]]:
    """``keep_units`` of each, on the CPU, after one transfer of all."""
    if not importances:
        return []
    sizes = [len(importance) for importance in importances]
    on_cpu = torch.cat([*importances]).cpu().split(sizes)
    return [keep_units(importance, sparsity, direction) for importance in on_cpu]


def smallest(values: Float[Tensor, " n"], count: int) -> Bool[Tensor, " n"]:
    """True at the ``count`` >= 1 smallest values, in linear time; of equal ones at those of lower
    index.
    """
    threshold = values.kthvalue(count).values
    are_smallest = values < threshold
    ties = (values == threshold).nonzero().squeeze(1)
    are_smallest[ties[: count - int(are_smallest.sum())]] = True
    return are_smallest


def uniform(total: int, rate: float, *, generator: torch.Generator) -> Int[Tensor, " k"]:
    """Kept coordinates, ascending: floor(rate * total) are frozen, drawn uniformly (Zhu and
    Blaschko 2023).
    """
    check_sparsity(rate)
    frozen = min(frozen_count(total, rate), total - 1)
    return torch.randperm(total, generator=generator)[frozen:].sort().values


def gradual_cooling(final_rate: float, epoch: int, epochs: int) -> float:
    """Sparsification rate of an epoch: p_e = p* e / (E - 1), from 0 to p* (Zhu and Blaschko 2023,
    sec. 4.1).
    """
    check_sparsity(final_rate)
    if not 0 <= epoch < epochs:
        raise ValueError(f"expected 0 <= {epoch=} < {epochs=}")
    return final_rate * epoch / (epochs - 1) if epochs > 1 else final_rate


def frozen_count(units: int, sparsity: float) -> int:
    """floor(p * units); 1e-9 is added so that p = 0.29, which is stored as 0.28999..., freezes 29
    of 100.
    """
    return math.floor(sparsity * units + 1e-9)


def check_sparsity(sparsity: float) -> None:
    """Raise ValueError unless 0 <= sparsity < 1."""
    if not 0 <= sparsity < 1:
        raise ValueError(
            f"expected 0 <= {sparsity=} < 1: it is the share of coordinates that is frozen"
        )
