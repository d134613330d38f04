"""The settings and inputs of a client's local training, and the shapes of its microbatches.

No example's gradient may depend on which examples of a batch share a pass, and in which shape. The
shape of a matrix product selects its kernel, and the kernel decides how each row is rounded. So
another number of rows, or another padded length, can change the rounding of every row. In float32
this moves a clipped gradient by less than 1e-6 C. In fewer bits it moves the gradients of all
neighbours by up to 1 % of C each. A single row has another kernel than several rows, in float32
too: it can flip a ReLU, which moves a gradient of a deep network by up to 8e-3 C (ResNet-34). These
are numbers of ordinary weights. Weights that an adversary chose can turn a last bit into a whole C,
wherever kernels differ: a client that does not trust its server takes ``LocalTraining.one_shape``.
So do carriers that can do the same, by ``Frame.one_shape``. Therefore:
    groups      runs of positions that may share a microbatch: equal shapes only, such as texts of
                one padded length
    shape       how many rows a microbatch has in the end; those that are missing are copies of its
                first row
A copied row changes nothing but the shape: its gradient is dropped before the clip.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedlsg.carriers.powersgd import norm_of_factors
from fedlsg.config import Setting, check_declared
from fedlsg.frame import Frame
from fedlsg.gradients import (
    FLOAT32,
    Checked,
    GhostGradients,
    LossFunction,
    Precision,
    keeps_float32_digits,
)
from fedlsg.gradients import Batch as Inputs
from fedlsg.gradients.isolation.levels import Isolation
from fedlsg.privacy import BernoulliDraws, Mechanism, ShuffledBatches, check_sample_rate
from fedlsg.tensors import each, fields_of
from fedlsg.training.example_gradients import BACKWARD, ExampleGradients
from fedlsg.training.persons import Persons

Positions = Int[Tensor, " batch"]
Batch = Callable[[Positions], tuple[Inputs, Any]]
"""Positions in the client's own data -> (inputs, targets)."""
Groups = Callable[[Positions], Sequence[Positions]]
"""A batch's positions in groups, none lost and none added; the group of a position depends on its
example alone.
"""
Count = Annotated[int, Setting(at_least=1)]
Positive = Annotated[float, Setting(above=0, below=math.inf)]


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """A client's local optimizer: SGD with momentum.

    Only optimizers that are linear in the gradient are offered: the accumulated carriers then carry
    the local change of W exactly.

    steps: K, local steps in a round.
    sample_rate: q, the Poisson rate of a batch.
    learning_rate: of local steps; it matters from the second one on.
    momentum: of local steps.
    expected_batch: B = q N with the declared mean N of all clients.
    own_batch: q_k N_k of one client, which divides its local steps; None: B. Neither batch is ever
        a realised size.
    microbatch_size: rows of one pass, at most.
    multiplicity: augmented copies of each example, which a batch function gives one after the
        other. Their gradients are averaged before the clip (De et al. 2022): the unit stays the
        example.
    precision: of passes.
    one_shape: whether every microbatch has one public number of rows, whatever the weights are.
    proximal: mu of FedProx (Li et al. 2020, Eq. 2): local steps descend on the loss
        + mu/2 |W - W_t|^2.
    shuffled: the size of shuffled batches, which divides the steps; 0: Poisson batches of
        ``sample_rate``.
    isolation: the level at which passes run the code of users (``gradients.isolation``).
    """

    steps: Count = 1
    sample_rate: float = 1.0
    learning_rate: Positive = 0.1
    momentum: Annotated[float, Setting(at_least=0, below=1)] = 0.0
    expected_batch: Positive = 1.0
    own_batch: Positive | None = None
    microbatch_size: Count = 256
    multiplicity: Count = 1
    precision: Precision = FLOAT32
    one_shape: bool = False
    proximal: float = 0.0
    shuffled: int = 0
    isolation: Isolation = "checked"

    def __post_init__(self) -> None:
        check_declared(self)
        check_sample_rate(self.sample_rate)
        if self.shuffled < 0 or (self.shuffled and self.expected_batch != self.shuffled):
            raise ValueError(
                f"expected {self.shuffled=} >= 0, and expected_batch={self.expected_batch:g} to be "
                "this batch size: a divisor may not depend on the data"
            )
        most = 2 * (1 + self.momentum)
        if not 0 <= self.pull < most:
            raise ValueError(
                f"expected 0 <= proximal * local_learning_rate < {most:g}, got {self.proximal:g} * "
                f"{self.learning_rate:g}: above it local steps diverge; lower one of the two"
            )

    @property
    def pull(self) -> float:
        """lr mu: the part of W - W_t that the proximal term removes in a step."""
        return self.learning_rate * self.proximal

    @property
    def batch(self) -> float:
        """q_k N_k, which divides the client's local steps."""
        return self.expected_batch if self.own_batch is None else self.own_batch

    @property
    def step_rate(self) -> float:
        """lr / (q_k N_k): the factor of a batch's sum in a local step."""
        return self.learning_rate / self.batch

    def of_client(self, sample_rate: float, num_examples: int) -> "LocalTraining":
        """The same for a client of ``num_examples`` declared examples, at its own Poisson rate."""
        batch = min(self.shuffled, num_examples) if self.shuffled else sample_rate * num_examples
        return replace(self, sample_rate=sample_rate, own_batch=float(batch))

    def at_rate(self, sample_rate: float) -> "LocalTraining":
        """The same at one client's own Poisson rate."""
        return replace(self, sample_rate=sample_rate)

    def single(self) -> "LocalTraining":
        """The same with one step, without momentum and proximal term."""
        return replace(self, steps=1, momentum=0.0, proximal=0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """A batch that was drawn, after its charge.

    positions: of the batch.
    total: its clipped sum; None if it is still to be computed.
    """

    positions: Positions
    total: Float[Tensor, " kept"] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class StepInputs:
    """The arguments of ``client_step`` that every local step reads.

    Those that are not here are described there.
    draws: decide which examples join which batch.
    parameters: those of the model, checked against the frame.
    persons: who is drawn and clipped in place of examples; ``num_examples`` counts them.
    gradients: computes the gradients of rows.
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
    persons: Persons | None = None
    gradients: ExampleGradients = BACKWARD


def gains(steps: int, momentum: float, pull: float = 0.0) -> list[float]:
    """a_1 to a_K: the factor in the sent sum of the last step, of the last but one, ..., the first.

    The response of the local recursion (``client_step``) to one sum: v_1 = a_1 = 1, v_k = momentum
    v_(k-1) - pull a_(k-1), a_k = a_(k-1) + v_k. Without a pull a_k = (1 - momentum^k) / (1 -
    momentum). pull: ``LocalTraining.pull``.
    """
    if not pull:
        return [(1 - momentum**k) / (1 - momentum) for k in range(1, steps + 1)]
    a, velocity = [1.0], 1.0
    while len(a) < steps:
        velocity = momentum * velocity - pull * a[-1]
        a.append(a[-1] + velocity)
    return a


def accumulated_noise(noise_std: float, steps: int, momentum: float, pull: float = 0.0) -> float:
    """Deviation of a coordinate's noise after K local steps.

    The noise of each step has the factor of the step (``gains``). pull: ``LocalTraining.pull``.
    """
    return noise_std * math.sqrt(math.fsum(gain**2 for gain in gains(steps, momentum, pull)))


def norm_bound(
    mechanism: Mechanism, frame: Frame, *, num_examples: int, local: LocalTraining
) -> float:
    """An L2 norm that an honest payload exceeds with negligible probability.

    (N sensitivities + sigma C (sqrt(kept) + 10)) times the sum of the steps' factors (``gains``),
    and 1 % for rounding. The norm of kept normal numbers is above sqrt(kept) + 10 with probability
    e^-50 at most. Infinite without a clip.
    """
    if not mechanism.clips:
        return math.inf
    signal = num_examples * mechanism.sensitivity(len(frame.blocks))
    noise = mechanism.noise_std * (math.sqrt(frame.kept) + 10)
    factors = local.steps / (1 - local.momentum)  # no less than the sum of gains without a pull
    if local.pull:
        factors = math.fsum(map(abs, gains(local.steps, local.momentum, local.pull)))
    return 1.01 * (signal + noise) * factors + norm_of_factors(frame)


FLOAT32_BYTES = 4
"""Bytes of a float32 number."""
MIN_MICROBATCH_ROWS = 2
"""Rows of a microbatch, at least, if it may have more than one: a single row has another kernel."""
ROWS_ON_CPU = 8
"""Kernels for processors round multiples of so many rows alike: in fewer bits whatever their
number, in float32 whatever a row's place among them (measured in docs/results/sensitivity.md).
"""


def together(positions: Positions) -> Sequence[Positions]:
    """The positions as one group, for examples of equal shape."""
    return [positions]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The rows of microbatches. Both numbers are public.

    size: examples of a microbatch, at most.
    multiple: a microbatch is filled up to a multiple of it.
    """

    size: int
    multiple: int = 1

    def rows(self, count: int) -> int:
        """Rows of a microbatch of ``count`` examples; 0 for an empty one."""
        if not count:
            return 0
        filled = math.ceil(count / self.multiple) * self.multiple
        return min(self.size, max(filled, MIN_MICROBATCH_ROWS))


def shape_of(
    local: LocalTraining, parameters: Iterable[Tensor], *, one_shape: bool = False
) -> Shape:
    """The shape that every microbatch of a run has.

    one_shape: of the frame.
        float32 on a processor       as many rows as examples, but ``MIN_MICROBATCH_ROWS`` for one
        fewer bits on a processor    a multiple of ``ROWS_ON_CPU``
        other devices, one_shape     always one number of rows: the microbatch size, or the batch
                                     size that is hardly ever exceeded (6 deviations above the
                                     mean), if that is less. On a processor the next multiple of
                                     ``ROWS_ON_CPU``, because all later rows move up by one place
                                     if a row leaves
    """
    weights = list(parameters)
    size = max(1, local.microbatch_size // local.multiplicity)
    on_cpu = all(p.device.type == "cpu" for p in weights)
    if one_shape or local.one_shape or not on_cpu:
        size = min(size, math.ceil(local.expected_batch + 6 * math.sqrt(local.expected_batch)))
        if on_cpu and size > 1:
            size = math.ceil(size / ROWS_ON_CPU) * ROWS_ON_CPU
        return Shape(size=size, multiple=size)
    if (
        local.precision == FLOAT32
        and keeps_float32_digits("cpu")
        and all(p.itemsize >= FLOAT32_BYTES for p in weights)
    ):
        return Shape(size=size)
    return Shape(size=size, multiple=min(size, ROWS_ON_CPU))


def runs_of(
    batch: Positions, groups: Groups, shape: Shape, *, in_order: bool = False
) -> list[tuple[int, Positions]]:
    """The microbatches (runs) of a batch, each with the number of its group.

    An empty batch is one empty run. in_order: whether each group is in the order of the batch,
    however ``groups`` sorts it.
    Raises ValueError if the groups do not hold exactly the batch's positions.
    """
    parts = [group for group in groups(batch) if len(group)]
    is_whole = len(parts) == 1 and parts[0] is batch
    if not is_whole and not torch.equal(
        torch.cat([batch[:0], *parts]).sort().values, batch.sort().values
    ):
        raise ValueError(
            "expected groups that hold every position of the batch once; return each in one group"
        )
    if in_order and not is_whole:
        parts = [batch[torch.isin(batch, group)] for group in parts]
    if not parts:
        return [(0, batch)]
    return [(number, run) for number, group in enumerate(parts) for run in group.split(shape.size)]


def check_alike(inputs: Inputs, group: int, seen: dict[int, list[torch.Size]]) -> None:
    """Raise ValueError if a group's microbatches differ in shape.

    One example's length would change the rounding of others. seen: shapes of each group so far. The
    message does not contain the shapes, which are private.
    """
    shapes = [t.shape[1:] for t in fields_of(inputs).values()]
    if seen.setdefault(group, shapes) != shapes:
        raise ValueError(
            "expected inputs of one shape from all microbatches of a group, found several: padding "
            "to the longest of a microbatch lets one example change the rounding of others by more "
            "than the privacy bound allows, in bfloat16, in half precision, on devices other than "
            "a CPU, and by methods that scale rounding up (dp-kfc, gep); pad each example to the "
            "next of a public list of lengths and return each length as a group of its own "
            "(groups=), or set precision=float32 and activation_storage=float32 on a CPU, with "
            "another method"
        )


def fill(batch: Inputs, rows: int) -> Inputs:
    """Inputs or targets with copies of the first row after the last, so that there are ``rows``."""

    def fill_tensor(t: Tensor) -> Tensor:
        missing = rows - len(t)
        return t if missing <= 0 else torch.cat([t, t[:1].expand(missing, *t.shape[1:])])

    filled: Inputs = each(batch, fill_tensor)
    return filled


def without_filling(
    gradients: Sequence[Tensor | GhostGradients], rows: int
) -> list[Tensor | GhostGradients]:
    """The gradients of the first ``rows`` rows: those of examples."""
    if not gradients or gradients[0].shape[0] == rows:
        return [*gradients]
    return [g.first(rows) if isinstance(g, GhostGradients) else g[:rows] for g in gradients]
