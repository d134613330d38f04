"""Checks of training rows on which a step would fail after its charge; messages name the row.

    numbers    NaN and infinite inputs: they make a gradient that the clip drops, or a loss
               without a meaning
    targets    what the loss cannot take, such as a class that the outputs do not have
    extremes   the largest and smallest integers, such as a token id beyond its table
Rows are counted from 0. Messages quote rows: they are for the owner of the data alone.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.gradients import Batch, LossFunction
from fedlsg.gradients.losses import CLASSES, PerExampleLoss
from fedlsg.randomness import alone, own_draws
from fedlsg.strategies.own_loop.examples import accepted, made_up
from fedlsg.tensors import each, fields_of, spaced
from fedlsg.user_code.failure import describe
from fedlsg.user_code.objects import restored

Run = Callable[[Tensor], Any]
"""Row numbers -> the model's outputs of these rows, on the CPU."""
ROWS_OF_LOSS = 64
"""Rows whose outputs are computed for a loss."""
MAX_OUTPUT_NUMBERS = 2**20
"""Numbers of outputs in one call of a loss at most, if outputs are repeated for more targets."""
ROWS_AT_ONCE = 2**16
"""Rows that are searched for NaN in one call."""
OTHER_ROWS = 16
"""Evenly spaced rows that show whether the loss takes any target at all."""
MAX_COLUMNS = 64
"""With so many columns of integers at most, the extremes of each column are tried."""
FIX = "fill them in, or leave the rows out"
"""The remedy for missing numbers."""


def check_numbers(inputs: Batch, what: str, *, rows: Tensor | None = None, fix: str = FIX) -> None:
    """Raise ValueError, naming row and column, for inputs that are complex, NaN or infinite.

    what: the split, such as "training".
    rows: the numbers of the rows, by default from 0.
    fix: the remedy in the message.
    """
    for name, value in fields_of(inputs).items():
        subject = f"{what} inputs{f' {name}' if name else ''}"
        if value.is_complex():
            raise ValueError(
                f"{subject} are complex ({value.dtype}): give real and imaginary parts as columns"
            )
        bad = not_finite(value)
        if len(bad):
            place = (~value[bad[0]].isfinite()).nonzero()[0].tolist() if value.ndim > 1 else []
            row = int(bad[0] if rows is None else rows[bad[0]])
            number = float(value[bad[0]][tuple(place)])
            raise ValueError(
                f"{subject} have missing or infinite values: {number} in row {row}"
                f"{_column_words(place)} ({len(bad)} such rows among the {len(value)} that were "
                f"looked at together); {fix}"
            )


def not_finite(value: Tensor) -> Tensor:
    """Indices of the rows (N, ...) with a number that is NaN or infinite."""
    if not len(value) or not (value.is_floating_point() or value.is_complex()):
        return torch.zeros(0, dtype=torch.int64)
    finite = [part.isfinite() for part in value.split(ROWS_AT_ONCE)]
    if value.ndim > 1:
        finite = [part.flatten(1).all(1) for part in finite]
    return (~torch.cat(finite)).nonzero().squeeze(1).cpu()


def _column_words(place: list[int]) -> str:
    """The place of a number inside its row; empty for a row of one number."""
    if not place:
        return ""
    return f", column {place[0]}" if len(place) == 1 else f", place {tuple(place)}"


def check_loss_takes(
    loss: LossFunction, run: Run, targets: Batch, what: str, *, known: bool = False
) -> bool:
    """Raise ValueError, naming the row, for targets on which the loss fails, or is not finite.

    Returns whether the loss is known to work. Every target is given to the loss with outputs of
    some rows: thousands of targets together; if that fails ``ROWS_OF_LOSS`` of them; if that fails
    one with the outputs of its own row.

    run: the model's outputs of rows by number, on the CPU, where a wrong class is an error; on a
        GPU it would end all work on the device.
    known: whether the loss has taken other targets. If not, and if it takes none of ``OTHER_ROWS``
        targets either, the cause is not a row, and nothing is raised.
    """
    loss, count = on_cpu(loss), _count(targets)
    size = min(ROWS_OF_LOSS, count)
    try:
        outputs = run(torch.arange(size))
    except Exception:
        return known  # the model fails, not a target: the next run of the model says why
    for row, failure in _failures(loss, run, outputs, targets, size):
        if failure is None:
            known = True
            continue
        others = spaced(count, OTHER_ROWS).tolist()
        if not known and all(_failure_of_row(loss, run, targets, other) for other in others):
            return False
        raise ValueError(
            class_fault(loss, run(torch.tensor([row])), targets, what, row)
            or f"the loss cannot take the target of {what} row {row}, "
            f"{_target_words(targets, row)}: {failure}"
        )
    return known


