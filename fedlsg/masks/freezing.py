"""How many are frozen, and which: importance of units, smallest values, uniform draws, gradual
cooling.

Pure functions of public values. Of equal values the one of lower index is frozen first; at least
one is kept.
Symbols: W (m, n) weight, O and I importance of its out and in units, p sparsity, e epoch of E.

Ranked sparsification (Zhu and Blaschko 2023, Algorithm 4 and Appendix I) freezes the coordinates
that the last epoch's noisy gradients rank lowest. The ranking is post-processing of what was
released already, so it costs no privacy; but it is a function of the server's memory, which clients
do not have: the server sends them the kept positions. Differs from the paper: there a client also
adds noise to frozen coordinates, so that their estimate is not 0 and they can come back. Here
payloads have kept coordinates only, and the server adds that noise to its memory itself, from the
public generator and with the same deviation: pure noise has the same distribution on either side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedlsg.config import Setting
from fedlsg.config.rules import idle_unless
from fedlsg.frame import Frame
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
    """``keep_units`` of each, on the CPU; all come there in one transfer."""
    here = (
        torch.cat([*importances]).cpu().split([len(one) for one in importances])
        if importances
        else ()
    )
    return [keep_units(importance, sparsity, direction) for importance in here]


def smallest(values: Float[Tensor, " n"], count: int) -> Bool[Tensor, " n"]:
    """True at the ``count`` smallest values, of equal ones at those of lower index. In linear time,
    for 1 <= count.
    """
    threshold = values.kthvalue(count).values
    chosen = values < threshold
    ties = (values == threshold).nonzero().squeeze(1)
    chosen[ties[: count - int(chosen.sum())]] = True
    return chosen


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
    """floor(p * units), immune to p = 0.29 being stored as 0.28999...: 0.29 * 100 freezes 29."""
    return math.floor(sparsity * units + 1e-9)


def check_sparsity(sparsity: float) -> None:
    """Raise ValueError unless 0 <= sparsity < 1."""
    if not 0 <= sparsity < 1:
        raise ValueError(
            f"expected 0 <= {sparsity=} < 1: it is the share of coordinates that is frozen"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Memory:
    """Sums of noisy gradients: ``current`` over the ``updates`` of ``epoch``, ``last`` over an
    epoch before it.
    """

    epoch: int = 0
    updates: int = 0
    current: Float[Tensor, " size"] | None = None
    last: Float[Tensor, " size"] | None = None

    def add(self, gradient: Float[Tensor, " size"], epoch: int) -> "Memory":
        """The memory after one more server update."""
        now = self.at(epoch)
        total = gradient.clone() if now.current is None else now.current + gradient
        return replace(now, updates=now.updates + 1, current=total)

    def at(self, epoch: int) -> "Memory":
        """The memory as an epoch begins or goes on; an epoch without any update leaves the one
        before it in place.
        """
        if epoch == self.epoch:
            return self
        return Memory(epoch=epoch, last=self.last if self.current is None else self.current)

    def kept(self, rate: float, epoch: int) -> Int[Tensor, " k"] | None:
        """Kept positions, ascending: all but the floor(p d) of smallest magnitude; None before the
        first update.
        """
        last = self.at(epoch).last
        if last is None:
            return None
        frozen = min(frozen_count(len(last), rate), len(last) - 1)
        if frozen == 0:
            return torch.arange(len(last))
        return (~smallest(last.abs().cpu(), frozen)).nonzero().squeeze(1)

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {
            "epoch": self.epoch,
            "updates": self.updates,
            "current": self.current,
            "last": self.last,
        }


def noisy_everywhere(
    values: Float[Tensor, " kept"], frame: Frame, noise_std: float, *, generator: torch.Generator
) -> Float[Tensor, " size"]:
    """The noisy gradient, with N(0, noise_std^2) on frozen coordinates too (before the clip's
    weights), on the CPU.
    """
    full = torch.cat([piece.flatten() for piece in frame.split(values)]).cpu()
    frozen = torch.ones(frame.size, dtype=torch.bool)
    frozen[frame.indices] = False
    full[frozen] = noise_std * torch.randn(int(frozen.sum()), generator=generator, dtype=full.dtype)
    weights = torch.cat(
        [torch.full((block.size,), block.weight, dtype=full.dtype) for block in frame.blocks]
    )
    return full / weights
