"""Rows that a step would be charged for and then fail on: found before, and named by their number.

    numbers    NaN and infinite inputs: they make a gradient that the clip drops, or a loss
               without a meaning
    targets    what the loss cannot take, such as a class that the outputs have not
    extremes   the largest and smallest integers, such as a token id beyond its table
Rows are counted from 0. Messages quote rows: they are for the owner of the data alone.
"""

from collections.abc import Callable, Mapping
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
TOGETHER = 64
"""Rows whose outputs are made for a loss."""
NUMBERS = 2**20
"""Most numbers of outputs that a loss gets together, where they are repeated for more targets."""
AT_ONCE = 2**16
"""Rows that are looked at together."""
COLUMNS = 64
"""Most columns of integers whose own extremes are tried."""
FIX = "fill them in, or leave the rows out"


def check_numbers(inputs: Batch, what: str, *, rows: Tensor | None = None, fix: str = FIX) -> None:
    """Raise ValueError, naming row and column, for inputs that are complex, NaN or infinite.

    ``rows``: the numbers of the rows, by default from 0.
    """
    for name, value in fields_of(inputs).items():
        called = f"{what} inputs{f' {name}' if name else ''}"
        if value.is_complex():
            raise ValueError(
                f"{called} are complex ({value.dtype}): give real and imaginary parts as columns"
            )
        bad = not_finite(value)
        if len(bad):
            place = (~value[bad[0]].isfinite()).nonzero()[0].tolist() if value.ndim > 1 else []
            row = int(bad[0] if rows is None else rows[bad[0]])
            number = float(value[bad[0]][tuple(place)])
            raise ValueError(
                f"{called} have missing or infinite values: {number} in row {row}{_column(place)} "
                f"({len(bad)} such rows among the {len(value)} that were looked at together); {fix}"
            )


def not_finite(value: Tensor) -> Tensor:
    """Places of the rows (N, ...) with a number that is NaN or infinite."""
    if not (value.is_floating_point() or value.is_complex()):
        return torch.zeros(0, dtype=torch.int64)
    parts = value.split(AT_ONCE)
    wrong = [
        ~part.isfinite().flatten(1).all(1) if part.ndim > 1 else ~part.isfinite() for part in parts
    ]
    return (
        torch.cat(wrong).nonzero().squeeze(1).cpu() if wrong else torch.zeros(0, dtype=torch.int64)
    )


def _column(place: list[int]) -> str:
    if not place:
        return ""
    return f", column {place[0]}" if len(place) == 1 else f", place {tuple(place)}"


def check_targets(
    loss: LossFunction, run: Run, targets: Batch, what: str, *, known: bool = False
) -> bool:
    """Raise ValueError, naming the row, for targets on which the loss fails, or is not finite;
    else, whether it works.

    Every target is given to the loss with outputs of some rows: thousands of targets together, then
    ``TOGETHER`` of them where that fails, then one with the outputs of its own row.
    ``run(rows)``: the model's outputs of rows by number, on the CPU: there a class that the outputs
    have not does not end all work on a GPU. Where the loss takes no target at all, and is not
    ``known`` to take others, the cause is not a row, and nothing is raised.
    """
    loss, count = on_cpu(loss), len(next(iter(fields_of(targets).values())))
    size = min(TOGETHER, count)
    try:
        outputs = run(torch.arange(size))
    except Exception:
        return known  # not of a target: what runs the model next says why
    many, block = _repeated(outputs, size, count)
    for first in range(0, count, block):
        if _failure(loss, many, targets, _group(first, block, count)) is None:
            known = True
            continue
        for start in range(first, min(first + block, count), size):
            rows = _group(start, size, count)
            if _failure(loss, outputs, targets, rows) is None:
                known = True
                continue
            for row in rows.unique().tolist():
                alone = torch.tensor([row])
                failure = _failure(loss, run(alone), targets, alone)
                if failure is None:
                    known = True
                elif known or any(
                    _failure(loss, run(r[None]), targets, r[None]) is None for r in spaced(count)
                ):
                    raise ValueError(
                        class_fault(loss, run(alone), targets, what, row)
                        or f"the loss cannot take the target of {what} row {row}, "
                        f"{_shown(targets, row)}: {failure}"
                    )
                else:
                    return False
    return known


