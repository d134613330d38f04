"""Compare rows of several families, each with itself alone, among its family and among all.

``check_independent`` takes rows of one kind: normal numbers, say. A loss that divides by the mean number of labels of
the batch mixes only rows with different numbers of labels. A cast has rows of many kinds. All of them are compared, in
the same way and with the same tolerances. Rows that the model or the loss does not take alone are left out.
The cast runs on a copy of the model on the CPU: see ``fedlsg.own_loop.made_up``.
"""

import copy
from collections.abc import Sequence

import torch
from torch import nn

from fedlsg.gradients.independence.check import Judge
from fedlsg.gradients.independence.probe import Outcome, Subject, each, prepare
from fedlsg.gradients.independence.trace import Trace
from fedlsg.gradients.per_example import Batch, LossFunction, batch_size
from fedlsg.gradients.supported import UnsupportedLayerError, check_supported, trainable

ALLOWED = 20
"""Rows of different kinds that a model and a loss must take together."""


def check_cast(model: nn.Module, loss_fn: LossFunction, families: Sequence[tuple[Batch, Batch]]) -> list[int]:
    """The numbers of the rows, counted over all families, that the model and the loss take.

    Raises UnsupportedLayerError, naming the layer, if the gradient of one depends on the rows around it.
    """
    check_supported(model)
    sizes = [batch_size(*family) for family in families]
    inputs, targets = (joined([family[side] for family in families]) for side in (0, 1))
    model = copy.deepcopy(model).cpu()
    own = next(iter(trainable(model).values())).dtype
    for dtype, loss_dtype in ((torch.float64, None), (torch.float64, own), (None, None)):
        subject = prepare(model, loss_fn, inputs, targets, dtype, loss_dtype, by_number=True)
        alone = run_alone(subject, sum(sizes))
        if alone:
            compare_cast(subject, alone, sizes)
            return list(alone)
    return []


def run_alone(subject: Subject, count: int) -> dict[int, Outcome]:
    """The pass of each row that runs, alone, and has a finite loss and gradient."""
    alone: dict[int, Outcome] = {}
    for row in range(count):
        try:
            outcome = subject.run([row])
        except Exception:  # the model or the loss takes no such values
            continue
        if outcome.losses.isfinite().all() and all(g.isfinite().all() for g in outcome.gradients.values()):
            alone[row] = outcome
    return alone


def first_trace(alone: dict[int, Outcome]) -> Trace | None:
    """The trace of the first row; batches are recorded in its form."""
    return next(iter(alone.values())).trace if alone else None


def compare_cast(subject: Subject, alone: dict[int, Outcome], sizes: Sequence[int]) -> None:
    """Raise UnsupportedLayerError at the first difference of a row in company."""
    judge = Judge(subject=subject, alone=alone, buffers={}, frozen={})
    like, rows, start = first_trace(alone), list(alone), 0
    batches = []
    for size in sizes:
        batches.append([row for row in rows if start <= row < start + size][::-1])
        start += size
    everyone = [*rows[::2], *rows[1::2]]
    for batch in (*batches, everyone):
        if len(batch) > 1 and like is not None:
            for outcome in run_together(subject, batch, like):
                judge.rows(outcome)


def run_together(subject: Subject, batch: Sequence[int], like: Trace) -> list[Outcome]:
    """The pass of a batch. One above ``ALLOWED`` that fails runs in halves: the code may allow no more rows."""
    try:
        return [subject.run(batch, like)]
    except UnsupportedLayerError as error:
        if error.__cause__ is None or len(batch) <= ALLOWED:
            raise
    return [outcome for start in (0, 1) for outcome in run_together(subject, batch[start::2], like)]


def joined(parts: Sequence[Batch]) -> Batch:
    """The rows of several batches, on the CPU."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat([part.cpu() for part in parts if isinstance(part, torch.Tensor)])
    return {name: torch.cat([each(part, lambda t: t.cpu())[name] for part in parts]) for name in first}
