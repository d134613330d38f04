"""What a user's data must be, beyond their form: types that fit the loss, and a transform of each row by itself."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedlsg.gradients.losses import CLASSES, PerExampleLoss
from simulations.workloads.base.workload import Inputs
from simulations.workloads.own.rows import Rows
from simulations.workloads.own.transform import check_same_row, fields_of, run_transform

PROBES = 5


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
    first = [{name: str(value.dtype) for name, value in fields_of(_prepared(rows, [0]))} for rows in (train, test)]
    if first[0] != first[1]:
        raise ValueError(f"train inputs are {first[0]}, those of test {first[1]}: give both one form")


def check_transform(rows: Rows, what: str) -> None:
    """Raise ValueError if what is made of a row depends on the other rows of its batch, or on chance; for complex rows.

    The clip bounds what one example adds only if its inputs depend on no other example. A few rows are prepared alone
    and together. ``rows`` are public.
    """
    stored = rows.inputs[np.zeros(1, dtype=np.int64)]
    for value in stored.values() if isinstance(stored, Mapping) else [stored]:
        if np.iscomplexobj(value):
            raise ValueError(f"{what} inputs are complex ({value.dtype}): give real and imaginary parts as columns")
    places = np.linspace(0, len(rows.targets) - 1, min(PROBES, len(rows.targets))).astype(np.int64)
    together = dict(fields_of(_prepared(rows, places)))
    for row, place in enumerate(places):
        for name, alone in fields_of(_prepared(rows, [place])):
            check_same_row(alone, together.get(name), row, len(places), f"{what} {name}")


def _prepared(rows: Rows, places: Any) -> Inputs:
    found: Inputs = run_transform(rows.prepare, rows.inputs[np.asarray(places, dtype=np.int64)])
    return found
