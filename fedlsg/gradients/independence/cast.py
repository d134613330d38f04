"""Compare rows of several families, each with itself alone, among its family and among all.

``check_independent`` takes rows of one kind: normal numbers, say. A loss that divides by the mean number of labels of
the batch mixes only rows with different numbers of labels. A cast has rows of many kinds. All of them are compared, in
the same way and with the same tolerances. Rows that the model or the loss does not take alone are left out.
The cast runs on a copy of the model on the CPU: see ``strategies.own_loop.made_up``.

Rows are compared column by column. A column is one coordinate of a row. Its unit is its own: a small column counts
next to a unix time. Rows that are only moved or changed elementwise are equal bit for bit. Products of matrices are
rounded differently in other batches, so that a column of floating point numbers may differ by ``ROUNDING`` units in
the last place.

    tolerance = 64 eps (largest - smallest value of the column) + 8 eps (largest absolute value of the column)

over the examples alone. What it cannot find: mixing below the tolerance, about 1e-5 of a column in float32.
"""

import copy
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from fedlsg.gradients.independence.check import Judge
from fedlsg.gradients.independence.probe import Outcome, Subject, each, prepare
from fedlsg.gradients.independence.trace import Trace
from fedlsg.gradients.per_example import Batch, LossFunction, batch_size
from fedlsg.gradients.supported import UnsupportedLayerError, check_supported, trainable

ROUNDING = 64
COARSEST = 0.02
"""Largest relative tolerance, of types with few bits."""


def differing(alone: Shaped[Tensor, "k *row"], together: Shaped[Tensor, "k *row"]) -> list[int]:
    """Columns of the flattened rows in which ``together`` differs from ``alone``; row i of both is one example."""
    if alone.dtype != together.dtype:
        return [0]
    a, b = (_numbers(x) for x in (alone, together))
    equal = (a == b) | ((a != a) & (b != b))
    if bool(equal.all()):
        return []
    if not a.is_floating_point():
        return _columns(~equal)
    eps = float(torch.finfo(a.dtype).eps)
    a, b = a.double(), b.double()
    known = torch.where(a.isfinite(), a, torch.nan)
    least, most = (_finite(known, side) for side in (-1, 1))
    spread, size = most - least, torch.maximum(least.abs(), most.abs())
    close = (a - b).abs() <= min(ROUNDING * eps, COARSEST) * spread + ROUNDING / 8 * eps * size
    return _columns(~(equal | close))


def _numbers(x: Tensor) -> Tensor:
    x = x.detach().cpu()
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).flatten(1) if x.ndim > 1 else x.unsqueeze(1)


def _finite(known: Tensor, side: int) -> Tensor:
    """Largest value of each column (``side`` 1) or smallest one (-1), infinities and NaN apart; 0 without values."""
    found = side * (side * known).nan_to_num(nan=-torch.inf).amax(0)
    return torch.where(found.isfinite(), found, torch.zeros_like(found))


def _columns(wrong: Tensor) -> list[int]:
    found: list[int] = wrong.any(0).nonzero().flatten().tolist()
    return found


def row_differs(alone: Sequence[Tensor], together: Sequence[Tensor]) -> list[int] | None:
    """Columns in which rows of a batch differ from the same examples alone; None where their shapes do not fit.

    A batch of texts is padded to its longest, at the end or at the start: the padding, of one value, is left out.
    """
    if {row.shape for row in alone} == {row.shape for row in together} and len({row.shape for row in alone}) == 1:
        return differing(torch.stack(list(alone)), torch.stack(list(together)))
    for own, padded in zip(alone, together, strict=True):
        parts = list(_parts(padded, own))
        found = [differing(own.unsqueeze(0), part.unsqueeze(0)) for part in parts]
        if not found:
            return None
        if all(found):
            return found[0]
    return []


def _parts(row: Tensor, like: Tensor) -> Iterator[Tensor]:
    """The parts of ``row`` of the shape of ``like``, at its start or at its end, around which there is one value."""
    sizes = list(zip(like.shape, row.shape, strict=row.ndim == like.ndim))
    if row.ndim != like.ndim or any(own > padded for own, padded in sizes):
        return
    for part in (tuple(slice(0, own) for own, _ in sizes), tuple(slice(padded - own, padded) for own, padded in sizes)):
        rest = torch.ones_like(row, dtype=torch.bool)
        rest[part] = False
        values = row[rest]
        if not len(values) or bool(((values == values[0]) | (values != values)).all()):
            yield row[part]


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
