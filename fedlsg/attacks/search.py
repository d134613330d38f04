"""One search for all matching attacks: restarts, a time limit, and minimisers.

A matching attack finds the batch whose update is nearest to what was received. Its unknowns are
pixels in a range (``inversion.matching``), or tokens and their embeddings (``text_matching``). The
restart with the lowest objective is chosen: no truth is known here. What the best batch leaves
unexplained says whether a search converged.

The minimisers work within a box: L-BFGS-B, and (signed) Adam whose step decays as a cosine. Both
count evaluations of the energy with its gradient, so that attacks can be compared at an equal
budget; both return the lowest point that they saw, not the last one.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor

from fedlsg.attacks.distances import DISTANCES, DistanceName
from fedlsg.attacks.observation import Observation
from fedlsg.attacks.replay import Compare, unexplained
from fedlsg.config import Setting, check_declared
from fedlsg.gradients import Batch

Energy = Callable[[Tensor], Tensor]
GoOn = Callable[[int, float], bool]
"""(evaluations so far, lowest value so far) -> whether to go on."""
Progress = Callable[[int, int, str], None]
"""(evaluations done, evaluations in all, what is being done)."""
P = TypeVar("P")
Count = Annotated[int, Setting(at_least=1)]
Weight = Annotated[float, Setting(at_least=0, below=math.inf)]

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-12
"""Adam's decay rates of the first and the second moment, and the number added to its divisor."""
INFINITE_ENERGY = 1e30
"""Stands for an infinite energy in L-BFGS, whose line search computes with it."""
MAX_LAG = 0.05
"""A search whose used time is ahead of its evaluations by no more than this share keeps the step
sizes of an unlimited one, so that it is the same in every run.
"""


@dataclass(frozen=True, kw_only=True)
class Search:
    """What every matching attack has.

    distance: what is minimised, by its name in ``DISTANCES``.
    compare: adaptive replays what a client does; naive sees a single gradient (``replay``).
    evaluations: of the objective with its gradient, for each restart.
    restarts: starting points; the first is that of the blind baseline.
    step_size: of Adam, as a share of the range, or of the embeddings' standard deviation.
    tolerance: an objective at or below it is as good as zero and ends the search.
    seconds: the time limit of all restarts together; None: no limit.
    """

    distance: DistanceName = "euclidean"
    compare: Compare = "adaptive"
    evaluations: Count = 400
    restarts: Count = 4
    step_size: Annotated[float, Setting(above=0, below=math.inf)] = 0.1
    tolerance: Weight = 0.0
    seconds: Annotated[float | None, Setting(above=0, why="None is no limit")] = None

    def __post_init__(self) -> None:
        check_declared(self)


class Watch:
    """How far a search is: its restart, the lowest objective so far, and the time that is left."""

    def __init__(self, attack: Search, progress: Progress) -> None:
        self.attack, self.progress = attack, progress
        self.restart, self.lowest = 0, math.inf
        self.deadline = math.inf if attack.seconds is None else time.monotonic() + attack.seconds

    @property
    def over(self) -> bool:
        """Whether the time limit has passed."""
        return time.monotonic() >= self.deadline

    def go_on(self, done: int, lowest: float) -> bool:
        """Report progress, and return whether the restart may go on.

        Not if its lowest objective is as good as zero, or the time limit has passed. done: number
        of evaluations.
        """
        count, restarts = self.attack.evaluations, self.attack.restarts
        total = count * restarts
        text = f"restart {self.restart} of {restarts}, objective {min(lowest, self.lowest):.3g}"
        self.progress(min(count * (self.restart - 1) + done, total), total, text)
        return lowest > self.attack.tolerance and not self.over

    def time_share(self) -> Callable[[], float]:
        """A function that gives the used share (0 to 1 and more) of this restart's time.

        That time is the remaining time divided by the remaining restarts.
        """
        start = time.monotonic()
        seconds = (self.deadline - start) / (self.attack.restarts - self.restart + 1)
        return lambda: (time.monotonic() - start) / seconds if seconds > 0 else 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Minimum(Generic[P]):
    """The point of lowest objective over all restarts.

    point: the unknowns.
    objective: at the point.
    restarts: number of restarts that began.
    unexplained: by ``replay.unexplained``; None for a naive attack.
    """

    point: P
    objective: float
    restarts: int
    unexplained: float | None