def _failures(
    loss: LossFunction, run: Run, outputs: Any, targets: Batch, size: int
) -> Iterator[tuple[int, str | None]]:
    """Give the loss all targets, in large groups, then small ones, then single rows.

    Yields the first row and None for a group that the loss takes; each row of a small group that
    it does not take, with the failure, or None.

    outputs: of the first ``size`` rows.
    """
    count = _count(targets)
    many, block = _repeated(outputs, size, count)
    for first in range(0, count, block):
        if _failure(loss, many, targets, _group(first, block, count)) is None:
            yield first, None
            continue
        for start in range(first, min(first + block, count), size):
            rows = _group(start, size, count)
            if _failure(loss, outputs, targets, rows) is None:
                yield start, None
                continue
            for row in rows.unique().tolist():
                yield row, _failure_of_row(loss, run, targets, row)


def _count(part: Batch) -> int:
    return len(next(iter(fields_of(part).values())))


def _failure_of_row(loss: LossFunction, run: Run, targets: Batch, row: int) -> str | None:
    rows = torch.tensor([row])
    return _failure(loss, run(rows), targets, rows)


def class_fault(
    loss: LossFunction, outputs: Any, targets: Batch, what: str, row: int
) -> str | None:
    """A message about class numbers that the outputs do not have, with the remedy.

    None for other targets or losses. ``row``: the first that the loss cannot take.
    """
    scores = getattr(outputs, "logits", outputs)
    if getattr(loss, "name", "") not in CLASSES or not isinstance(targets, Tensor):
        return None
    if not isinstance(scores, Tensor) or scores.ndim != 2 or targets.ndim != 1:
        return None
    if targets.is_floating_point():
        return None
    count, low, high = scores.shape[1], int(targets.min()), int(targets.max())
    if (low, high) == (1, count):
        fix = "give targets - 1"
    elif high >= count:
        fix = f"give the model {high + 1} outputs, or leave those rows out"
    else:
        fix = f"give targets from 0 on, or ignore_index={low} to the loss"
    return (
        f"the model gives {count} outputs, for classes 0 to {count - 1}, and the targets of {what} "
        f"are {low} to {high} (row {row}: {int(targets[row])}): {fix}"
    )


def _group(start: int, size: int, count: int) -> Tensor:
    """``size`` row numbers from ``start`` on; the last row is repeated if there are fewer."""
    return torch.arange(start, start + size).clamp(max=count - 1)


