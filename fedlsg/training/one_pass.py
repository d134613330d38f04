"""The clipped sums of several clients in one pass through the model, whose weights and frame they
share.

The step of a small client is mostly Python; in one pass this is paid once for all of them. Each
    client has a slot:
    slot     as many rows as its batch hardly ever exceeds, from public numbers alone. Rows that are
             missing are copies
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
from typing import Any

import torch
from torch import Tensor

from fedlsg.gradients import Batch as Inputs
from fedlsg.privacy.clip import clipped_sums
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
"""How far above its mean a batch may be to fit its slot: one in forty is larger, and rows that are
empty cost time.
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
    """Whether a client's step can be part of a pass: one clipped step, in a type whose rows have no
    shape of their own.

    In fewer bits, on other devices and under ``one_shape`` every microbatch has one shape for the
    whole run.
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

    ``steps`` have ``Drawn`` draws, and differ in these, in ``batch``, and in what a clipped sum
    does not depend on. If the pass fails, those who fail on their own are left out of the next one,
    so that nobody else's bits change. Raises what that one raises.
    """
    fitting = [
        i
        for i, (x, slot) in enumerate(zip(steps, slots, strict=True))
        if len(drawn_of(x).positions) <= slot
    ]
    try:
        # a loss that leaves the process for one client's row leaves it for all of them
        with without_exit():
            return _pass(steps, slots, fitting)
    except Exception:
        return _pass(steps, slots, [i for i in fitting if not _fails(steps[i])])


def drawn_of(x: StepInputs) -> Drawn:
    """The batch of a step that was drawn before."""
    assert isinstance(x.draws, Drawn)
    return x.draws


def _fails(x: StepInputs) -> bool:
    with suppress(Exception), without_exit():
        clipped_batch_sum(x)
        return False
    return True


def _pass(steps: Sequence[StepInputs], slots: Sequence[int], fitting: Sequence[int]) -> list[Drawn]:
    drawn = [drawn_of(x) for x in steps]
    rows = {i: steps[i].batch(drawn[i].positions) for i in fitting if len(drawn[i].positions)}
    if not rows:
        return drawn
    spare = next(iter(rows.values()))
    filled = [
        [fill(part, slot) for part in rows.get(i, _first(spare))] for i, slot in enumerate(slots)
    ]
    size = math.ceil(sum(slots) / ROWS_ON_CPU) * ROWS_ON_CPU
    inputs, targets = (fill(_joined(parts), size) for parts in zip(*filled, strict=True))
    starts = list(accumulate(slots, initial=0))[:-1]
    counts = [len(batch.positions) if i in fitting else 0 for i, batch in enumerate(drawn)]
    runs = [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
    even = slots[0] if len(set(slots)) == 1 else 0
    totals = clipped_sums(
        units_of(steps[0], inputs, targets, size), steps[0].mechanism, runs, slot=even
    )
    return [
        replace(batch, total=totals[i] if i in fitting else None) for i, batch in enumerate(drawn)
    ]


def _first(batch: tuple[Inputs, Any]) -> tuple[Inputs, Any]:
    """A single row of it, for a slot that holds no example."""
    return tuple(
        {k: t[:1] for k, t in part.items()} if not isinstance(part, Tensor) else part[:1]
        for part in batch
    )  # type: ignore[return-value]


def _joined(parts: Sequence[Inputs]) -> Inputs:
    """Slots one after the other. Raises ValueError where rows differ in shape: padding would depend
    on neighbours.
    """
    if isinstance(parts[0], Tensor):
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    return {
        name: torch.cat([part[name] for part in parts if not isinstance(part, Tensor)])
        for name in parts[0]
    }
