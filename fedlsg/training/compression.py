"""What a client of a method without privacy leaves out of its message, and sends later: top-k and error feedback.

Symbols (Stich et al. 2018; Karimireddy et al. 2019, Algorithm 2):
    g_t the client's sum of gradients of a round, over all its local steps      e_t its memory, e_1 = 0
    p_t = g_t + e_t        sent: C(p_t)        e_(t+1) = p_t - what the server made of it
The memory has no noise, and a later payload brings what an earlier one left out: no clip bounds what an example does to
the sum of them. It is refused wherever a mechanism promises anything, and never leaves the client.
"""

import math
from dataclasses import dataclass
from typing import Annotated

from jaxtyping import Float, Int
from torch import Tensor

from fedlsg.carriers import Carrier
from fedlsg.masks import Mask, Prune, smallest
from fedlsg.privacy import Mechanism
from fedlsg.setting import Setting, check_declared

TopkRate = Annotated[
    float,
    Setting(
        "Share of the coordinates that a client sends.", "share", above=0, at_most=1,
        why="the share of the values that is sent",
    ),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Compression:
    """``topk_rate``: share of the coordinates that a client sends, those where its values are largest; 1 sends all.

    ``error_feedback``: what is left out, by this choice, by factors or by the codec, is added to the next values.
    """

    topk_rate: TopkRate = 1.0
    error_feedback: bool = False

    def __post_init__(self) -> None:
        check_declared(self)
        if self.chooses and not self.error_feedback:
            raise ValueError(f"topk_rate={self.topk_rate} without error feedback never sends what is small")

    @property
    def chooses(self) -> bool:
        """Whether each client chooses the positions that it sends, so that the server cannot know them."""
        return self.topk_rate < 1

    def most(self, size: int) -> int | None:
        """k: positions that a client chooses of ``size`` at most; None where it chooses none."""
        return max(1, math.floor(self.topk_rate * size + 1e-9)) if self.chooses else None


def largest(values: Float[Tensor, " size"], most: int) -> Int[Tensor, " k"]:
    """Positions of the ``most`` values of largest magnitude, ascending, without those that are 0.

    Of equal magnitudes the one of higher position is sent first.
    """
    magnitudes = values.abs()
    kept = magnitudes > 0
    if most < len(values):
        kept &= ~smallest(magnitudes, len(values) - most)
    return kept.nonzero().squeeze(1)


def check_memory(name: str, mechanism: Mechanism, carrier: Carrier, mask: Mask, prune: Prune) -> None:
    """Raise ValueError unless error feedback is legitimate: nothing is promised, and coordinates stay what they are."""
    if not mechanism.of_kind.plain:
        raise ValueError(
            "error feedback keeps gradients of the client without noise: what one payload leaves out comes with later "
            f"ones, which neither clip nor noise of mechanism {mechanism.kind!r} covers; {name!r} needs mechanism "
            "'none'; private methods of few bytes are dpsgd with a codec of few bits, and dp-powersgd"
        )
    moving = [f"carrier {carrier.kind!r}"] if carrier.parts != ("dense",) else []
    moving += [f"mask {mask.kind!r}"] if not mask.whole else []
    moving += [f"prune={prune.kind!r}"] if prune.active else []
    if moving:
        raise ValueError(
            f"error feedback adds up values of several rounds, and with {' and '.join(moving)} of {name!r} a "
            "coordinate is not the same in the next round: choose a dense method such as sgd"
        )
