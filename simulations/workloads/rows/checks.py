"""What a user's data must be, beyond their form: types that fit the loss, and a transform of each row by itself."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from fedlsg.gradients.losses import CLASSES, PerExampleLoss
from fedlsg.own_loop.alone import LARGEST
from fedlsg.own_loop.fills import ROWS
from fedlsg.own_loop.made_up import Maker
from fedlsg.own_loop.row_checks import not_finite
from fedlsg.randomness import own_draws
from fedlsg.tensors import fields_of as fields
from fedlsg.tensors import of_fields
from fedlsg.user_code.objects import written
from simulations.workloads.base.split import Inputs
from simulations.workloads.rows.form import Prepare, Rows
from simulations.workloads.rows.transform import ONE_SHAPE, PROBES, check_same_rows, fields_of, run_transform

DISTANCES = (
    "MSELoss", "mse_loss", "L1Loss", "l1_loss", "SmoothL1Loss", "smooth_l1_loss", "HuberLoss", "huber_loss",
    "PoissonNLLLoss", "poisson_nll_loss",
)  # fmt: skip
"""Losses of torch in which the number of a class would be an amount."""


def check_targets(rows: Rows, loss: Any, what: str) -> None:
    """Raise ValueError for targets that are no numbers, or that a loss of torch for classes cannot take."""
    found = rows.targets
    if found.is_floating_point() and len(bad := not_finite(found)):
        raise ValueError(
            f"{what} targets have missing or infinite values, the first in row {int(bad[0])}: fill them, or leave the "
            "rows out"
        )
    name = loss.name if isinstance(loss, PerExampleLoss) else ""
    if rows.classes and name in DISTANCES:
        raise ValueError(f"{what} targets are classes ({', '.join(rows.classes[:3])}, ...), and {name} takes numbers")
    if name in CLASSES and (found.is_floating_point() or found.dtype == torch.bool) and found.ndim == 1:
        raise ValueError(
            f"{what} targets are {found.dtype}, and {name} takes the number of each class: give integers, 0 to K - 1"
        )


def check_alike(train: Rows, test: Rows) -> None:
    """Raise ValueError unless both splits have one form: classes, type and shape of targets, names and types of inputs.

    Shapes of inputs may differ: a model may take images or texts of several sizes.
    """
    if train.classes != test.classes:
        raise ValueError(
            f"train has the classes {train.classes}, test has {test.classes}: give both numbers, or both the same names"
        )
    forms = [(str(rows.targets.dtype), tuple(rows.targets.shape[1:])) for rows in (train, test)]
    if forms[0] != forms[1]:
        raise ValueError(f"train targets are {forms[0]}, those of test {forms[1]}: give both one type and shape")
    first = [{name: str(value.dtype) for name, value in fields_of(_prepared(rows, [0]))} for rows in (train, test)]
    if first[0] != first[1]:
        raise ValueError(f"train inputs are {first[0]}, those of test {first[1]}: give both one form")


def check_transform(rows: Rows, what: str) -> None:
    """Raise ValueError if what is made of a row depends on the other rows of its batch, or on chance; for complex rows.

    The clip bounds what one example adds only if its inputs depend on no other example. A few rows are prepared alone
    and together; so are made-up rows of the same form, in all families that the transform takes. ``rows`` are public.
    All random generators are left as they were.
    """
    stored = rows.inputs[np.zeros(1, dtype=np.int64)]
    for value in stored.values() if isinstance(stored, Mapping) else [stored]:
        if np.iscomplexobj(value):
            raise ValueError(f"{what} inputs are complex ({value.dtype}): give real and imaginary parts as columns")
    with own_draws("cpu"):
        places = np.linspace(0, len(rows.targets) - 1, min(PROBES, len(rows.targets))).astype(np.int64)
        _check_rows(lambda chosen: _prepared(rows, places[chosen]), len(places), what)
        for made in _made_up(rows):
            with suppress(_CannotTakeError):
                _check_rows(partial(_of_made_up, rows, made), ROWS, f"made-up {what}")


class _CannotTakeError(Exception):
    """A transform that fails on made-up rows."""


def _check_rows(make: Callable[[Any], Inputs], count: int, what: str) -> None:
    """``make``: from places of 0 to count - 1 to inputs. Alone, all, all the other way round, pairs, a large batch."""
    alone = [dict(fields_of(make([row]))) for row in range(count)]
    order = list(range(count))
    large = order * -(-LARGEST // count)
    for together in (order, order[::-1], order[::2], order[1::2], large, *([a, b] for a, b in pairwise(order))):
        if together:
            made = dict(fields_of(make(together)))
            if wrong := [name for name, value in made.items() if value.ndim == 0 or len(value) != len(together)]:
                raise ValueError(
                    f"transform gave {what} {wrong[0]} of shape {tuple(made[wrong[0]].shape)} for {len(together)} "
                    f"rows: {ONE_SHAPE}"
                )
            check_same_rows([alone[row] for row in together], made, range(len(together)), what)


def _made_up(rows: Rows) -> list[Any]:
    """Stored rows in families, for a transform of numbers."""
    if not isinstance(rows.prepare, Prepare) or rows.prepare.transform is None:
        return []
    stored = rows.inputs[np.zeros(1, dtype=np.int64)]
    like = (
        {name: torch.as_tensor(value) for name, value in stored.items()}
        if isinstance(stored, Mapping)
        else torch.as_tensor(stored)
    )

    def takes(inputs: Any, targets: Any) -> bool:
        try:
            return bool(dict(fields_of(rows.prepare(inputs))))
        except Exception:  # whatever a user's transform raises on such values
            return False

    maker = Maker(inputs=like, targets={}, takes=takes, sizes=frozenset(), written=written(rows.prepare.transform))
    return [inputs for inputs, _ in maker.families()]


def _of_made_up(rows: Rows, made: Any, chosen: Sequence[int]) -> Inputs:
    part = {name: value[list(chosen)] for name, value in fields(made).items()}
    try:
        found: Inputs = run_transform(rows.prepare, of_fields(part))
        return found
    except ValueError as error:
        if len(chosen) == 1:
            raise _CannotTakeError from error
        raise


def _prepared(rows: Rows, places: Any) -> Inputs:
    found: Inputs = run_transform(rows.prepare, rows.inputs[np.asarray(places, dtype=np.int64)])
    return found
