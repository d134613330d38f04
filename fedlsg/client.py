"""A client's part of a round: Poisson batch, per-example gradients, mask, clip, sum, noise; K steps in one frame."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedlsg.frame import Frame
from fedlsg.held import Held
from fedlsg.persample import Batch as Inputs
from fedlsg.persample import LossFunction, held_gradients, per_example_gradients
from fedlsg.powersgd import norm_of_factors
from fedlsg.precision import FLOAT32, Numbers
from fedlsg.privatize import Mechanism, add_noise, clipped_sum
from fedlsg.randomness import SecretStream
from fedlsg.sampling import Coins, check_sample_rate, microbatches, poisson_batch
from fedlsg.summed import summable, summed_gradient
from fedlsg.supported import Checked, check
from fedlsg.update import move

Positions = Int[Tensor, " batch"]
Batch = Callable[[Positions], tuple[Inputs, Tensor]]
"""Positions in the client's own data -> (inputs, targets)."""


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """A client's local optimizer. Only optimizers that are linear in the gradient are offered: SGD with momentum.

    For those the accumulated carriers carry the local change of W exactly. ``learning_rate`` matters from the second
    local step on; ``expected_batch`` = q N with the declared N divides the local steps, never a realised size.
    A batch function gives ``multiplicity`` augmented copies of each example, one after the other, whose gradients are
    averaged before the clip (De et al. 2022): the unit stays the example. ``numbers``: see precision.py.
    """

    steps: int = 1
    sample_rate: float = 1.0
    learning_rate: float = 0.1
    momentum: float = 0.0
    expected_batch: float = 1.0
    microbatch_size: int = 256
    multiplicity: int = 1
    numbers: Numbers = FLOAT32

    def __post_init__(self) -> None:
        for name in ("steps", "microbatch_size", "multiplicity"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected {name}={getattr(self, name)} >= 1")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"expected 0 <= momentum={self.momentum} < 1")
        if not 0 < self.learning_rate < math.inf or not 0 < self.expected_batch < math.inf:
            raise ValueError(f"expected finite {self.learning_rate=} > 0 and {self.expected_batch=} > 0")
        check_sample_rate(self.sample_rate)

    def at_rate(self, sample_rate: float) -> "LocalTraining":
        """The same at one client's own Poisson rate."""
        return replace(self, sample_rate=sample_rate)

    def single(self) -> "LocalTraining":
        """One step of it, without momentum."""
        return replace(self, steps=1, momentum=0.0)


def client_step(
    model: nn.Module,
    batch: Batch,
    loss_fn: LossFunction,
    *,
    frame: Frame,
    mechanism: Mechanism,
    local: LocalTraining,
    num_examples: int,
    sampler: Coins,
    noise: SecretStream,
    charge: Callable[[], None],
    order: Callable[[Positions], Positions] = lambda positions: positions,
    scale: Sequence[Float[Tensor, " kept"]] | None = None,
    checked: Checked | None = None,
) -> Float[Tensor, " kept"]:
    """K local steps in one frame; the accumulated noised sum of clipped per-example gradients, kept coordinates only.

    Each step has its own Poisson batch (000 Alg. 1 line 13). ``charge`` is called once, before the first noise is
    drawn: it writes the ledger for all K steps and raises to forbid the release. The model comes back unchanged.
    ``order`` may sort a batch before it is cut into microbatches (by length, so that little is padded). ``scale``
    multiplies each block's gradients before the clip: by the weights it makes saliencies of them (snip.py).
    ``checked`` as in ``per_example_gradients``: many clients share a model and a frame.
    With momentum mu the result is sum_k v_k, v_k = mu v_(k-1) + s_k, so -lr Eq3(result) is the local change of W.
    Differs from the paper: one joint clip over all blocks and dense parameters (see privatize.py).
    """
    parameters = check(model, frame) if checked is None else checked
    start = [p.detach().clone() for p in parameters.values()] if local.steps > 1 else []
    velocity = accumulated = torch.zeros(0)
    try:
        for step in range(local.steps):
            total = _clipped_batch_sum(
                model, batch, loss_fn, frame, mechanism, local, num_examples, sampler, order, scale, parameters
            )
            if step == 0:
                charge()
                velocity = add_noise(total, mechanism, noise)
                accumulated = velocity.clone() if local.momentum and local.steps > 1 else velocity
            else:  # in place: a large model's vectors cost more to allocate than to add
                noised = add_noise(total, mechanism, noise)
                velocity = velocity.mul_(local.momentum).add_(noised) if local.momentum else noised
                accumulated.add_(velocity)
            if step + 1 < local.steps:
                rate = -local.learning_rate / local.expected_batch
                move(parameters, frame, velocity, dict.fromkeys(parameters, rate))
    finally:
        with torch.no_grad():
            for p, value in zip(parameters.values(), start, strict=False):
                p.copy_(value)
    return accumulated


def _clipped_batch_sum(
    model: nn.Module,
    batch: Batch,
    loss_fn: LossFunction,
    frame: Frame,
    mechanism: Mechanism,
    local: LocalTraining,
    num_examples: int,
    sampler: Coins,
    order: Callable[[Positions], Positions],
    scale: Sequence[Float[Tensor, " kept"]] | None,
    checked: Checked,
) -> Float[Tensor, " kept"]:
    total: Tensor | None = None
    size = max(1, local.microbatch_size // local.multiplicity)
    for micro in microbatches(order(poisson_batch(num_examples, local.sample_rate, sampler)), size):
        inputs, targets = batch(micro)
        units: Sequence[Tensor | Held]
        if not mechanism.clips and scale is None and summable(frame):
            part = summed_gradient(model, loss_fn, inputs, targets, frame, checked=checked, numbers=local.numbers)
            part = part if local.multiplicity == 1 else part / local.multiplicity
            total = part if total is None else total + part
            continue
        if mechanism.clips and mechanism.clip == "joint" and local.multiplicity == 1 and scale is None and holds(frame):
            units = held_gradients(model, loss_fn, inputs, targets, frame, checked=checked, numbers=local.numbers)
        else:
            gradients = per_example_gradients(
                model, loss_fn, inputs, targets, frame, checked=checked, numbers=local.numbers
            )
            units = per_unit(gradients, frame, local.multiplicity)
            if scale is not None:
                units = [g * factor for g, factor in zip(units, scale, strict=True)]
        part = clipped_sum(units, mechanism)
        total = part if total is None else total + part
    assert total is not None  # microbatches() yields at least one run, an empty one for an empty batch
    return total


def holds(frame: Frame) -> bool:
    """Whether gradients may be held back, or stay in the order they come in: no block weighs more than another."""
    return all(b.weight == 1 for b in frame.blocks)


def per_unit(
    gradients: Sequence[Float[Tensor, "copies kept"]], frame: Frame, multiplicity: int
) -> list[Float[Tensor, "batch kept"]]:
    """What is clipped for one example: the mean over its copies, times the block's weight in the clip."""
    mean = [g if multiplicity == 1 else g.unflatten(0, (-1, multiplicity)).mean(1) for g in gradients]
    return [g if b.weight == 1 else g * b.weight for g, b in zip(mean, frame.blocks, strict=True)]


def norm_bound(mechanism: Mechanism, frame: Frame, *, num_examples: int, local: LocalTraining) -> float:
    """An L2 norm that an honest payload exceeds with negligible probability: N sensitivities a step, and the noise."""
    if not mechanism.clips:
        return math.inf
    signal = num_examples * mechanism.sensitivity(len(frame.blocks))
    tail = mechanism.noise_std * (math.sqrt(frame.kept) + 10)
    return 1.01 * (signal + tail) * local.steps / (1 - local.momentum) + norm_of_factors(frame)
