"""Matching attacks on images: find the batch whose update is nearest to what was received.

    dlg                  L-BFGS on the Euclidean distance (Zhu et al. 2019); with labels: iDLG (Zhao et al. 2020)
    inverting-gradients  signed Adam on the cosine plus total variation (Geiping et al. 2020)
    smooth-relu          the same with a cosine for each block, and a smooth second derivative of ReLU that gets sharper
    map                  L-BFGS on the likelihood of the noise plus the prior: the most probable batch, for sigma > 0
Each is adaptive by default (see ``objectives``), and several local steps are replayed (the surrogate model
extension). Labels that nobody grants are optimised with the images, as soft ones, or inferred before (head.labels_of).
Restarts are chosen by the objective: no truth is known here.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Literal, get_args

import torch
from torch import Tensor

from fedlsg.attacks.inversion.minimize import Box, Energy, GoOn, adam, lbfgs
from fedlsg.attacks.inversion.objectives import Compare, Distance, Objective, objective, unexplained
from fedlsg.attacks.inversion.prior import Prior, surprise, total_variation
from fedlsg.attacks.inversion.smooth_relu import SmoothRelus
from fedlsg.attacks.inversion.unknowns import Unknowns
from fedlsg.attacks.observation import Guess, Knowledge, Observation

Optimizer = Literal["lbfgs", "signed-adam", "adam"]
Progress = Callable[[int, int, str], None]
"""(evaluations done, evaluations in all, what is being done)."""


@dataclass(frozen=True, kw_only=True)
class Matching:
    """A matching attack.

    evaluations: of the objective with its gradient, a restart. restarts: starting points; the first is the blind
        baseline's, the others are drawn from the range.
    step_size: of Adam, as a share of the range. total_variation: its weight in the objective.
    tolerance: an objective that is as good as zero: it ends the search. seconds: so does the time; None: no limit.
    sharpness: of the second derivative of ReLU at the first and at the last evaluation (``smooth_relu``), in between
        geometric; None: exact, which is 0.
    settled: a step of L-BFGS that lowers an objective above 1 by no more than this share of it ends the restart.
    """

    optimizer: Optimizer = "lbfgs"
    distance: Distance = "euclidean"
    compare: Compare = "adaptive"
    evaluations: int = 400
    restarts: int = 4
    step_size: float = 0.1
    total_variation: float = 0.0
    sharpness: tuple[float, float] | None = None
    tolerance: float = 0.0
    settled: float = 0.0
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, options in (("optimizer", Optimizer), ("distance", Distance), ("compare", Compare)):
            if getattr(self, name) not in get_args(options):
                raise ValueError(f"expected {name} in {get_args(options)}, got {getattr(self, name)!r}")
        if self.evaluations < 1 or self.restarts < 1:
            raise ValueError(f"expected evaluations={self.evaluations} >= 1 and restarts={self.restarts} >= 1")
        weights = (self.total_variation, self.tolerance, self.settled)
        if not 0 < self.step_size < math.inf or not all(0 <= weight < math.inf for weight in weights):
            raise ValueError(
                f"expected step_size={self.step_size} > 0, total_variation={self.total_variation} >= 0, "
                f"tolerance={self.tolerance} >= 0 and settled={self.settled} >= 0"
            )
        if self.sharpness is not None and not 0 < min(self.sharpness) <= max(self.sharpness) < math.inf:
            raise ValueError(f"expected sharpness={self.sharpness} > 0, or None for the exact ReLU")
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"expected seconds={self.seconds} > 0, or None for no limit")


SMOOTH = Matching(
    optimizer="signed-adam",
    distance="blocks",
    total_variation=3e-2,
    step_size=0.025,
    sharpness=(0.5, 1.5),
    evaluations=1000,
    restarts=2,
)
ATTACKS: Mapping[str, Matching] = MappingProxyType(
    {
        "dlg": Matching(tolerance=1e-16),
        "inverting-gradients": Matching(optimizer="signed-adam", distance="cosine", total_variation=1e-3),
        "smooth-relu": SMOOTH,
        "map": Matching(distance="likelihood", evaluations=150, restarts=2, settled=1e-8),
    }
)


def match(
    seen: Observation,
    knowledge: Knowledge,
    prior: Prior,
    *,
    attack: Matching,
    generator: torch.Generator,
    progress: Progress = lambda done, total, text: None,
) -> Guess:
    """The batch of lowest objective over all starting points, with every value in the prior's range.

    Where the number of examples is not granted, the declared expected batch is used. Works in the precision and on the
    device of ``seen`` (``seen.in_float64()`` for all digits that are there); draws and the guess are on the CPU.
    Guarantee: the same observation, knowledge, prior, attack and generator state give the same guess, unless
    ``seconds`` cuts it off.
    Raises DoesNotApply where ``objective`` does, and for a loss that takes no soft labels where none are granted.
    """
    examples = knowledge.examples or max(1, round(seen.local.expected_batch))
    unknowns = Unknowns(seen, knowledge, prior, examples)
    distance = objective(seen, distance=attack.distance, compare=attack.compare)
    energy = partial(_energy, attack, prior, unknowns, distance)
    deadline = math.inf if attack.seconds is None else time.monotonic() + attack.seconds
    point, lowest, restarts = _restarted(attack, unknowns, energy, generator, deadline, progress)
    inputs, targets = unknowns.split(point)
    labels = targets if knowledge.labels is not None else targets.argmax(1)
    total = attack.evaluations * attack.restarts
    progress(total, total, f"objective {lowest:.3g}")
    note = _note(attack, knowledge, examples, restarts)
    left = None
    if attack.compare == "adaptive":
        left = unexplained(seen, inputs, targets, scaled=attack.distance in ("cosine", "blocks"))
    return Guess(inputs=inputs.cpu(), labels=labels.cpu(), objective=lowest, unexplained=left, note=note)


def _restarted(
    attack: Matching,
    unknowns: Unknowns,
    energy: Energy,
    generator: torch.Generator,
    deadline: float,
    progress: Progress,
) -> tuple[Tensor, float, int]:
    """The lowest point over restarts, its value, and how many restarts there were."""
    point, lowest, restart = unknowns.expected, math.inf, 0
    for restart in range(1, attack.restarts + 1):
        go_on = _watch(attack, restart, lowest, deadline, progress)
        spent = _clock(deadline, restarts_left=attack.restarts - restart + 1)
        start = unknowns.start(restart, generator)
        found, value = _search(attack, _smoothed(energy, attack), start, unknowns.box, unknowns.spans, go_on, spent)
        if restart == 1 or value < lowest:
            point, lowest = found, value
        if lowest <= attack.tolerance or time.monotonic() >= deadline:
            break
    return point, lowest, restart


def _smoothed(energy: Energy, attack: Matching) -> Energy:
    """The same energy with a smooth second derivative of ReLU, sharper at each evaluation; its values do not change."""
    if attack.sharpness is None:
        return energy
    first, last = attack.sharpness
    evaluation = count()

    def smoothed(point: Tensor) -> Tensor:
        with SmoothRelus(first * (last / first) ** min(1.0, next(evaluation) / attack.evaluations)):
            return energy(point)

    return smoothed


def _watch(attack: Matching, restart: int, before: float, deadline: float, progress: Progress) -> GoOn:
    """Tells how far it is, and stops where the objective is as good as zero or the time is over."""
    total = attack.evaluations * attack.restarts
    done_before = attack.evaluations * (restart - 1)

    def go_on(done: int, lowest: float) -> bool:
        text = f"restart {restart} of {attack.restarts}, objective {min(lowest, before):.3g}"
        progress(min(done_before + done, total), total, text)
        return lowest > attack.tolerance and time.monotonic() < deadline

    return go_on


def _clock(deadline: float, *, restarts_left: int) -> Callable[[], float]:
    """The share that is over of this restart's part of the time that is left."""
    began = time.monotonic()
    part = (deadline - began) / restarts_left
    return lambda: (time.monotonic() - began) / part if part > 0 else 1.0


