"""A client's part of a round: K steps in one frame, each with batch, clip, sum and noise.

Local steps without clip, noise or mask (``plain_steps``) form no flat vector before the last step.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import reduce
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlsg.frame import Frame
from fedlsg.gradients import Batch as Inputs
from fedlsg.gradients import (
    Checked,
    GhostGradients,
    LossFunction,
    batch_size,
    check,
    summable,
    summed_gradient,
    summed_gradients,
)
from fedlsg.gradients.hooked_pass.model_facts import same_weights
from fedlsg.gradients.isolation.state import uninterrupted
from fedlsg.privacy import (
    BernoulliDraws,
    Mechanism,
    ShuffledBatches,
    add_noise,
    clipped_sum,
    permutation,
    poisson_batch,
)
from fedlsg.privacy.clip import NARROW_SUM
from fedlsg.privacy.clip_norms import clip_parts
from fedlsg.randomness import SecretStream
from fedlsg.tensors import each
from fedlsg.training.example_gradients import BACKWARD, ExampleGradients
from fedlsg.training.local_training import (
    MIN_MICROBATCH_ROWS,
    Batch,
    Drawn,
    Groups,
    LocalTraining,
    Positions,
    Shape,
    StepInputs,
    check_alike,
    fill,
    runs_of,
    shape_of,
    together,
    without_filling,
)
from fedlsg.training.persons import Persons

Update = Float[Tensor, " kept"]
AddNoise = Callable[[Tensor, Mechanism, SecretStream], Tensor]
"""(clipped sum, mechanism, stream) -> the sum with noise, as it is sent."""

__all__ = [
    "Batch",
    "LocalTraining",
    "Positions",
    "allows_ghost_clipping",
    "client_step",
    "per_unit",
]


def client_step(
    model: nn.Module,
    batch: Batch,
    loss_fn: LossFunction,
    *,
    frame: Frame,
    mechanism: Mechanism,
    local: LocalTraining,
    num_examples: int,
    sampler: SecretStream | ShuffledBatches | Drawn,
    noise: SecretStream,
    charge: Callable[[], None],
    groups: Groups = together,
    scale: Sequence[Update] | None = None,
    checked: Checked | None = None,
    add: AddNoise | None = None,
    persons: Persons | None = None,
    gradients: ExampleGradients = BACKWARD,
) -> Update:
    """The accumulated noisy sum of clipped per-example gradients over K local steps in one frame.

    Kept coordinates only. Each step has its own Poisson batch (Ito et al. 2023, Alg. 1 line 13), or
    the next batch of the ``sampler`` under ``local.shuffled``. The model is left unchanged.
    sampler: of the batches. A batch that is ``Drawn`` was charged and drawn before, and may have
        been summed in one pass with other clients' (``one_pass``).
    charge: is called once, before the first batch: it writes the ledger for all K steps, or raises
        to forbid them. A step that fails later stays charged, because the failure may depend on the
        batch.
    groups: which positions may share a microbatch. The group of an example, and what ``batch``
        makes of it, must depend on that example alone.
    scale: factors of the gradients before the clip; weights as factors give saliencies.
    checked: the result of ``check`` for this model and frame, which many clients share.
    add: replaces ``add_noise`` for a single step: noise on a grid, whose integers are returned as
        they are. It gets the sum in float64.
    persons: batches draw persons, and the gradient of a person is clipped, whatever the number of
        its rows. ``num_examples`` and the expected batch then count persons; ``batch`` and
        ``groups`` still get positions of rows.
    gradients: computes the gradients of single rows.
    Differs from the paper: one joint clip over all blocks and dense parameters (``Mechanism``).
    """
    parameters = check(model, frame) if checked is None else checked
    if add is not None and not (mechanism.clips and local.steps == 1):
        raise ValueError(
            f"noise on a grid is for one clipped step, got {local.steps} under {mechanism.kind!r}"
        )
    if persons is not None:
        check_persons(persons, mechanism, num_examples, sampler)
    charge()
    inputs = StepInputs(
        model=model,
        batch=batch,
        loss_fn=loss_fn,
        frame=frame,
        mechanism=mechanism,
        local=local,
        groups=groups,
        num_examples=num_examples,
        draws=draws_of(local, num_examples, sampler),
        scale=scale,
        parameters=parameters,
        persons=persons,
        gradients=gradients,
    )
    if add is not None:
        return add(clipped_batch_sum(inputs, wide=True), mechanism, noise)
    plain = scale is None and unprotected(mechanism, frame, parameters)
    return plain_steps(inputs) if plain else _noisy_steps(inputs, noise)


def check_persons(
    persons: Persons,
    mechanism: Mechanism,
    num_examples: int,
    sampler: SecretStream | ShuffledBatches | Drawn,
) -> None:
    """Raise ValueError unless the steps are what a unit of persons is charged for."""
    if persons.count != num_examples:
        raise ValueError(f"expected {num_examples=} to count the {persons.count} persons")
    if not mechanism.clips:
        raise ValueError(f"expected a mechanism that clips persons, got {mechanism.kind!r}")
    if not isinstance(sampler, SecretStream):
        raise ValueError("expected a stream of Poisson batches, from which persons are drawn")


def draws_of(
    local: LocalTraining, num_examples: int, sampler: SecretStream | ShuffledBatches | Drawn
) -> BernoulliDraws | ShuffledBatches | Drawn:
    """The draws of the batches, from a sampler.

    Raises ValueError unless the sampler is of the kind that ``local`` declares: the ledger is
    charged for that.
    """
    if isinstance(sampler, Drawn):
        if local.steps != 1:
            raise ValueError(
                f"expected one local step on a batch that was drawn before, got {local.steps}"
            )
        return sampler
    if not isinstance(sampler, ShuffledBatches):
        if local.shuffled:
            raise ValueError(
                f"expected shuffled batches of {local.shuffled} examples, got a stream of Poisson "
                "batches"
            )
        return BernoulliDraws(sampler, batches=local.steps)
    if (sampler.batch_size, sampler.num_examples) != (local.shuffled, num_examples):
        raise ValueError(
            f"expected batches of {local.shuffled} of {num_examples} examples (0: Poisson "
            f"batches), got shuffled batches of {sampler.batch_size} of {sampler.num_examples}"
        )
    return sampler


def unprotected(mechanism: Mechanism, frame: Frame, parameters: Checked) -> bool:
    """Whether the result is the plain sum of all gradients, in the memory order of sending."""
    if mechanism.clips or mechanism.adds_noise or frame.kept != frame.size or not summable(frame):
        return False
    alike = all(
        a.dtype == b.dtype and a.device == b.device for a, b in pairwise(parameters.values())
    )
    return alike and all(p.is_contiguous() for p in parameters.values())


def _noisy_steps(x: StepInputs, noise: SecretStream) -> Update:
    """A_K = sum_k v_k of noisy sums s_k, with v_k = m v_(k-1) + s_k - lr mu A_(k-1).

    m is the momentum. After a step W moves by -lr / (q_k N_k) times the lift (Eq. 3) of v_k. The
    gradient of FedProx's mu/2 |W - W_t|^2 is mu (W - W_t), which is -lr mu times the lift of
    A_(k-1), because the lift is linear. It is made from noisy values, in their coordinates, and
    reads no example.
    """
    local, parameters = x.local, x.parameters
    dtype = reduce(torch.promote_types, {p.dtype for p in parameters.values()}, torch.float32)
    start = [p.detach().clone() for p in parameters.values()] if local.steps > 1 else []
    velocity = accumulated = torch.zeros(0)
    try:
        for step in range(local.steps):
            noisy = add_noise(clipped_batch_sum(x), x.mechanism, noise).to(dtype)
            if step == 0:
                velocity = noisy
                accumulated = velocity.clone() if local.momentum and local.steps > 1 else velocity
            else:  # in place: for a large model, allocating vectors takes longer than adding them
                velocity = velocity.mul_(local.momentum).add_(noisy) if local.momentum else noisy
                if local.pull:
                    velocity.add_(accumulated, alpha=-local.pull)
                accumulated.add_(velocity)
            if step + 1 < local.steps:
                x.frame.add_to(parameters, velocity, dict.fromkeys(parameters, -local.step_rate))
    finally:
        if start:
            with torch.no_grad():
                torch._foreach_copy_(list(parameters.values()), start)
    return accumulated


def clipped_batch_sum(x: StepInputs, *, wide: bool = False) -> Update:
    """The sum of clipped gradients over the next batch.

    In float64 if ``wide``, for several microbatches, and for more than ``NARROW_SUM`` examples.
    """
    if isinstance(x.draws, Drawn) and x.draws.total is not None:
        return x.draws.total
    if x.persons is not None:
        return _sum_of_persons(x, x.persons)
    total: Tensor | None = None
    shape = shape_of(x.local, x.parameters.values(), one_shape=x.frame.one_shape)
    batch = next_batch(x)
    shuffled = 0  # rows of a microbatch in random order, at most; 0: no random order
    on_cpu = all(p.device.type == "cpu" for p in x.parameters.values())
    if x.mechanism.clips and not on_cpu and isinstance(x.draws, BernoulliDraws):
        batch, shuffled = batch[permutation(len(batch), x.draws.stream)], shape.size
    # sums on a GPU rest on a random order of rows, which a user's groups must not sort
    runs = runs_of(batch, x.groups, shape, in_order=shuffled > 0)
    wide = wide or len(runs) > 1 or len(runs[0][1]) > NARROW_SUM
    seen: dict[int, list[torch.Size]] = {}
    with same_weights(x.frame), closing(_batches_of(x, runs, shape.size)) as batches:
        for group, rows, inputs, targets in batches:
            if x.mechanism.clips and shape.multiple > 1:
                check_alike(inputs, group, seen)
            if not x.mechanism.clips and x.scale is None and summable(x.frame):
                part = summed_gradient(
                    x.model,
                    x.loss_fn,
                    inputs,
                    targets,
                    x.frame,
                    checked=x.parameters,
                    precision=x.local.precision,
                )
                part = part if x.local.multiplicity == 1 else part / x.local.multiplicity
                part = part.double() if len(runs) > 1 else part
            else:
                part = clipped_sum(
                    units_of(x, inputs, targets, shape.rows(rows)),
                    x.mechanism,
                    wide=wide,
                    **({"shuffled": shuffled} if shuffled else {}),
                )
            total = part if total is None else total.add_(part)
    assert total is not None  # runs_of() gives at least one run, an empty one for an empty batch
    return total


def _batches_of(
    x: StepInputs, runs: Sequence[tuple[int, Positions]], size: int
) -> Generator[tuple[int, int, Inputs, Inputs], None, None]:
    """The group, the number of rows, inputs and targets of each run.

    Runs of at most ``size`` rows together are made before the first of their passes, so that the
    passes follow each other without a break: rows of many shapes take many small passes. Each run
    is copied before the next one is made, because a user's function may fill one buffer for all of
    them.
    """
    waiting = deque(runs)
    while waiting:
        next_runs = [waiting.popleft()]
        rows = len(next_runs[0][1])
        while waiting and rows + len(waiting[0][1]) <= size:
            rows += len(waiting[0][1])
            next_runs.append(waiting.popleft())
        if len(next_runs) == 1:
            batches = [x.batch(next_runs[0][1])]
        else:
            batches = [
                (each(inputs, torch.clone), each(targets, torch.clone))
                for inputs, targets in (x.batch(run) for _, run in next_runs)
            ]
        with uninterrupted():
            for (group, run), (inputs, targets) in zip(next_runs, batches, strict=True):
                yield group, len(run), inputs, targets


def _sum_of_persons(x: StepInputs, persons: Persons) -> Update:
    """The sum over a batch of persons, each clipped once, in float64.

    As many persons as a microbatch has rows are clipped together: memory is bounded, however many
    rows a person has.
    """
    assert isinstance(x.draws, BernoulliDraws)
    size = max(1, x.local.microbatch_size // x.local.multiplicity)
    device = next(iter(x.parameters.values())).device
    total = torch.zeros(x.frame.kept, dtype=torch.float64, device=device)
    with same_weights(x.frame):
        for microbatch in next_batch(x).split(size):
            gradients = [
                _gradient_of_person(x, persons, rows, size)
                for rows in persons.rows_of(microbatch, x.draws.stream)
            ]
            if gradients:
                stacked = [torch.stack(block) for block in zip(*gradients, strict=True)]
                units = scaled(per_unit(stacked, x.frame, 1), x.scale)
                total += clipped_sum(units, x.mechanism, wide=True)
    return total


def _gradient_of_person(
    x: StepInputs, persons: Persons, rows: Positions, size: int
) -> list[Float[Tensor, " kept"]]:
    """The mean, or the sum, of the gradients of these rows of one person, block by block.

    Nobody else is in its passes, so that no bit of it depends on other persons.
    """
    totals: list[Tensor] = []
    for _, run in runs_of(rows, x.groups, Shape(size=size)):
        gradients = row_gradients(x, *x.batch(run), max(len(run), MIN_MICROBATCH_ROWS))
        sums = [g.sum(0, dtype=torch.promote_types(g.dtype, torch.float32)) for g in gradients]
        totals = [a.add_(b) for a, b in zip(totals, sums, strict=True)] if totals else sums
    return totals if persons.gradient == "sum" else [total / len(rows) for total in totals]


def next_batch(x: StepInputs) -> Positions:
    """The positions of the next batch, which are drawn now unless they were drawn before."""
    if isinstance(x.draws, Drawn):
        return x.draws.positions
    if isinstance(x.draws, ShuffledBatches):
        return x.draws.next_batch()
    return poisson_batch(x.num_examples, x.local.sample_rate, x.draws)


def units_of(
    x: StepInputs, inputs: Inputs, targets: Inputs, rows: int
) -> Sequence[Tensor | GhostGradients]:
    """What is clipped for each example of a microbatch.

    rows: examples of the pass; copies fill the microbatch up.
    """
    blocks = x.gradients.blocks if allows_ghost_clipping(x.frame) else None
    joint = x.mechanism.clips and x.mechanism.clip == "joint"
    if joint and x.local.multiplicity == 1 and x.scale is None and blocks is not None:
        return without_filling(
            _of_pass(blocks, x, inputs, targets, rows), batch_size(inputs, targets)
        )
    return scaled(per_unit(row_gradients(x, inputs, targets, rows), x.frame, 1), x.scale)


def row_gradients(
    x: StepInputs, inputs: Inputs, targets: Inputs, rows: int
) -> list[Float[Tensor, "batch kept"]]:
    """The gradient of each row of a microbatch, filled up to ``rows``: the mean over its copies."""
    copies, real = x.local.multiplicity, batch_size(inputs, targets)
    filled = _of_pass(x.gradients.rows, x, inputs, targets, rows * copies)
    return mean_of_copies([g[:real] for g in filled], copies)


def _of_pass(
    gradients: Callable[..., Any], x: StepInputs, inputs: Inputs, targets: Inputs, rows: int
) -> Any:
    """The result of ``gradients`` for a microbatch that is filled up to ``rows``."""
    # at "rows" each example is alone, and the shape of a pass depends on no other example
    if x.local.isolation != "rows":
        inputs, targets = fill(inputs, rows), fill(targets, rows)
    return gradients(
        x.model,
        x.loss_fn,
        inputs,
        targets,
        x.frame,
        checked=x.parameters,
        precision=x.local.precision,
        isolation=x.local.isolation,
    )


def scaled(
    units: Sequence[Tensor], scale: Sequence[Float[Tensor, " kept"]] | None
) -> Sequence[Tensor]:
    """What is clipped, times the factors of its coordinates."""
    return units if scale is None else [g * factor for g, factor in zip(units, scale, strict=True)]


def allows_ghost_clipping(frame: Frame) -> bool:
    """Whether no block has a weight of its own in the clip.

    Then ghost clipping and any memory order are allowed.
    """
    return frame.part_norm is None and all(b.weight == 1 for b in frame.blocks)


def per_unit(
    gradients: Sequence[Float[Tensor, "copies kept"]], frame: Frame, multiplicity: int
) -> list[Float[Tensor, "batch kept"]]:
    """What is clipped for one example, block by block.

    The mean over its copies, times the block's weight, each part clipped to its own norm.
    """
    mean = mean_of_copies(gradients, multiplicity)
    return clip_parts(
        [g if b.weight == 1 else g * b.weight for g, b in zip(mean, frame.blocks, strict=True)],
        frame,
    )


def mean_of_copies(
    gradients: Sequence[Float[Tensor, "copies kept"]], multiplicity: int
) -> list[Float[Tensor, "batch kept"]]:
    """The gradient of each row: the mean over its augmented copies."""
    if multiplicity == 1:
        return [*gradients]
    return [g.unflatten(0, (-1, multiplicity)).mean(1) for g in gradients]


Gradients = list[Tensor]
"""One tensor a parameter, in its shape."""


def plain_steps(x: StepInputs) -> Update:
    """The result of ``client_step`` where ``unprotected``, bit for bit.

    The steps were charged. The model is left unchanged.
    """
    owned: list[Tensor] = list(x.parameters.values())
    start = [p.detach().clone() for p in owned] if x.local.steps > 1 else []
    try:
        return _steps(owned, lambda: _batch_gradients(x), x.local)
    finally:
        if start:
            with torch.no_grad():
                torch._foreach_copy_(owned, start)


def _steps(owned: list[Tensor], gradients: Callable[[], Gradients], local: LocalTraining) -> Update:
    """A_K = sum_k v_k, with v_k = m v_(k-1) + s_k - lr mu A_(k-1).

    W moves by -lr / (q_k N_k) times v_k after each step but the last.
    """
    velocity = gradients()
    with torch.no_grad():
        accumulated = torch.cat([v.flatten() for v in velocity])
        runs = accumulated.split([p.numel() for p in owned])
        parts = [run.view(p.shape) for run, p in zip(runs, owned, strict=True)]
        # changed in place below, and autograd may give one tensor to two parameters
        if local.momentum:
            velocity = [v.clone() for v in velocity]
        for _ in range(local.steps - 1):
            torch._foreach_add_(owned, velocity, alpha=-local.step_rate)
            step = gradients()
            if local.momentum:
                torch._foreach_mul_(velocity, local.momentum)
                torch._foreach_add_(velocity, step)
            else:
                velocity = step
            if local.pull:
                velocity = list(torch._foreach_add(velocity, parts, alpha=-local.pull))
            torch._foreach_add_(parts, velocity)
    return accumulated


def _batch_gradients(x: StepInputs) -> Gradients:
    """The sum of gradients over the next batch; in float64 if there are several microbatches."""
    local = x.local
    total: Gradients | None = None
    runs = runs_of(next_batch(x), x.groups, shape_of(local, x.parameters.values()))
    for _, run in runs:
        part = summed_gradients(
            x.model,
            x.loss_fn,
            *x.batch(run),
            x.frame,
            checked=x.parameters,
            precision=local.precision,
        )
        if local.multiplicity > 1:
            part = [g / local.multiplicity for g in part]
        part = [g.double() for g in part] if len(runs) > 1 else part
        total = part if total is None else [t.add_(g) for t, g in zip(total, part, strict=True)]
    assert total is not None  # runs_of() gives at least one run, an empty one for an empty batch
    types = [torch.promote_types(p.dtype, torch.float32) for p in x.parameters.values()]
    return [g.to(dtype).contiguous() for g, dtype in zip(total, types, strict=True)]
