"""The clipped sums of several clients with the same weights and frame, in one pass.

The step of a small client is mostly Python; in one pass this is paid once for all of them.
    slot     the rows of a client: as many as its batch hardly ever exceeds, from public numbers
             alone. Copies fill it up
    pass     the slots one after the other, filled up to a multiple of ROWS_ON_CPU: its shape is
             public
    alone    a batch that is larger than its slot, or that cannot be computed, is left to the
             client's own step
Guarantee: no bit of a client's sum depends on rows of other clients: those change neither the shape
nor the place of its rows. Its sum is that of ``client_step`` up to the rounding of another shape.
Rows of one client meet in its own sum only; a copy, and a row of another client, is in none of its
runs.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from fedlsg.gradients import Batch as Inputs
from fedlsg.privacy.clip import clipped_sums
from fedlsg.tensors import each
from fedlsg.training.client_round import clipped_batch_sum, units_of
from fedlsg.training.local_training import (
    ROWS_ON_CPU,
    Drawn,
    LocalTraining,
    StepInputs,
    fill,
    shape_of,
)
from fedlsg.user_code.failure import without_exit

DEVIATIONS = 2.0
"""Deviations above its mean up to which a batch fits its slot. One batch in forty is larger; larger
slots would cost time for empty rows.
"""


def slot_of(local: LocalTraining, num_examples: int) -> int:
    """Rows of a client in a pass."""
    if local.shuffled:
        return min(local.shuffled, num_examples)
    mean = local.sample_rate * num_examples
    return min(
        num_examples, math.ceil(mean + DEVIATIONS * math.sqrt(mean * (1 - local.sample_rate)))
    )


def can_share(x: StepInputs) -> bool:
    """Whether a client's step can be part of a pass with other clients.

    It must be one clipped step, in a type whose rows have no shape of their own: in fewer bits, on
        other devices and under ``one_shape`` every microbatch has one shape for the whole run.
    """
    shape = shape_of(x.local, x.parameters.values(), one_shape=x.frame.one_shape)
    return (
        x.local.steps == 1
        and x.local.multiplicity == 1
        and x.scale is None
        and x.mechanism.clips
        and shape.multiple == 1
        and x.local.isolation != "rows"
    )


def sums_in_one_pass(steps: Sequence[StepInputs], slots: Sequence[int]) -> list[Drawn]:
    """For each client its drawn batch, with the clipped sum if it was in the pass.

    steps: with ``Drawn`` draws; they differ in these, in ``batch``, and in what a clipped sum does
        not depend on.
    If the pass fails, clients that also fail alone are left out of a second pass, so that nobody
    else's bits change. Raises the error of the second pass.
    """
    pairs = enumerate(zip(steps, slots, strict=True))
    fitting = [i for i, (x, slot) in pairs if len(drawn_of(x).positions) <= slot]
    try:
        # a loss that exits the process for one client's row would exit it for all clients
        with without_exit():
            return _pass(steps, slots, fitting)
    except Exception:
        return _pass(steps, slots, [i for i in fitting if not _fails(steps[i])])


def drawn_of(x: StepInputs) -> Drawn:
    """The batch of a step that was drawn before."""
    assert isinstance(x.draws, Drawn)
    return x.draws


def _fails(x: StepInputs) -> bool:
    """Whether the step of a client fails alone, too."""
    with suppress(Exception), without_exit():
        clipped_batch_sum(x)
        return False
    return True


def _pass(steps: Sequence[StepInputs], slots: Sequence[int], fitting: Sequence[int]) -> list[Drawn]:
    """The batches of all clients, with the clipped sums of those in ``fitting``."""
    batches = [drawn_of(x) for x in steps]
    rows = {i: steps[i].batch(batches[i].positions) for i in fitting if len(batches[i].positions)}
    if not rows:
        return batches
    some_rows = next(iter(rows.values()))
    spare = tuple(each(part, lambda t: t[:1]) for part in some_rows)  # for a slot without examples
    filled = [[fill(part, slot) for part in rows.get(i, spare)] for i, slot in enumerate(slots)]
    size = math.ceil(sum(slots) / ROWS_ON_CPU) * ROWS_ON_CPU
    inputs, targets = (fill(_join(parts), size) for parts in zip(*filled, strict=True))
    starts = list(accumulate(slots, initial=0))[:-1]
    counts = [len(batch.positions) if i in fitting else 0 for i, batch in enumerate(batches)]
    runs = [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
    equal_slot = slots[0] if len(set(slots)) == 1 else 0
    units = units_of(steps[0], inputs, targets, size)
    totals = clipped_sums(units, steps[0].mechanism, runs, slot=equal_slot)
    return [
        replace(batch, total=totals[i] if i in fitting else None) for i, batch in enumerate(batches)
    ]


def _join(parts: Sequence[Inputs]) -> Inputs:
    """The slots one after the other.

    torch raises an error if rows differ in shape: padding would depend on neighbours.
    """
    if isinstance(parts[0], Tensor):
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    return {
        name: torch.cat([part[name] for part in parts if not isinstance(part, Tensor)])
        for name in parts[0]
    }
