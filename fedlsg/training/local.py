"""What a client does between two messages: how many steps, on which batches, in which precision."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from fedlsg.carriers.powersgd import norm_of_factors
from fedlsg.frame import Frame
from fedlsg.gradients import FLOAT32, Checked, LossFunction, Precision
from fedlsg.gradients import Batch as Inputs
from fedlsg.privacy import BernoulliDraws, Mechanism, ShuffledBatches, check_sample_rate

Positions = Int[Tensor, " batch"]
Batch = Callable[[Positions], tuple[Inputs, Any]]
"""Positions in the client's own data -> (inputs, targets)."""
Groups = Callable[[Positions], Sequence[Positions]]
"""A batch's positions in groups, none lost and none added; the group of a position depends on its example alone."""


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """A client's local optimizer. Only optimizers that are linear in the gradient are offered: SGD with momentum.

    For those the accumulated carriers carry the local change of W exactly. ``learning_rate`` matters from the second
    local step on; ``expected_batch`` = q N with the declared N divides the local steps, never a realised size.
    ``proximal`` is mu of FedProx (Li et al. 2020, Eq. 2): local steps descend on the loss + mu/2 |W - W_t|^2.
    A batch function gives ``multiplicity`` augmented copies of each example, one after the other, whose gradients are
    averaged before the clip (De et al. 2022): the unit stays the example. ``precision``: the precision.
    ``shuffled``: the batch size of shuffled batches, which divides the steps; 0: Poisson batches of ``sample_rate``.
    ``one_shape``: every microbatch has one public number of rows, whatever the weights are.
    """

    steps: int = 1
    sample_rate: float = 1.0
    learning_rate: float = 0.1
    momentum: float = 0.0
    expected_batch: float = 1.0
    microbatch_size: int = 256
    multiplicity: int = 1
    precision: Precision = FLOAT32
    one_shape: bool = False
    proximal: float = 0.0
    shuffled: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "microbatch_size", "multiplicity"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name}={getattr(self, name)} >= 1")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"expected 0 <= momentum={self.momentum} < 1")
        if not 0 < self.learning_rate < math.inf or not 0 < self.expected_batch < math.inf:
            raise ValueError(f"expected finite {self.learning_rate=} > 0 and {self.expected_batch=} > 0")
        check_sample_rate(self.sample_rate)
        if self.shuffled < 0 or (self.shuffled and self.expected_batch != self.shuffled):
            raise ValueError(
                f"expected {self.shuffled=} >= 0, and expected_batch={self.expected_batch:g} to be this batch size: a "
                "divisor may not depend on the data"
            )
        most = 2 * (1 + self.momentum)
        if not 0 <= self.pull < most:
            raise ValueError(
                f"expected 0 <= proximal * local_learning_rate < {most:g}, got {self.proximal:g} * "
                f"{self.learning_rate:g}: above it local steps diverge; lower one of the two"
            )

    @property
    def pull(self) -> float:
        """How much of W - W_t the proximal term takes off in a step: lr mu."""
        return self.learning_rate * self.proximal

    def at_rate(self, sample_rate: float) -> "LocalTraining":
        """The same at one client's own Poisson rate."""
        return replace(self, sample_rate=sample_rate)

    def single(self) -> "LocalTraining":
        """One step of it, without momentum and proximal term."""
        return replace(self, steps=1, momentum=0.0, proximal=0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """A batch that was drawn, after its charge; ``total``: its clipped sum, None if it is still to be computed."""

    positions: Positions
    total: Float[Tensor, " kept"] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class StepInputs:
    """The arguments of ``client_step`` that every local step reads.

    ``parameters``: those of the model, checked against the frame. ``draws`` decide which examples join which batch, by
    chance or as they come.
    """

    model: nn.Module
    batch: Batch
    loss_fn: LossFunction
    frame: Frame
    mechanism: Mechanism
    local: LocalTraining
    num_examples: int
    draws: BernoulliDraws | ShuffledBatches | Drawn
    groups: Groups
    scale: Sequence[Float[Tensor, " kept"]] | None
    parameters: Checked


def gains(steps: int, momentum: float, pull: float = 0.0) -> list[float]:
    """a_1 to a_K: how often a step counts in what is sent, if it is the last of K, the last but one, ..., the first.

    The response of the local recursion (``client_step``) to one sum: v_1 = a_1 = 1, v_k = momentum v_(k-1) - pull
    a_(k-1), a_k = a_(k-1) + v_k. Without a pull a_k = (1 - momentum^k) / (1 - momentum).
    """
    if not pull:
        return [(1 - momentum**k) / (1 - momentum) for k in range(1, steps + 1)]
    found, velocity = [1.0], 1.0
    while len(found) < steps:
        velocity = momentum * velocity - pull * found[-1]
        found.append(found[-1] + velocity)
    return found


def accumulated_noise(noise_std: float, steps: int, momentum: float, pull: float = 0.0) -> float:
    """Deviation of a coordinate's noise after K local steps: the noise of each counts as often as the step, ``gains``.

    ``pull``: ``LocalTraining.pull``.
    """
    return noise_std * math.sqrt(math.fsum(gain**2 for gain in gains(steps, momentum, pull)))


def norm_bound(mechanism: Mechanism, frame: Frame, *, num_examples: int, local: LocalTraining) -> float:
    """An L2 norm that an honest payload exceeds with negligible probability: N sensitivities a step, and the noise."""
    if not mechanism.clips:
        return math.inf
    signal = num_examples * mechanism.sensitivity(len(frame.blocks))
    tail = mechanism.noise_std * (math.sqrt(frame.kept) + 10)
    counted = local.steps / (1 - local.momentum)
    if local.pull:
        counted = math.fsum(map(abs, gains(local.steps, local.momentum, local.pull)))
    return 1.01 * (signal + tail) * counted + norm_of_factors(frame)
