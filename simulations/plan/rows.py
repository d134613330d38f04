"""What is wrong with rows of a user's own, found before anybody is charged, and named by the number of the row.

The driver of a simulation may look at all rows. In a deployment it has the test split alone, and each client looks at
its own rows (``simulations.client.node.data``).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlsg.randomness import own_draws
from fedlsg.restored import restored
from fedlsg.row_checks import (
    FIX,
    Run,
    check_extremes,
    check_numbers,
    check_targets,
    fields,
    model_outputs,
    not_finite,
    spread,
)
from simulations import workloads
from simulations.plan.base import Base
from simulations.plan.plan import naming_failures
from simulations.server.evaluate import evaluate, score, scores_of
from simulations.workloads import Split, to_device
from simulations.workloads.base.workload import NoRows
from simulations.workloads.own.rows import Prepare

AT_ONCE = 4096
"""Rows that are looked at together, and most that are prepared in order to look at what a transform makes of them."""


@torch.no_grad()
def check_rows(base: Base) -> None:
    """Raise ValueError, naming the row, for numbers that are not finite and for targets that the loss cannot take.

    And for integers on which the model fails. Where model or loss fail on every test row, nothing is said here: the
    check of the model says why.
    """
    splits = {**base.workload.tests, "train": base.workload.train}
    splits = {name: split for name, split in splits.items() if not isinstance(split, NoRows)}
    for name, split in splits.items():
        check_split(split, name)
    model, loss, known = base.build_model().cpu().eval(), base.workload.loss, False
    with restored(loss), own_draws("cpu"):
        for name, split in splits.items():

            def run(rows: Tensor, split: Split = split) -> Any:
                return model_outputs(model, split.batch(rows)[0])

            if not known and not _works(run, split):
                return
            _check_integers(run, split, name)
            known = check_targets(loss, run, split.labels, name, known=known)


def _check_integers(run: Run, split: Split, what: str) -> None:
    """Raise ValueError for a row with integers on which the model fails, such as a token that its table has not."""
    first = split.batch(torch.arange(1))[0]
    if not any(t.is_floating_point() for _, t in fields(first)) and split.lengths is None:
        stored = _stored(split, torch.arange(len(split)))
        check_extremes(run, stored, what)


def check_split(split: Split, what: str) -> None:
    """Raise ValueError, naming row and column, for inputs that are not finite, as stored or as the model gets them.

    A transform may fill in missing values: rows that have some are looked at as it makes them.
    """
    transform = not isinstance(split.prepare, Prepare) or split.prepare.transform is not None
    fix = f"{FIX}; transform= may fill them in"
    if any(t.is_floating_point() or t.is_complex() for _, t in fields(_stored(split, torch.arange(1)))):
        for rows in torch.arange(len(split)).split(AT_ONCE):
            part = _stored(split, rows)
            bad = torch.cat([not_finite(value) for _, value in fields(part)]).unique()
            if not len(bad) and not any(value.is_complex() for _, value in fields(part)):
                continue
            if not transform or any(len(not_finite(value)) for _, value in fields(split.batch(rows[bad])[0])):
                check_numbers(part, what, rows=rows, fix=fix)
    if transform:
        rows = spread(len(split), AT_ONCE)
        check_numbers(split.batch(rows)[0], what, rows=rows)


def _stored(split: Split, rows: Tensor) -> Any:
    """Stored rows as tensors; nothing of rows that are stored as something else."""
    found = split.inputs[rows.numpy()]
    named = found.items() if isinstance(found, Mapping) else [("", found)]
    tensors = {
        str(name): torch.as_tensor(value)
        for name, value in named
        if isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "biufc")
    }
    return tensors[""] if set(tensors) == {""} else tensors


def _works(run: Run, split: Split) -> bool:
    """Whether the model takes a row."""
    try:
        run(spread(len(split), 1))
    except Exception:
        return False
    return True


@torch.no_grad()
def check_evaluation(base: Base) -> None:
    """Measure the initial model on the whole test split, as after each round. Raises ValueError, naming the row.

    All that an evaluation needs is found before round 1: rows that the model cannot take, a loss that is not finite,
    metrics that fail, fewer outputs than classes.
    """
    workload, model = base.workload, base.build_model()
    if not isinstance(workload.train, NoRows):
        check_train_shape(model, workload.train, workload.test, device=base.device)
    own = workloads.own(base.settings.workload)
    with restored(workload.loss, dict(workload.metrics)), own_draws(base.device):
        for name, split in workload.tests.items():
            _check_outputs(model, split, base, None if own is None else own.num_classes)
            try:
                found = evaluate(model, split, loss=workload.loss, classes=False, device=base.device).loss
                failure = None if math.isfinite(found) else f"its loss is {found}"
            except Exception as error:
                failure = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            if failure is not None:
                raise ValueError(
                    f"the initial model cannot be measured on {name}{_where(model, split, base)}: {failure}"
                )
        score(model, workload, device=base.device)


def _where(model: nn.Module, split: Split, base: Base) -> str:
    """ " row N", the first that fails alone; empty if none does."""
    for row in range(len(split)):
        try:
            one = split.pick(torch.tensor([row]))
            found = evaluate(model, one, loss=base.workload.loss, classes=False, device=base.device)
        except Exception:
            return f" row {row}"
        if not math.isfinite(found.loss):
            return f" row {row}"
    return ""


def _check_outputs(model: nn.Module, split: Split, base: Base, given: int | None) -> None:
    """Raise ValueError for outputs (B, K) with fewer numbers than there are classes, or another K than was given."""
    classes = base.workload.num_classes
    if classes is None:
        return
    inputs = to_device(split.batch(spread(len(split), 2))[0], base.device)
    outputs = scores_of(model_outputs(model.eval(), inputs))
    wide = outputs.ndim == 2 and outputs.shape[1] > 1
    if wide and (outputs.shape[1] < classes or (given is not None and outputs.shape[1] != given)):
        raise ValueError(
            f"the model gives {outputs.shape[1]} numbers for each example, and there are {classes} classes "
            f"({'num_classes' if given is not None else 'the largest target of test is one less'}): give the model as "
            "many outputs as classes"
        )


@torch.no_grad()
def check_train_shape(model: nn.Module, train: Split, test: Split, *, device: str) -> None:
    """Raise ValueError if the model fails on rows of the shape of train, where test has another one.

    In simulations of own workloads only: the model gets zeros, but the shape is that of a training row.
    """
    (inputs, targets), (public, _) = (split.batch(torch.tensor([0])) for split in (train, test))
    if _shapes(inputs) == _shapes(public):
        return
    zeros = (
        {k: torch.zeros_like(v) for k, v in inputs.items()} if isinstance(inputs, dict) else torch.zeros_like(inputs)
    )
    model.eval()
    with naming_failures(inputs, targets, "train"):
        zeros = to_device(zeros, device)
        model(**zeros) if isinstance(zeros, dict) else model(zeros)


def _shapes(inputs: Any) -> list[tuple[int, ...]]:
    return [tuple(value.shape) for value in (inputs.values() if isinstance(inputs, dict) else [inputs])]