def search(
    observation: Observation,
    attack: Search,
    minimum: Callable[[Watch], tuple[P, float]],
    batch: Callable[[P], tuple[Batch, Tensor]],
    progress: Progress,
) -> Minimum[P]:
    """The lowest of the minima from every start.

    minimum: a local search of the watch's restart; gives the point and its objective.
    batch: gives inputs and targets of a point.
    Ends at the first objective within the tolerance, and when the time limit has passed.
    """
    watch = Watch(attack, progress)
    points: list[P] = []
    for restart in range(1, attack.restarts + 1):
        watch.restart = restart
        point, value = minimum(watch)
        if not points or value < watch.lowest:
            points, watch.lowest = [point], value
        if watch.lowest <= attack.tolerance or watch.over:
            break
    total = attack.evaluations * attack.restarts
    progress(total, total, f"objective {watch.lowest:.3g}")
    remainder = None
    if attack.compare == "adaptive":
        inputs, targets = batch(points[0])
        scaled = DISTANCES[attack.distance].directions
        remainder = unexplained(observation, inputs, targets, scaled=scaled)
    return Minimum(
        point=points[0], objective=watch.lowest, restarts=watch.restart, unexplained=remainder
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Box:
    """The range of every unknown: its least and its greatest value, infinite where it is free."""

    low: Float[Tensor, " n"]
    high: Float[Tensor, " n"]


class _Lowest:
    """The energy and its gradient as a function, which keeps the lowest point so far."""

    def __init__(self, energy: Energy, go_on: GoOn) -> None:
        self.energy, self.go_on = energy, go_on
        self.value, self.evaluations = math.inf, 0
        self.point: Tensor | None = None

    def __call__(self, point: Tensor) -> tuple[float, Tensor]:
        point = point.detach().requires_grad_()
        energy = self.energy(point)
        (gradient,) = torch.autograd.grad(energy, point)
        self.evaluations += 1
        value = energy.item() if math.isfinite(energy.item()) else math.inf
        if self.point is None or value < self.value:
            self.value, self.point = value, point.detach().clone()
        # The norm of a gradient of exactly zero has no derivative: autograd gives NaN.
        return value, gradient.nan_to_num(0.0, 0.0, 0.0)

    def report_and_check(self) -> bool:
        """Report progress, and return whether the search has to stop."""
        return not self.go_on(self.evaluations, self.value)

    def result(self) -> tuple[Tensor, float]:
        assert self.point is not None
        return self.point, self.value


def lbfgs(
    energy: Energy, start: Tensor, box: Box, *, evaluations: int, settled: float = 0.0, go_on: GoOn
) -> tuple[Tensor, float]:
    """The lowest point found by L-BFGS-B (Byrd et al. 1995, SciPy's), and its value.

    settled: the search ends with a step that lowers max(1, value) by no more than this share of it.
    It also ends with the budget of evaluations, when ``go_on`` says so, and when steps are below
    the rounding of float64.
    Differs from DLG, whose L-BFGS has no box.
    """
    lowest = _Lowest(energy, go_on)

    def evaluate(point: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = lowest(torch.from_numpy(point).to(start))
        return min(value, INFINITE_ENERGY), gradient.double().cpu().numpy()

    # The parameter's name makes SciPy pass a result, and take StopIteration as the end.
    def check(intermediate_result: object) -> None:
        if lowest.report_and_check():
            raise StopIteration

    low, high = box.low.double().cpu().numpy(), box.high.double().cpu().numpy()
    options = {
        "maxfun": evaluations,
        "maxiter": evaluations,
        "maxcor": 50,
        "ftol": settled,
        "gtol": 0.0,
    }
    minimize(
        evaluate,
        start.double().cpu().numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=np.stack([low, high], axis=1),
        callback=check,
        options=options,
    )
    return lowest.result()


def adam(
    energy: Energy,
    start: Tensor,
    box: Box,
    *,
    evaluations: int,
    step_size: Tensor,
    signed: bool,
    go_on: GoOn,
    time_share: Callable[[], float] = lambda: 0.0,
) -> tuple[Tensor, float]:
    """The lowest point found by Adam within the box, and its value.

    step_size: of each unknown; it decays to 0 as a cosine.
    signed: whether only the signs of the gradient are used, as in Inverting Gradients (Geiping et
        al. 2020, App. A).
    time_share: gives the used share of a time limit. If it is ahead of the share of evaluations,
        the step size decays with the time: a search that is cut off at its first step size would
        end far from a minimum.
    Differs from that paper: a cosine instead of three drops of the step size.
    """
    lowest = _Lowest(energy, go_on)
    low, high = box.low.to(start), box.high.to(start)
    point, first, second = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for step in range(evaluations):
        _, gradient = lowest(point)
        if lowest.report_and_check():
            break
        gradient = gradient.sign() if signed else gradient
        first = BETA1 * first + (1 - BETA1) * gradient
        second = BETA2 * second + (1 - BETA2) * gradient.square()
        mean = first / (1 - BETA1 ** (step + 1))
        scale = (second / (1 - BETA2 ** (step + 1))).sqrt() + EPSILON
        share, used_time = step / evaluations, time_share()
        if used_time > share + MAX_LAG:
            share = used_time
        if share >= 1:
            break
        decay = 0.5 * (1 + math.cos(math.pi * share))
        point = (point - decay * step_size * mean / scale).clamp(low, high)
    return lowest.result()