def class_fault(
    loss: LossFunction, outputs: Any, targets: Batch, what: str, row: int
) -> str | None:
    """Numbers of classes that the outputs have not, and the fix; None for other targets or
    losses. ``row``: the first that the loss cannot take.
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
    """So many row numbers from a start; the last row comes again where there are fewer."""
    return torch.arange(start, start + size).clamp(max=count - 1)


def _repeated(outputs: Any, size: int, count: int) -> tuple[Any, int]:
    """The outputs of ``size`` rows for as many targets as ``NUMBERS`` allows, and that number."""
    if not isinstance(outputs, Tensor) or not outputs.numel():
        return outputs, size
    times = max(1, min(NUMBERS // outputs.numel(), -(-count // size)))
    return torch.cat([outputs] * times), times * size


@torch.no_grad()
def _failure(loss: LossFunction, outputs: Any, targets: Batch, rows: Tensor) -> str | None:
    try:
        losses = loss(outputs, _rows(targets, rows))
    except Exception as error:
        return describe(error)
    wrong = losses[~losses.isfinite()]
    return f"the loss is {float(wrong[0])}" if len(wrong) else None


def _shown(targets: Batch, row: int) -> str:
    values = [(name, value[row]) for name, value in fields_of(targets).items()]
    return ", ".join(
        f"{name} {value.item() if value.ndim == 0 else f'of shape {tuple(value.shape)}'}".strip()
        for name, value in values
    )


def on_cpu(thing: Any) -> Any:
    """Outputs or a loss on the CPU; a module is copied there if it has numbers elsewhere."""
    if isinstance(thing, PerExampleLoss):
        return replace(thing, loss=on_cpu(thing.loss))
    if isinstance(thing, nn.Module):
        tensors = [*thing.parameters(), *thing.buffers()]
        return thing if all(t.device.type == "cpu" for t in tensors) else deepcopy(thing).cpu()
    if isinstance(thing, Tensor):
        return thing.detach().cpu()
    if hasattr(thing, "logits"):
        return type(thing)(logits=thing.logits.detach().cpu())
    return thing


@torch.no_grad()
def check_extremes(run: Run, inputs: Batch, what: str) -> None:
    """Raise ValueError, naming the row, if ``run`` fails on a row with a largest or smallest
    integer.

    Of each column, where there are at most ``COLUMNS``: each may have a table of its own.
    """
    places: dict[int, str] = {}
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
        if columns.shape[1] <= COLUMNS:
            rows += [columns.min(0).indices, columns.max(0).indices]
        for row in torch.cat(rows).unique().tolist():
            values = columns[row]
            least, most = int(values.min()), int(values.max())
            places[row] = f"inputs{f' {name}' if name else ''} from {least} to {most}"
    with suppress(Exception):
        if places:
            run(torch.tensor(sorted(places)))
            return
    for row, words in sorted(places.items()):
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
    """Some rows on the CPU."""
    return each(part, lambda t: t[rows].cpu())


@torch.no_grad()
def check_rows(model: nn.Module, loss: LossFunction, inputs: Batch, targets: Batch) -> None:
    """Raise ValueError, naming the row, for examples that a step would be charged for and then fail
    on.

    Where the model fails on made-up rows, nothing is said here: the rehearsal of the first step
    says why.
    """
    check_numbers(inputs, "training", fix=f"{FIX}; a batch function of your own is not looked at")
    if wrong := next((t.dtype for t in fields_of(targets).values() if t.is_complex()), None):
        raise ValueError(
            f"training targets are complex ({wrong}): give real and imaginary parts as columns"
        )
    cpu = next(model.parameters()).device.type == "cpu"
    with alone(), restored(model, loss), own_draws("cpu"):
        here = model if cpu else deepcopy(model).cpu()
        first = _rows(inputs, torch.arange(1)), _rows(targets, torch.arange(1))
        outputs = wanted = None
        for make in (partial(made_up, *first), partial(accepted, here, loss, *first)):
            with suppress(Exception):
                if outputs is None and (batch := make()) is not None:
                    outputs, wanted = model_outputs(here, batch[0]), batch[1]
        if outputs is None:
            return
        known = False
        with suppress(Exception):
            known = bool(on_cpu(loss)(outputs, wanted).isfinite().all())

        def run(rows: Tensor) -> Any:
            return model_outputs(here, _rows(inputs, rows))

        check_extremes(run, inputs, "training")
        check_targets(loss, run, targets, "training", known=known)
