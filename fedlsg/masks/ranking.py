"""Ranked sparsification: coordinates with the smallest noisy gradients of the last epoch are frozen
(Zhu and Blaschko 2023, Algorithm 4 and Appendix I).

The ranking is post-processing of released values, so it costs no privacy. It is a function of the
server's memory, which clients do not have: the server sends them the kept positions.
Differs from the paper: there a client also adds noise to frozen coordinates, so that their estimate
is not 0 and they can be kept again. Here payloads have kept coordinates only. The server adds that
noise to its memory itself, from the public generator and with the same deviation: pure noise has
the same distribution on either side.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedlsg.frame import Frame
from fedlsg.masks.freezing import frozen_count, smallest


@dataclass(frozen=True, kw_only=True, eq=False)
class Memory:
    """Sums of noisy gradients.

    epoch: the epoch of the last update.
    updates: server updates in that epoch.
    current: the sum over these updates; None before the first one.
    last: the sum over the last earlier epoch with updates; None without one.
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
        """The memory in an epoch, the same one or a later one; an epoch without updates leaves
        ``last`` as it is.
        """
        if epoch == self.epoch:
            return self
        return Memory(epoch=epoch, last=self.last if self.current is None else self.current)

    def kept(self, rate: float, epoch: int) -> Int[Tensor, " k"] | None:
        """Kept positions in an epoch, ascending: all but the floor(p d) of smallest ``last``.

        None before an epoch with updates has ended.
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
    """The noisy gradient with N(0, noise_std^2) on frozen coordinates, divided by the blocks'
    weights, on the CPU.
    """
    full = torch.cat([piece.flatten() for piece in frame.split(values)]).cpu()
    frozen = torch.ones(frame.size, dtype=torch.bool)
    frozen[frame.indices] = False
    full[frozen] = noise_std * torch.randn(int(frozen.sum()), generator=generator, dtype=full.dtype)
    weights = torch.cat(
        [torch.full((block.size,), block.weight, dtype=full.dtype) for block in frame.blocks]
    )
    return full / weights
