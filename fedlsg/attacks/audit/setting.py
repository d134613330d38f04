"""What a unit-mode audit runs, the shipped mechanism as configured, and what it holds it to, which is ``Stated``."""

import math
from dataclasses import dataclass

from torch import nn

from fedlsg.attacks.audit.stated import Stated
from fedlsg.client_level import AdaptiveClip, ClientUnit
from fedlsg.discrete import SumTerms
from fedlsg.frame import Frame
from fedlsg.privacy import Mechanism
from fedlsg.training import LocalTraining
from fedlsg.training.local import gains


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """What is audited: the mechanism as configured, in one frame, for ``rounds`` rounds; and what is ``stated`` of it.

    What runs: ``mechanism`` with one client's noise, or the server's; ``local`` training; ``sums`` of secure sums;
    ``client_unit`` and ``adaptive`` of client-level privacy. Of these only the clip norm, the clip and the local steps
    are taken as stated: how much noise there must be follows from ``stated`` alone.
    """

    model: nn.Module
    frame: Frame
    mechanism: Mechanism
    local: LocalTraining
    rounds: int
    stated: Stated
    sums: SumTerms | None = None
    client_unit: ClientUnit | None = None
    adaptive: AdaptiveClip | None = None

    @property
    def sensitivity(self) -> float:
        """How far one unit may move the sum of one step: C, or C sqrt(G) where each of G blocks is clipped to C."""
        blocks = len(self.frame.blocks) if self.mechanism.clip == "per-block" else 1
        return self.mechanism.clip_norm * math.sqrt(blocks)

    @property
    def weights(self) -> list[float]:
        """How often each local step counts in an output, the first one first; at client level there is one release."""
        if self.stated.unit == "client":
            return [1.0]
        return step_weights(self.local)

    @property
    def noise_std(self) -> float:
        """Deviation that each value of an output must have at least."""
        return self.stated.noise_multiplier * self.sensitivity * math.hypot(*self.weights)


def step_weights(local: LocalTraining) -> list[float]:
    """How often each of K local steps counts in what is sent, the first one first."""
    return gains(local.steps, local.momentum, local.pull)[::-1]
