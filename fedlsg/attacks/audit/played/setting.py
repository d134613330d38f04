"""What does a unit-mode audit run? One value, ``AuditSetting``, says it.

The audit plays rounds of the configured private training with units (examples or clients) whose
gradients it chooses. The configuration comes from the audited run. The claim, and who reads the
outputs, come from the user (``Stated``): how much noise an output must have follows from the claim
alone, so that a wrong noise multiplier in the configuration is found.

Symbols: C clip norm, K local steps. ``sample_sizes`` says how many outputs and canaries are enough.
"""

import math
from dataclasses import dataclass

from torch import nn

from fedlsg.attacks.audit.played.stated import Stated
from fedlsg.config.units import EXAMPLE, PersonGradient, Unit
from fedlsg.frame import Frame
from fedlsg.privacy import Mechanism
from fedlsg.secure_sum.discrete import SumTerms
from fedlsg.training import LocalTraining
from fedlsg.training.client_level import AdaptiveClip
from fedlsg.training.local_training import gains


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditSetting:
    """What is audited.

    model: the public model; it decides which parameters there are and on which device steps run.
    frame: the coordinates that are sent, the same in all rounds.
    mechanism: clip and noise as configured, with the noise of one client, or of the server.
    local: the local training of a client.
    rounds: releases that each canary may take part in.
    stated: the claim, and who reads the outputs.
    sums: the constants of secure sums; None without them.
    unit: the unit of privacy as configured.
    person_rows: for the unit person, how many rows of a person count.
    person_gradient: for the unit person, what of the rows' gradients is clipped.
    adaptive: the adaptive clip of updates; None without one.
    shuffled, prunes: whether the run uses shuffled batches, or prunes by saliencies. The audit
        plays neither, and its report says so (``coverage``).
    """

    model: nn.Module
    frame: Frame
    mechanism: Mechanism
    local: LocalTraining
    rounds: int
    stated: Stated
    sums: SumTerms | None = None
    unit: Unit = EXAMPLE
    person_rows: int = 0
    person_gradient: PersonGradient = "mean"
    adaptive: AdaptiveClip | None = None
    shuffled: bool = False
    prunes: bool = False

    @property
    def sensitivity(self) -> float:
        """The largest L2 change of one step's sum by one unit.

        C for a joint clip; C sqrt(G) if each of G blocks is clipped to C.
        """
        blocks = len(self.frame.blocks) if self.mechanism.clip == "per-block" else 1
        return self.mechanism.clip_norm * math.sqrt(blocks)

    @property
    def weights(self) -> list[float]:
        """The factor of each step's sum in an output, first step first.

        One factor if the unit is a client: its whole update is clipped once.
        """
        if self.stated.whole:
            return [1.0]
        return step_weights(self.local)

    @property
    def noise_std(self) -> float:
        """The least standard deviation of the noise on each value of an output."""
        return self.stated.noise_multiplier * self.sensitivity * math.hypot(*self.weights)


def step_weights(local: LocalTraining) -> list[float]:
    """The factor of each of K local steps' sums in the update that is sent, first step first.

    With momentum an early step moves the weights again in all later ones.
    """
    return gains(local.steps, local.momentum, local.pull)[::-1]
