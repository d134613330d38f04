"""What is wrong with rows of a user's own, found before anybody is charged, and named by the number
of the row.

The driver of a simulation may look at all rows. In a deployment it has the test split alone, and
each client looks at its own rows (``fedlsg.simulations.client.node.node_config``).
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
    check_numbers,
    check_targets,
    model_outputs,
    not_finite,
)
from fedlsg.strategies.own_loop.user_inputs import other_types
from fedlsg.tensors import fields_of, spaced
from fedlsg.user_code.failure import describe, without_exit
from fedlsg.user_code.objects import restored

AT_ONCE = 4096
"""Rows that are looked at together, and most that are prepared in order to look at what a transform
makes of them.
"""


@torch.no_grad()
def check_rows(base: Base) -> None:
    """Raise ValueError, naming the row, for numbers that are not finite and for targets that the
    loss cannot take.

    And for integers on which the model fails. Where model or loss fail on every test row, nothing
    is said here: the check of the model says why.
    """
    splits = {**base.workload.tests, "train": base.workload.train}
    splits = {name: split for name, split in splits.items() if not isinstance(split, NoRows)}
    for name, split in splits.items():
        check_split(split, name)
    model, loss, known = base.initial.model().cpu().eval(), base.workload.loss, False
    with restored(model, loss), own_draws("cpu"):
        for name, split in splits.items():

            def run(rows: Tensor, split: Split = split) -> Any:
                return model_outputs(model, split.batch(rows)[0])

            if not _works(run, split):
                return  # the check of the model, or of the shape of train, says why
            _check_integers(run, split, name)
            known = check_targets(loss, run, split.labels, name, known=known)


def _check_integers(run: Run, split: Split, what: str) -> None:
    """Raise ValueError for a row with integers on which the model fails, such as a token that its
    table has not.
    """
    first = split.batch(torch.arange(1))[0]
    if (
        not any(t.is_floating_point() for _, t in fields_of(first).items())
        and split.lengths is None
    ):
        stored = _stored(split, torch.arange(len(split)))
        check_extremes(run, stored, what)


def check_split(split: Split, what: str) -> None:
    """Raise ValueError, naming row and column, for inputs that are not finite, as stored or as the
    model gets them.

    A transform may fill in missing values: rows that have some are looked at as it makes them.
    """
    transform = not isinstance(split.prepare, Prepare) or split.prepare.transform is not None
    fix = f"{FIX}; transform= may fill them in"
    if any(
        t.is_floating_point() or t.is_complex()
        for _, t in fields_of(_stored(split, torch.arange(1))).items()
    ):
        for rows in torch.arange(len(split)).split(AT_ONCE):
            part = _stored(split, rows)
            bad = torch.cat([not_finite(value) for _, value in fields_of(part).items()]).unique()
            if not len(bad) and not any(value.is_complex() for _, value in fields_of(part).items()):
                continue
            if not transform or any(
                len(not_finite(value)) for _, value in fields_of(split.batch(rows[bad])[0]).items()
            ):
                check_numbers(part, what, rows=rows, fix=fix)
    if transform:
        rows = spaced(len(split), AT_ONCE)
        check_numbers(split.batch(rows)[0], what, rows=rows)


def _stored(split: Split, rows: Tensor) -> Any:
    """Stored rows as tensors; nothing of rows that are stored as something else."""
    stored = split.inputs[rows.numpy()]
    named = stored.items() if isinstance(stored, Mapping) else [("", stored)]
    tensors = {
        str(name): torch.as_tensor(value)
        for name, value in named
        if isinstance(value, Tensor)
        or (isinstance(value, np.ndarray) and value.dtype.kind in "biufc")
    }
    return tensors[""] if set(tensors) == {""} else tensors


def _works(run: Run, split: Split) -> bool:
    """Whether the model takes a row."""
    try:
        run(spaced(len(split), 1))
    except Exception:
        return False
    return True


@torch.no_grad()
def check_train_shape(model: nn.Module, train: Split, test: Split, *, device: str) -> None:
    """Raise ValueError if the model fails on rows of the shape of train, where test has another
    one.

    In simulations of own workloads only: the model gets zeros, but the shape is that of a training
    row.
    """
    (inputs, targets), (public, _) = (split.batch(torch.tensor([0])) for split in (train, test))
    if _shapes(inputs) == _shapes(public):
        return
    zeros = (
        {k: torch.zeros_like(v) for k, v in inputs.items()}
        if isinstance(inputs, dict)
        else torch.zeros_like(inputs)
    )
    model.eval()
    with naming_failures(model, inputs, targets, "train"):
        zeros = to_device(zeros, device)
        model(**zeros) if isinstance(zeros, dict) else model(zeros)


def _shapes(inputs: Any) -> list[tuple[int, ...]]:
    return [
        tuple(value.shape) for value in (inputs.values() if isinstance(inputs, dict) else [inputs])
    ]


@contextmanager
def naming_failures(model: nn.Module, inputs: Any, targets: Tensor, what: str) -> Iterator[None]:
    """What the model or the loss raise, as one ValueError that says on what."""
    try:
        with without_exit():
            yield
    except ValueError as error:
        if error.__cause__ is None:
            raise
        raise ValueError(f"{error}: rows of {what}") from error
    except Exception as error:
        named = inputs.items() if isinstance(inputs, dict) else [("inputs", inputs)]
        given = ", ".join(
            f"{name} {value.dtype} {tuple(value.shape)}"
            for name, value in [*named, ("targets", targets)]
        )
        hint = other_types(model, inputs)
        raise ValueError(
            f"the model or the loss fails with {describe(error)}, on rows of {what} ({given})"
            f"{hint and f': {hint}'}"
        ) from error