def _search(
    attack: Matching,
    energy: Energy,
    start: Tensor,
    box: Box,
    spans: Tensor,
    go_on: GoOn,
    spent: Callable[[], float],
) -> tuple[Tensor, float]:
    if attack.optimizer == "lbfgs":
        return lbfgs(energy, start, box, evaluations=attack.evaluations, settled=attack.settled, go_on=go_on)
    return adam(
        energy,
        start,
        box,
        evaluations=attack.evaluations,
        step_size=attack.step_size * spans,
        signed=attack.optimizer == "signed-adam",
        go_on=go_on,
        spent=spent,
    )


def _energy(attack: Matching, prior: Prior, unknowns: Unknowns, distance: Objective, point: Tensor) -> Tensor:
    """The distance, the weight of total variation, and -log prior where the distance is a -log likelihood."""
    inputs, targets = unknowns.split(point)
    value = distance(inputs, targets)
    if attack.total_variation:
        value = value + attack.total_variation * total_variation(inputs).sum()
    if attack.distance == "likelihood":
        value = value + surprise(prior, inputs, unknowns.expected_under(targets)).sum()
    return value


def _note(attack: Matching, knowledge: Knowledge, examples: int, restarts: int) -> str:
    labels = "granted" if knowledge.labels is not None else "searched for as soft ones"
    size = "granted" if knowledge.examples is not None else f"taken as {examples}, the declared expected batch"
    return f"{attack.compare} {attack.distance}, {restarts} restarts; labels {labels}; number of examples {size}"
