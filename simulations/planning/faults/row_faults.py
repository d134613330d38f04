"""Faults in the rows of a user's own data are found; errors name the number of the row.

Checked before the first round, so that no client is charged for a run that must fail. The driver of
a simulation may look at all rows. In a deployment it has the test split alone, and each client
looks at its own rows (``fedlsg.simulations.client.node.node_config``).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlsg.randomness import own_draws
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.workloads import Split, to_device
from fedlsg.simulations.workloads.base.split import NoRows
from fedlsg.simulations.workloads.rows import Prepare
from fedlsg.strategies.own_loop.row_checks import (
    FIX,
    Run,
    check_extremes,
    check_loss_takes,
    check_numbers,
    model_outputs,
    not_finite,
)
from fedlsg.strategies.own_loop.user_inputs import other_types
from fedlsg.tensors import each, fields_of, spaced
from fedlsg.user_code.failure import describe, without_exit
from fedlsg.user_code.objects import restored

AT_ONCE = 4096
"""Rows that are checked together. Of rows that a transform has made, no more than this are checked.
"""


@torch.no_grad()
def check_rows(base: Base) -> None:
    """Raise ValueError, naming the row, if a number is not finite, if the model fails on an
    integer, or if the loss cannot take a target.

    If the model fails on the first row of a split already, nothing more is checked: the check of
    the model says why.
    """
    splits = {**base.workload.tests, "train": base.workload.train}
    splits = {name: split for name, split in splits.items() if not isinstance(split, NoRows)}
    for name, split in splits.items():
        check_split(split, name)
    model = base.initial.model().cpu().eval()
    loss = base.workload.loss
    known_targets = False
    with restored(model, loss), own_draws("cpu"):
        for name, split in splits.items():

            def run(rows: Tensor, split: Split = split) -> Any:
                return model_outputs(model, split.batch(rows)[0])

            if not _takes_first_row(run, split):
                return
            _check_integers(run, split, name)
            known_targets = check_loss_takes(loss, run, split.labels, name, known=known_targets)


def check_split(split: Split, what: str) -> None:
    """Raise ValueError, naming row and column, for inputs that are not finite.

    Inputs are checked as they are stored, and as the model gets them.
    """
    is_transformed = not isinstance(split.prepare, Prepare) or split.prepare.transform is not None
    first_row = fields_of(_stored(split, torch.arange(1))).values()
    if any(column.is_floating_point() or column.is_complex() for column in first_row):
        for rows in torch.arange(len(split)).split(AT_ONCE):
            _check_stored(split, rows, what, is_transformed=is_transformed)
    if is_transformed:
        rows = spaced(len(split), AT_ONCE)
        check_numbers(split.batch(rows)[0], what, rows=rows)


def _check_stored(split: Split, rows: Tensor, what: str, *, is_transformed: bool) -> None:
    """Raise ValueError for stored numbers that are not finite, unless a transform fills them in."""
    stored = _stored(split, rows)
    columns = fields_of(stored).values()
    bad = torch.cat([not_finite(column) for column in columns]).unique()
    if not len(bad) and not any(column.is_complex() for column in columns):
        return
    if is_transformed:
        transformed = fields_of(split.batch(rows[bad])[0]).values()
        if not any(len(not_finite(column)) for column in transformed):
            return
    check_numbers(stored, what, rows=rows, fix=f"{FIX}; transform= may fill them in")


def _stored(split: Split, rows: Tensor) -> Any:
    """Stored rows as a tensor, or tensors by name; columns that are not numbers are left out."""
    stored = split.inputs[rows.numpy()]
    columns = stored.items() if isinstance(stored, Mapping) else [("", stored)]
    tensors = {
        str(name): torch.as_tensor(column) for name, column in columns if _is_numbers(column)
    }
    return tensors[""] if set(tensors) == {""} else tensors


def _is_numbers(column: Any) -> bool:
    is_array = isinstance(column, np.ndarray) and column.dtype.kind in "biufc"
    return is_array or isinstance(column, Tensor)


def _takes_first_row(run: Run, split: Split) -> bool:
    """Whether the model computes something for the first row."""
    try:
        run(spaced(len(split), 1))
    except Exception:
        return False
    return True


def _check_integers(run: Run, split: Split, what: str) -> None:
    """Raise ValueError for a row with integers on which the model fails.

    An example is a token that is beyond the model's table.
    """
    inputs, _ = split.batch(torch.arange(1))
    has_floats = any(column.is_floating_point() for column in fields_of(inputs).values())
    if not has_floats and split.lengths is None:
        check_extremes(run, _stored(split, torch.arange(len(split))), what)


@torch.no_grad()
def check_train_shape(model: nn.Module, train: Split, test: Split, *, device: str) -> None:
    """Raise ValueError if training rows have another shape than test rows, and the model fails on
    it.

    The model gets zeros of that shape. Still, the shape is that of a training row: for simulations
    of own workloads only.
    """
    inputs, targets = train.batch(torch.tensor([0]))
    test_inputs, _ = test.batch(torch.tensor([0]))
    if _shapes(inputs) == _shapes(test_inputs):
        return
    model.eval()
    with naming_failures(model, inputs, targets, "train"):
        zeros = to_device(each(inputs, torch.zeros_like), device)
        model(**zeros) if isinstance(zeros, dict) else model(zeros)


def _shapes(inputs: Any) -> list[tuple[int, ...]]:
    return [tuple(column.shape) for column in fields_of(inputs).values()]


@contextmanager
def naming_failures(model: nn.Module, inputs: Any, targets: Tensor, what: str) -> Iterator[None]:
    """Inside, an error of the model or the loss becomes a ValueError that names rows and types."""
    try:
        with without_exit():
            yield
    except ValueError as error:
        if error.__cause__ is None:
            raise
        raise ValueError(f"{error}: rows of {what}") from error
    except Exception as error:
        columns = inputs if isinstance(inputs, dict) else {"inputs": inputs}
        given = ", ".join(
            f"{name} {column.dtype} {tuple(column.shape)}"
            for name, column in [*columns.items(), ("targets", targets)]
        )
        hint = other_types(model, inputs)
        raise ValueError(
            f"the model or the loss fails with {describe(error)}, on rows of {what} ({given})"
            f"{hint and f': {hint}'}"
        ) from error
