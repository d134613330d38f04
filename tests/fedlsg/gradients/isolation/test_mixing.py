"""Models and losses that mix on values of real rows: each example has its own gradient all the
same.

By construction, so no made-up values have to meet the condition on which a model mixes. The control
is the pass over the batch: there, each of these forms gives some row the gradient of its company.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from fedlsg.gradients import per_example_loss
from fedlsg.gradients.isolation.levels import Isolation
from fedlsg.gradients.isolation.passes import per_example_gradients
from fedlsg.gradients.isolation.trial import dense_frame
from fedlsg.tensors import each, fields_of, of_fields
from tests.fedlsg.support.mixing_zoo import MIXING

COUNT = 5
COINS = {"a coin by torch", "a coin by python"}
"""Under one seed they mix or not; other seeds are the matter of the check."""
UNSEEN = {"weak", "mean from 32 examples on"}
"""Below the tolerance of float32, or in larger batches than this one: the control does not see
it.
"""
BY_ROWS = {"pixels or shares", "distinct ids", "milliseconds or seconds"}
"""torch has no rule for their code under ``vmap``."""
CLOSE = 1e-4


def some(chance: float, value: float, rows: Tensor, draw: torch.Generator) -> Tensor:
    """Rows with a value at some places, but the first of each."""
    here = torch.rand(rows.shape, generator=draw) < chance
    if rows.ndim > 1:
        here.flatten(1)[:, 0] = False
    return rows.masked_fill(here, value)


def values_of(like: Tensor, draw: torch.Generator) -> list[Tensor]:
    """Rows of a field, in kinds that real data have."""
    shape = COUNT, *like.shape[1:]
    if like.is_floating_point():
        normal = torch.randn(shape, generator=draw)
        flags = (torch.rand(shape, generator=draw) < 0.4).float()
        return [
            normal,
            some(0.4, torch.nan, normal, draw),
            some(0.4, -999.0, normal, draw),
            5 * normal,
            flags,
            some(0.4, -1.0, flags, draw),
        ]
    small, large = (torch.randint(high, shape, generator=draw) for high in (3, 50))
    kinds = [small, large, *(some(0.4, value, small, draw) for value in (-100, 255, -1, 100))]
    unit = torch.tensor([1, 1000, 1, 1000, 1]).view(-1, *[1] * (len(shape) - 1))
    kinds += [torch.randint(256, shape, generator=draw), -large]
    if len(shape) > 1:  # a table of class numbers would be large
        kinds.append((1_650_000_000 + large) * unit)
    known = torch.iinfo(like.dtype)
    return [rows for rows in kinds if known.min <= int(rows.min()) and int(rows.max()) <= known.max]


def fillings(part: Any, draw: torch.Generator) -> list[Any]:
    """Kinds of rows for a part of a case. Fields of token ids and masks are drawn together."""
    fields = fields_of(part)
    kinds = {name: values_of(field, draw) for name, field in fields.items()}
    filled = []
    for number in range(max(map(len, kinds.values()))):
        rows = {
            name: kinds[name][number % len(kinds[name])].to(fields[name].dtype) for name in fields
        }
        if "attention_mask" in rows:
            lengths = torch.arange(1, COUNT + 1).unsqueeze(1)
            mask = torch.arange(fields["attention_mask"].shape[1]) < lengths
            rows["attention_mask"] = mask.long()
        filled.append(of_fields(rows))
    return filled


def gradients(model: Any, loss: Any, inputs: Any, targets: Any, level: Isolation) -> Tensor:
    given = model, loss, inputs, targets, dense_frame(model)
    return torch.cat(per_example_gradients(*given, isolation=level), 1).detach()


def alone_and_together(case: str, level: Isolation) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Gradients of rows alone, at a level, and of the pass over the batch, of each kind of values
    that the case takes.
    """
    draw = torch.Generator().manual_seed(3)
    torch.manual_seed(1)
    form = MIXING[case]
    model, loss = form.model(), per_example_loss(form.loss)
    for inputs, targets in product(fillings(form.x, draw), fillings(form.y, draw)):
        try:
            rows = [row_of(inputs, targets, row) for row in range(COUNT)]
            alone = torch.cat([gradients(model, loss, *row, "checked") for row in rows])
        except Exception:  # the model takes no such values
            continue
        if not bool(alone.isfinite().all()):
            continue
        step = gradients(model, loss, inputs, targets, level)
        try:
            together = gradients(model, loss, inputs, targets, "checked")
        except Exception:
            together = alone
        yield alone, step, together


def row_of(inputs: Any, targets: Any, row: int) -> tuple[Any, Any]:
    return each(inputs, lambda t: t[row : row + 1]), each(targets, lambda t: t[row : row + 1])


def apart(one: Tensor, other: Tensor) -> bool:
    length = one.norm(dim=1).clamp(min=1e-3)
    return bool(((one - other).norm(dim=1) > CLOSE * length).any())


@pytest.mark.thinned(3)
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("case", [name for name in MIXING if name not in COINS])
def test_each_example_has_its_own_gradient_whatever_its_company(case):
    kinds = list(alone_and_together(case, "rows" if case in BY_ROWS else "isolated"))
    assert kinds
    assert not any(apart(alone, step) for alone, step, _ in kinds)
    assert case in UNSEEN or any(apart(alone, together) for alone, _, together in kinds)
