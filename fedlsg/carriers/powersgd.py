"""PowerSGD on noisy gradients: a client sends rank-r factors of its own update (Vogels et al. 2019,
Algorithm 1).

Symbols: G (m, n) a client's noisy sum of clipped gradients     R (r, n) shared public start
    P = orthonormal columns of G R^T (m, r)     Q = P^T G (r, n)
A client sends P and Q, and the server sums P Q over clients. Both are post-processing of the noisy
output of the mechanism: epsilon is that of dense DP-SGD.
Differs from the source: there is no error feedback, which would carry noise that was not sent from
round to round. The shared start is the right carrier of W - W_0 (the history of all clients), not
the last aggregate: every client can derive it.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.carriers.base import Carrier, PowerSteps, Rank, check_carrier
from fedlsg.carriers.low_rank import Dense, Warmup, changes, low_rank_coordinates
from fedlsg.carriers.personal import shared_values, with_zeros
from fedlsg.frame import Coordinates, Frame, Part
from fedlsg.frame.public import Public
from fedlsg.lowrank import flatten_kernel, orthonormal_columns


@dataclass(frozen=True, kw_only=True)
class Factors(Carrier):
    """The carrier of PowerSGD: the step is dense, and rank-r factors of its noisy result are sent.

    rank: r.
    power_steps, warmup: of the start R, as in ``LowRankChange``.
    """

    kind: ClassVar[str] = "factors"
    adds_up: ClassVar[bool] = False
    parts: ClassVar[tuple[Part, ...]] = ("dense",)
    rank: Rank = 4
    power_steps: PowerSteps = 1
    warmup: Warmup = 1

    def __post_init__(self) -> None:
        check_carrier(self)

    def coordinates(self, public: Public) -> tuple[Coordinates, ...]:
        """Coordinates of what is sent: the carriers of W - W_0, of which clients use R."""
        return low_rank_coordinates(self, public, changes(public, self.warmup))

    def step_coordinates(self, where: tuple[Coordinates, ...]) -> tuple[Coordinates, ...]:
        """The same parameters without carriers, as the step is dense."""
        return tuple(replace(c, L=None, R=None) for c in where)

    def in_sizes(self) -> Carrier:
        """The dense carrier: a step has its sizes."""
        return Dense()


def encode(values: Float[Tensor, " kept"], frame: Frame) -> Float[Tensor, " sent"]:
    """The values that are sent for the noisy values of a step.

    They are the shared ones if the frame has personal parameters, factors if it has ``sent``, and
    all otherwise.
    """
    if frame.personal:
        return shared_values(values, frame)
    if frame.sent is None:
        return values
    sent = []
    for block, G, c in zip(frame.blocks, frame.split(values), frame.sent.coordinates, strict=True):
        assert block.parameter == c.name
        if c.R is None:
            sent.append(G.flatten())
            continue
        G = flatten_kernel(G)
        P = orthonormal_columns(G @ c.R.to(G).mT)
        sent += [P.flatten(), (P.mT @ G).flatten()]
    return torch.cat(sent)


def decode(sent: Float[Tensor, " sent"], frame: Frame) -> Float[Tensor, " kept"]:
    """The step's values from those that were sent: ``encode`` undone, with P Q in place of G."""
    if frame.personal:
        return with_zeros(sent, frame)
    if frame.sent is None:
        return sent
    parts = iter(frame.sent.split(sent))
    values = []
    for c in frame.sent.coordinates:
        first = next(parts)
        G = first @ next(parts).flatten(1) if c.carried else first
        values.append(G.flatten())
    return torch.cat(values)


def norm_of_factors(frame: Frame) -> float:
    """The norm of all P together: each has r orthonormal columns; 0.0 without factors."""
    if frame.sent is None:
        return 0.0
    return math.sqrt(sum(c.R.shape[0] for c in frame.sent.coordinates if c.R is not None))
