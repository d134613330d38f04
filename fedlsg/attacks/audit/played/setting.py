"""What a unit-mode audit runs, what it holds it to, which is ``Stated``; and how many outputs and
canaries it takes.

There are enough to find the smallest mistakes that it looks for, and no more. Symbols: ALARM and
MISS the probabilities of accusing correct code and of missing a mistake, z their normal quantiles
added up; h the clients whose noise counts, sigma noise over sensitivity, q, R rounds, W the sum of
the step weights.

    noise of ratio r in N values         found if N >= (z / (1 - r))^2 / 2
    a unit that moves by 1 + e           found if its standard error is at most e / z
"""

import math
from dataclasses import dataclass

from scipy.special import ndtri
from torch import nn

from fedlsg.attacks.audit.played.stated import Stated
from fedlsg.config.units import EXAMPLE, PersonGradient, Unit
from fedlsg.frame import Frame
from fedlsg.privacy import Mechanism
from fedlsg.secure_sum.discrete import SumTerms
from fedlsg.training import LocalTraining
from fedlsg.training.client_level import AdaptiveClip
from fedlsg.training.local_training import gains

ALARM, MISS = 1e-6, 1e-3
Z = float(-ndtri(ALARM) - ndtri(MISS))
FOUND_NOISE_RATIO = 0.97
"""Noise of this share of the claimed deviation is found, and the noise of one client that is left
out of a sum.
"""
FOUND_EXCESS = 0.25
"""A canary that moves an output by a quarter more than claimed is found."""
FEWEST_ROUNDS, MOST_VALUES = 32, 2**26
"""Silent outputs at the fewest; random values of all clients in them at the most, which take about
a minute.
"""
MIN_CANARIES, MAX_CANARIES, MAX_CLIENT_STEPS = 200, 5000, 5_000
"""Canaries; and steps of clients that they take at the most, unless the fewest take more."""
MOST_ALIKE, MAX_ALIKE_NUMBERS = 512, 2**24
"""Equal units, and numbers in their gradients."""

MOST_OF_CLIENT, LARGEST_OF_CLIENT = 256, 2**26
"""Canaries of one client at most, and numbers in one client's canaries."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditSetting:
    """What is audited: the mechanism as configured, in one frame, for ``rounds`` rounds; and what
    is ``stated`` of it.

    What runs: ``mechanism`` with one client's noise, or the server's; ``local`` training; ``sums``
    of secure sums; ``unit`` of privacy, of persons how many rows count and what of their gradients
    is clipped (``Persons``), and ``adaptive`` of an adaptive clip. Of these only the clip norm, the
    clip and the local steps are taken as stated: how much noise there must be follows from
    ``stated`` alone. ``shuffled``, ``prunes``: whether a run deals shuffled batches, or prunes by
    saliencies, which are not played.
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
        """How far one unit may move the sum of one step: C, or C sqrt(G) where each of G blocks is
        clipped to C.
        """
        blocks = len(self.frame.blocks) if self.mechanism.clip == "per-block" else 1
        return self.mechanism.clip_norm * math.sqrt(blocks)

    @property
    def weights(self) -> list[float]:
        """How often each local step counts in an output, the first one first; at client level there
        is one release.
        """
        if self.stated.whole:
            return [1.0]
        return step_weights(self.local)

    @property
    def noise_std(self) -> float:
        """Deviation that each value of an output must have at least."""
        return self.stated.noise_multiplier * self.sensitivity * math.hypot(*self.weights)


def step_weights(local: LocalTraining) -> list[float]:
    """How often each of K local steps counts in what is sent, the first one first."""
    return gains(local.steps, local.momentum, local.pull)[::-1]


def ratio(setting: AuditSetting) -> float:
    """The largest share of the claimed deviation that should be found: one client's noise less, or
    ``FOUND_NOISE_RATIO``.
    """
    h = setting.stated.honest
    return max(FOUND_NOISE_RATIO, math.sqrt((h - 1) / h)) if h > 1 else FOUND_NOISE_RATIO


def silent_rounds(setting: AuditSetting) -> int:
    """Outputs of each of the two kinds of silence, which are looked at together, too."""
    values = (Z / (1 - ratio(setting))) ** 2 / 2
    most = MOST_VALUES // (2 * setting.frame.kept * setting.stated.members)
    return max(FEWEST_ROUNDS, min(math.ceil(values / setting.frame.kept / 2), most))


def found_ratio(values: int) -> float:
    """Noise of this share of the claimed deviation is found in so many values."""
    return 1 - Z / math.sqrt(2 * values)


def canaries(setting: AuditSetting) -> int:
    """Canaries: half in and half out, the difference of their means within FOUND_EXCESS / z."""
    stated, weight = setting.stated, sum(setting.weights)
    q, noise = stated.sample_rate, setting.noise_std / setting.sensitivity
    variance = (noise / (q * weight)) ** 2 / setting.rounds * 4
    drawn = 2 * (1 - q) / q * sum(w * w for w in setting.weights) / weight**2 / setting.rounds
    wanted = min(
        max(math.ceil((variance + drawn) * (Z / FOUND_EXCESS) ** 2), MIN_CANARIES), MAX_CANARIES
    )
    each = max(spread(wanted, setting.frame.kept, most=most_units(setting)))
    steps = max(stated.members, math.ceil(q * each)) if stated.trust == "server" else stated.members
    series = max(1, MAX_CLIENT_STEPS // (setting.rounds * steps))
    return min(wanted, max(MIN_CANARIES, each * series))


def most_units(setting: AuditSetting) -> int | None:
    """Units in one output at the most: the honest clients of a secure sum at client level; None
    without a limit.
    """
    return setting.stated.honest if setting.stated.whole and setting.sums is not None else None


def alike_units(setting: AuditSetting) -> int:
    """Equal units in one output: no more than a sum is planned for, and at client level one each
    honest client.
    """
    stated, room = setting.stated, max(1, MAX_ALIKE_NUMBERS // setting.frame.kept)
    if setting.sums is None:
        return min(MOST_ALIKE, room)
    if most_units(setting):
        return stated.honest
    return max(
        1, min(MOST_ALIKE, room, math.floor(setting.sums.expected_examples / stated.sample_rate))
    )


def spread(count: int, kept: int, *, most: int | None = None) -> list[int]:
    """Canaries of each client: as few clients as hold them, each at most half of the frame's
    directions.

    ``most``: canaries in one series of outputs, where fewer fit.
    """
    each = max(1, min(MOST_OF_CLIENT, kept // 2, LARGEST_OF_CLIENT // kept))
    each = each if most is None else min(each, most)
    clients = -(-count // each)
    return [count // clients + (i < count % clients) for i in range(clients)]
