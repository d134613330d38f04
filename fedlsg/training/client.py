"""A client's part of a round: Poisson batch, per-example gradients, mask, clip, sum, noise; K steps in one frame."""

import math
from collections.abc import Callable, Sequence
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.carriers.powersgd import norm_of_factors
from fedlsg.frame import Frame
from fedlsg.gradients import Batch as Inputs
from fedlsg.gradients import (
    Checked,
    GhostGradients,
    LossFunction,
    batch_size,
    block_gradients,
    check,
    per_example_gradients,
    summable,
    summed_gradient,
)
from fedlsg.privacy import Coins, CoinsAhead, Mechanism, add_noise, clipped_sum, poisson_batch
from fedlsg.privacy.mechanism import NARROW_SUM
from fedlsg.randomness import SecretStream
from fedlsg.training.local import Batch, LocalTraining, Positions
from fedlsg.training.microbatches import Groups, check_alike, filled, runs_of, shape_of, together, without_filling
from fedlsg.training.plain import plain_steps, unprotected
from fedlsg.training.update import move

__all__ = ["Batch", "LocalTraining", "Positions", "client_step", "holds", "norm_bound", "per_unit"]


def client_step(
    model: nn.Module,
    batch: Batch,
    loss_fn: LossFunction,
    *,
    frame: Frame,
    mechanism: Mechanism,
    local: LocalTraining,
    num_examples: int,
    sampler: SecretStream,
    noise: SecretStream,
    charge: Callable[[], None],
    groups: Groups = together,
    scale: Sequence[Float[Tensor, " kept"]] | None = None,
    checked: Checked | None = None,
) -> Float[Tensor, " kept"]:
    """K local steps in one frame; the accumulated noisy sum of clipped per-example gradients, kept coordinates only.

    Each step has its own Poisson batch (Ito et al. 2023, Alg. 1 line 13). ``charge`` is called once, before the first
    batch: it writes the ledger for all K steps, or raises to forbid them. A step that fails later stays charged,
    because the failure may depend on the batch. The model comes back unchanged.
    ``groups`` says which positions may share a microbatch, for instance those of one padded length. An example's group
    and what ``batch`` makes of it must depend on that example alone (company.py). ``scale`` multiplies each block's
    gradients before the clip: by the weights it makes saliencies of them (snip.py).
    ``checked`` as in ``per_example_gradients``: many clients share a model and a frame.
    With momentum mu the result is sum_k v_k, v_k = mu v_(k-1) + s_k, so -lr Eq3(result) is the local change of W.
    Differs from the paper: one joint clip over all blocks and dense parameters (see privatize.py).
    """
    parameters = check(model, frame) if checked is None else checked
    charge()
    coins = CoinsAhead(sampler, batches=local.steps)
    if scale is None and unprotected(mechanism, frame, parameters):
        return plain_steps(
            model, batch, loss_fn, frame=frame, local=local, num_examples=num_examples, coins=coins, groups=groups,
            parameters=parameters,
        )  # fmt: skip
    dtype = reduce(torch.promote_types, (p.dtype for p in parameters.values()), torch.float32)
    start = [p.detach().clone() for p in parameters.values()] if local.steps > 1 else []
    velocity = accumulated = torch.zeros(0)
    try:
        for step in range(local.steps):
            total = _clipped_batch_sum(
                model, batch, loss_fn, frame, mechanism, local, num_examples, coins, groups, scale, parameters
            )
            if step == 0:
                velocity = add_noise(total, mechanism, noise).to(dtype)
                accumulated = velocity.clone() if local.momentum and local.steps > 1 else velocity
            else:  # in place: a large model's vectors cost more to allocate than to add
                noised = add_noise(total, mechanism, noise).to(dtype)
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
    coins: Coins,
    groups: Groups,
    scale: Sequence[Float[Tensor, " kept"]] | None,
    checked: Checked,
) -> Float[Tensor, " kept"]:
    """The sum over a Poisson batch; in float64 where it has several microbatches, or more than NARROW_SUM examples."""
    total: Tensor | None = None
    shape = shape_of(local, checked.values())
    runs = runs_of(poisson_batch(num_examples, local.sample_rate, coins), groups, shape)
    wide = len(runs) > 1 or len(runs[0][1]) > NARROW_SUM
    seen: dict[int, list[torch.Size]] = {}
    for group, micro in runs:
        inputs, targets = batch(micro)
        if mechanism.clips and shape.multiple > 1:
            check_alike(inputs, group, seen)
        if not mechanism.clips and scale is None and summable(frame):
            part = summed_gradient(model, loss_fn, inputs, targets, frame, checked=checked, numbers=local.numbers)
            part = part if local.multiplicity == 1 else part / local.multiplicity
            part = part.double() if len(runs) > 1 else part
        else:
            units = _units(
                model, loss_fn, inputs, targets, frame, mechanism, local, shape.rows(len(micro)), scale, checked
            )
            part = clipped_sum(units, mechanism, wide=wide)
        total = part if total is None else total.add_(part)
    assert total is not None  # runs_of() gives at least one run, an empty one for an empty batch
    return total


def _units(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Inputs,
    targets: Inputs,
    frame: Frame,
    mechanism: Mechanism,
    local: LocalTraining,
    rows: int,
    scale: Sequence[Float[Tensor, " kept"]] | None,
    checked: Checked,
) -> Sequence[Tensor | GhostGradients]:
    """What is clipped for each example of a microbatch, which is filled up to ``rows`` examples for its pass."""
    real, rows = batch_size(inputs, targets), rows * local.multiplicity
    inputs, targets = filled(inputs, rows), filled(targets, rows)
    if mechanism.clips and mechanism.clip == "joint" and local.multiplicity == 1 and scale is None and holds(frame):
        blocks = block_gradients(model, loss_fn, inputs, targets, frame, checked=checked, numbers=local.numbers)
        return without_filling(blocks, real)
    gradients = per_example_gradients(model, loss_fn, inputs, targets, frame, checked=checked, numbers=local.numbers)
    units = per_unit([g[:real] for g in gradients], frame, local.multiplicity)
    return units if scale is None else [g * factor for g, factor in zip(units, scale, strict=True)]


def holds(frame: Frame) -> bool:
    """Whether ghost clipping and any memory order are allowed: no block has a weight of its own in the clip."""
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
