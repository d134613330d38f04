"""What a user's data must be, beyond their form: types that fit the loss, and a transform of each row by itself."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlsg.gradients.losses import CLASSES, PerExampleLoss
from simulations.workloads.base.workload import Inputs
from simulations.workloads.own.rows import Rows

PROBES = 5
CLOSE = 1e-4
"""Largest difference of a row that is transformed alone and in a batch, relative to the row's largest number."""


def check_targets(rows: Rows, loss: Any, what: str) -> None:
    """Raise ValueError for targets that are no numbers, or that a loss of torch for classes cannot take."""
    found = rows.targets
    if found.is_floating_point() and not bool(found.isfinite().all()):
        raise ValueError(f"{what} targets have missing or infinite values: fill them, or leave the rows out")
    name = loss.name if isinstance(loss, PerExampleLoss) else ""
    if name in CLASSES and (found.is_floating_point() or found.dtype == torch.bool) and found.ndim == 1:
        raise ValueError(
            f"{what} targets are {found.dtype}, and {name} takes the number of each class: give integers, 0 to K - 1"
        )


def check_alike(train: Rows, test: Rows) -> None:
    """Raise ValueError unless both splits have one form: classes, type and shape of targets, names and types of inputs.

    Shapes of inputs may differ: a model may take images or texts of several sizes.
    """
    if train.classes != test.classes:
        raise ValueError(f"train has the classes {train.classes}, test has {test.classes}: give both the same")
    forms = [(str(rows.targets.dtype), tuple(rows.targets.shape[1:])) for rows in (train, test)]
    if forms[0] != forms[1]:
        raise ValueError(f"train targets are {forms[0]}, those of test {forms[1]}: give both one type and shape")
    first = [{name: str(value.dtype) for name, value in _fields(_prepared(rows, [0]))} for rows in (train, test)]
    if first[0] != first[1]:
        raise ValueError(f"train inputs are {first[0]}, those of test {first[1]}: give both one form")


def check_transform(rows: Rows, what: str) -> None:
    """Raise ValueError if what is made of a row depends on the other rows of its batch, or on chance.

    The clip bounds what one example adds only if its inputs depend on no other example. A few rows are prepared alone
    and together. ``rows`` are public.
    """
    places = np.linspace(0, len(rows.targets) - 1, min(PROBES, len(rows.targets))).astype(np.int64)
    together = dict(_fields(_prepared(rows, places)))
    for row, place in enumerate(places):
        for name, alone in _fields(_prepared(rows, [place])):
            check_same_row(alone, together.get(name), row, len(places), f"{what} {name}")


def check_same_row(alone: Tensor, together: Tensor | None, row: int, count: int, what: str) -> None:
    """Raise ValueError unless ``alone`` (1, ...) is ``together[row]``; ``together``: (count, ...)."""
    if together is None or together.shape != (count, *alone.shape[1:]) or len(alone) != 1:
        shapes = f"{tuple(alone.shape)} for 1 row and {None if together is None else tuple(together.shape)} for {count}"
        raise ValueError(
            f"transform gave {what} of shape {shapes}: give one row an example, all of one shape (texts: "
            'padding="max_length")'
        )
    first, second = alone[0].double(), together[row].double()
    scale = max(1.0, float(first.abs().nan_to_num().max())) if first.numel() else 1.0
    if not torch.allclose(first, second, rtol=0, atol=CLOSE * scale, equal_nan=True):
        raise ValueError(
            f"transform gives other {what} for a row alone than in a batch, which mixes examples: make each row from "
            "itself alone, without statistics of the batch and without chance"
        )


def run_transform(transform: Callable[..., Any], *stored: Any) -> Any:
    """What a transform makes. Raises ValueError, with its error, for one that fails."""
    try:
        return transform(*stored)
    except Exception as error:
        raise ValueError(f"transform fails: {type(error).__name__}: {error}") from error


def _prepared(rows: Rows, places: Any) -> Inputs:
    found: Inputs = run_transform(rows.prepare, rows.inputs[np.asarray(places, dtype=np.int64)])
    return found


def _fields(inputs: Any) -> Iterator[tuple[str, Tensor]]:
    """Tensors by name. Raises ValueError for inputs that are none."""
    for name, value in inputs.items() if hasattr(inputs, "items") else [("inputs", inputs)]:
        if not isinstance(value, Tensor):
            raise ValueError(
                f"transform gave {name} as {type(value).__name__}: expected a tensor, or a dict of tensors by name"
            )
        yield str(name), value