def _repeated(outputs: Any, size: int, count: int) -> tuple[Any, int]:
    """The outputs of ``size`` rows, repeated for as many targets as ``MAX_OUTPUT_NUMBERS`` allows,
    and that number.
    """
    if not isinstance(outputs, Tensor) or not outputs.numel():
        return outputs, size
    times = max(1, min(MAX_OUTPUT_NUMBERS // outputs.numel(), -(-count // size)))
    return torch.cat([outputs] * times), times * size


@torch.no_grad()
def _failure(loss: LossFunction, outputs: Any, targets: Batch, rows: Tensor) -> str | None:
    """Why the loss fails on these targets, or is not finite; None if it is finite."""
    try:
        losses = loss(outputs, _rows(targets, rows))
    except Exception as error:
        return describe(error)
    wrong = losses[~losses.isfinite()]
    return f"the loss is {float(wrong[0])}" if len(wrong) else None


def _target_words(targets: Batch, row: int) -> str:
    """The target of a row in a message: its number, or its shape."""
    words = []
    for name, values in fields_of(targets).items():
        value = values[row]
        shown = value.item() if value.ndim == 0 else f"of shape {tuple(value.shape)}"
        words.append(f"{name} {shown}".strip())
    return ", ".join(words)


def on_cpu(thing: Any) -> Any:
    """Outputs or a loss on the CPU; a module with tensors on another device is copied."""
    if isinstance(thing, PerExampleLoss):
        return replace(thing, loss=on_cpu(thing.loss))
    if isinstance(thing, nn.Module):
        tensors = [*thing.parameters(), *thing.buffers()]
        is_on_cpu = all(tensor.device.type == "cpu" for tensor in tensors)
        return thing if is_on_cpu else deepcopy(thing).cpu()
    if isinstance(thing, Tensor):
        return thing.detach().cpu()
    if hasattr(thing, "logits"):
        return type(thing)(logits=thing.logits.detach().cpu())
    return thing


@torch.no_grad()
def check_extremes(run: Run, inputs: Batch, what: str) -> None:
    """Raise ValueError, naming the row, if ``run`` fails on a row with an extreme integer.

    With at most ``MAX_COLUMNS`` columns the extremes of each column are tried, because each may
    have a table of its own; else those of the whole input.
    """
    words_of_row: dict[int, str] = {}
    for name, value in fields_of(inputs).items():
        if (
            value.is_floating_point()
            or value.is_complex()
            or value.dtype == torch.bool
            or not value.numel()
        ):
            continue
        columns = value.flatten(1) if value.ndim > 1 else value[:, None]
        rows = [columns.min(1).values.argmin()[None], columns.max(1).values.argmax()[None]]
        if columns.shape[1] <= MAX_COLUMNS:
            rows += [columns.min(0).indices, columns.max(0).indices]
        for row in torch.cat(rows).unique().tolist():
            values = columns[row]
            least, most = int(values.min()), int(values.max())
            words_of_row[row] = f"inputs{f' {name}' if name else ''} from {least} to {most}"
    if not words_of_row:
        return
    with suppress(Exception):
        run(torch.tensor(sorted(words_of_row)))
        return
    for row, words in sorted(words_of_row.items()):
        try:
            run(torch.tensor([row]))
        except Exception as error:
            raise ValueError(
                f"the model fails on {what} row {row}, with {words}: {describe(error)}"
            ) from error


def model_outputs(model: nn.Module, inputs: Any) -> Any:
    """The model's outputs of inputs: one tensor, or tensors by keyword."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def _rows(part: Batch, rows: Tensor) -> Any:
    """Some rows of a part on the CPU."""
    return each(part, lambda tensor: tensor[rows].cpu())


@torch.no_grad()
def check_before_charge(
    model: nn.Module, loss: LossFunction, inputs: Batch, targets: Batch
) -> None:
    """Raise ValueError, naming the row, for examples on which a step would fail after its charge.

    If the model fails on made-up rows, nothing is raised: the rehearsal of the first step says why.
    """
    check_numbers(inputs, "training", fix=f"{FIX}; a batch function of your own is not looked at")
    for value in fields_of(targets).values():
        if value.is_complex():
            raise ValueError(
                f"training targets are complex ({value.dtype}): give real and imaginary parts as "
                "columns"
            )
    is_on_cpu = next(model.parameters()).device.type == "cpu"
    with alone(), restored(model, loss), own_draws("cpu"):
        cpu_model = model if is_on_cpu else deepcopy(model).cpu()
        first = _rows(inputs, torch.arange(1)), _rows(targets, torch.arange(1))
        trial = _made_up_outputs(cpu_model, loss, first)
        if trial is None:
            return
        outputs, made_up_targets = trial
        known = False
        with suppress(Exception):
            known = bool(on_cpu(loss)(outputs, made_up_targets).isfinite().all())

        def run(rows: Tensor) -> Any:
            return model_outputs(cpu_model, _rows(inputs, rows))

        check_extremes(run, inputs, "training")
        check_loss_takes(loss, run, targets, "training", known=known)


def _made_up_outputs(
    model: nn.Module, loss: LossFunction, first: tuple[Batch, Batch]
) -> tuple[Any, Any] | None:
    """Outputs and targets of made-up rows on which the model runs; None if it runs on none.

    first: a row of the data, for shapes and types.
    """
    for make in (partial(made_up, *first), partial(accepted, model, loss, *first)):
        with suppress(Exception):
            rows = make()
            if rows is not None:
                return model_outputs(model, rows[0]), rows[1]
    return None
