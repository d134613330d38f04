"""Rows that a step would be charged for and then fail on: found before, and named by their number.

    numbers    NaN and infinite inputs: they make a gradient that the clip drops, or a loss that says nothing
    targets    what the loss cannot take, such as a class that the outputs have not
    extremes   the largest and smallest integers, such as a token id beyond its table
Rows are counted from 0. Messages quote rows: they are for the owner of the data alone.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.gradients import Batch, LossFunction
from fedlsg.gradients.losses import PerExampleLoss

AT_ONCE = 2**16
"""Rows that are looked at together."""
COLUMNS = 64
"""Most columns of integers whose extremes are tried."""
FIX = "fill them in, or leave the rows out"


def fields(part: Batch) -> list[tuple[str, Tensor]]:
    """Tensors with their names; "" for one alone."""
    return [("", part)] if isinstance(part, Tensor) else [(str(name), value) for name, value in part.items()]


def check_numbers(inputs: Batch, what: str, first: int = 0, fix: str = FIX) -> None:
    """Raise ValueError, naming row and column, for inputs that are complex, NaN or infinite.

    ``first``: the number of the first row.
    """
    for name, value in fields(inputs):
        called = f"{what} inputs{f' {name}' if name else ''}"
        if value.is_complex():
            raise ValueError(f"{called} are complex ({value.dtype}): give real and imaginary parts as columns")
        if not value.is_floating_point():
            continue
        for start in range(0, len(value), AT_ONCE):
            wrong = ~value[start : start + AT_ONCE].isfinite()
            if wrong.any():
                place = [int(k) for k in wrong.nonzero()[0]]
                found = value[start + place[0]][tuple(place[1:])]
                count = int(wrong.flatten(1).any(1).sum() if wrong.ndim > 1 else wrong.sum())
                raise ValueError(
                    f"{called} have missing or infinite values: {float(found)} in row {first + start + place[0]}"
                    f"{_column(place[1:])}, and {count} such rows among {min(AT_ONCE, len(value) - start)}; {fix}"
                )


def _column(place: list[int]) -> str:
    if not place:
        return ""
    return f", column {place[0]}" if len(place) == 1 else f", place {tuple(place)}"


def check_targets(loss: LossFunction, outputs: Any, targets: Batch, what: str, size: int) -> None:
    """Raise ValueError, naming the row, for targets on which the loss fails, or is not finite.

    ``outputs``: the model's for ``size`` rows, on which the loss is finite for other targets; no more than there are
    targets. Every row of targets is given to the loss, with outputs of another row. On the CPU, for a class that the
    outputs have not ends all work on a GPU.
    """
    loss, outputs = on_cpu(loss), on_cpu(outputs)
    count = len(fields(targets)[0][1])
    for start in range(0, count, size):
        rows = torch.arange(start, start + size).clamp(max=count - 1)
        if _failure(loss, outputs, targets, rows) is None:
            continue
        for row in rows.unique().tolist():
            failure = _failure(loss, outputs, targets, torch.full((size,), row))
            if failure is not None:
                raise ValueError(
                    f"the loss cannot take the target of {what} row {row}, {_shown(targets, row)}: {failure}"
                )
        raise ValueError(
            f"the loss fails on {what} rows {start} to {int(rows[-1])}: {_failure(loss, outputs, targets, rows)}"
        )


@torch.no_grad()
def _failure(loss: LossFunction, outputs: Any, targets: Batch, rows: Tensor) -> str | None:
    chosen: Any = (
        targets[rows].cpu() if isinstance(targets, Tensor) else {name: t[rows].cpu() for name, t in targets.items()}
    )
    try:
        losses = loss(outputs, chosen)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    wrong = [float(value) for value in losses.flatten() if not value.isfinite()] if not losses.isfinite().all() else []
    return f"the loss is {wrong[0]}" if wrong else None


def _shown(targets: Batch, row: int) -> str:
    values = [(name, value[row]) for name, value in fields(targets)]
    return ", ".join(
        f"{name} {value.item() if value.ndim == 0 else f'of shape {tuple(value.shape)}'}".strip()
        for name, value in values
    )


def on_cpu(thing: Any) -> Any:
    """Outputs or a loss on the CPU; a module is copied there if it has numbers elsewhere."""
    if isinstance(thing, PerExampleLoss):
        return PerExampleLoss(on_cpu(thing.loss), thing.name, thing.ignored)
    if isinstance(thing, nn.Module):
        tensors = [*thing.parameters(), *thing.buffers()]
        return thing if all(t.device.type == "cpu" for t in tensors) else deepcopy(thing).cpu()
    if isinstance(thing, Tensor):
        return thing.detach().cpu()
    if hasattr(thing, "logits"):
        return type(thing)(logits=thing.logits.detach().cpu())
    return thing


@torch.no_grad()
def check_extremes(run: Callable[[Tensor], object], inputs: Batch, what: str) -> None:
    """Raise ValueError, naming the row, if ``run`` fails on a row with a largest or smallest integer of its column.

    ``run(rows)`` runs the model on some rows, on the CPU.
    """
    places: dict[int, str] = {}
    for name, value in fields(inputs):
        if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool or not value.numel():
            continue
        columns = value.flatten(1) if value.ndim > 1 else value[:, None]
        least, most = columns[:, :COLUMNS].min(0).indices, columns[:, :COLUMNS].max(0).indices
        ends = [int(columns.min(1).values.argmin()), int(columns.max(1).values.argmax())]
        for row in {*ends, *least.tolist(), *most.tolist()}:
            own = columns[row]
            places[row] = f"inputs{f' {name}' if name else ''} from {int(own.min())} to {int(own.max())}"
    for row, said in sorted(places.items()):
        try:
            run(torch.tensor([row]))
        except Exception as error:
            raise ValueError(
                f"the model fails on {what} row {row}, with {said}: {type(error).__name__}: "
                f"{str(error).partition(chr(10))[0]}"
            ) from error


def model_outputs(model: nn.Module, inputs: Any) -> Any:
    """The model's outputs of inputs: one tensor, or tensors by keyword."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
