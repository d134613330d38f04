"""Plain made-up rows that a model and a loss take, each alone.

Only names, shapes and types of the data are read. Values are tried in this order: for floats normal
numbers, numbers in [0, 1] and small whole numbers; for integers 0 and 1, 1 and 2, ones and zeros;
for targets zeros, ones, probabilities and normal numbers. Masks are those of padding. Trials run on
the CPU, where a wrong class number is an error; on a GPU it would end the process's use of the
device.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor

from fedlsg.gradients import Batch
from fedlsg.randomness import public_generator
from fedlsg.tensors import fields_of, of_fields, rows_of

ROWS = 4
"""Rows that are made."""
MAX_FIELDS = 3
"""With so many fields of integers at most, each field is tried with numbers of its own kind."""

Takes = Callable[[Batch, Batch], bool]
"""Whether model and loss take a batch."""
Fill = Callable[[Tensor, torch.Generator], Tensor]
"""From a field of the data, of which shape and type are read, to ``ROWS`` rows."""


def uniform(like: Tensor, draw: torch.Generator) -> Tensor:
    """Numbers in [0, 1)."""
    return torch.rand((ROWS, *like.shape[1:]), generator=draw, dtype=torch.float64)


def normal(like: Tensor, draw: torch.Generator) -> Tensor:
    """Standard normal numbers."""
    return torch.randn((ROWS, *like.shape[1:]), generator=draw, dtype=torch.float64)


def probabilities(like: Tensor, draw: torch.Generator) -> Tensor:
    """Numbers in (0, 1), around 1/2."""
    return normal(like, draw).sigmoid()


def counts(like: Tensor, draw: torch.Generator) -> Tensor:
    """0 to 4, as floats."""
    return (5 * uniform(like, draw)).floor()


def flags(like: Tensor, draw: torch.Generator, start: int = 0) -> Tensor:
    """Integers ``start`` or ``start`` + 1.

    The first of each row is the larger one, so that no mask of tokens is empty.
    """
    if like.ndim == 1:
        return torch.arange(ROWS) % 2 + start
    rows = torch.randint(2, (ROWS, *like.shape[1:]), generator=draw)
    if rows.shape[1] > 1:
        rows[:, 0] = 1
    return rows + start


def lengths(like: Tensor, draw: torch.Generator) -> Tensor:
    """Masks of padding for four lengths: 1 for a number, 0 for padding."""
    size = like.shape[-1]
    four_lengths = torch.tensor([size, max(1, size // 2), 1, max(1, size * 3 // 4)])
    mask = torch.arange(size) < four_lengths.view(-1, *[1] * (like.ndim - 1))
    return mask.expand(ROWS, *like.shape[1:]).long()


def always(number: float, like: Tensor, draw: torch.Generator) -> Tensor:
    """One number everywhere."""
    return torch.full((ROWS, *like.shape[1:]), float(number))


ones, zeros = partial(always, 1), partial(always, 0)
FLOATS: tuple[Fill, ...] = (normal, uniform, counts)
INTEGERS: tuple[Fill, ...] = (flags, partial(flags, start=1), ones, zeros)
TARGETS: tuple[Fill, ...] = (zeros, ones, probabilities, normal)


@dataclass(frozen=True, kw_only=True, eq=False)
class Maker:
    """Makes rows of the form of the data.

    inputs: of the data; only names, shapes and types are read.
    targets: of the data, likewise.
    takes: whether model and loss take a batch.
    """

    inputs: Batch
    targets: Batch
    takes: Takes

    def rows(self) -> tuple[Batch, Batch] | None:
        """Inputs and targets that model and loss take, each row alone; None if nothing is taken."""
        for floats, integers, target in self.fills():
            inputs = self._made("inputs", floats, integers)
            targets = self._made("targets", target, {})
            if not self._takes_row(inputs, targets, 0):
                continue
            others = [row for row in range(1, ROWS) if self._takes_row(inputs, targets, row)]
            chosen = torch.tensor([0, *others])
            return rows_of(inputs, chosen), rows_of(targets, chosen)
        return None

    def fills(self) -> Iterator[tuple[Fill, Mapping[str, Fill], Fill]]:
        """Combinations to try: the fill of floats, of each field of integers, and of targets."""
        fields = fields_of(self.inputs).items()
        names = [name for name, field in fields if not field.is_floating_point()]
        alike: list[Mapping[str, Fill]] = [dict.fromkeys(names, fill) for fill in INTEGERS]
        for floats, integers, target in product(FLOATS, alike, TARGETS):
            yield floats, integers, target
        if 1 < len(names) <= MAX_FIELDS:
            for fills, target in product(product(INTEGERS, repeat=len(names)), TARGETS):
                yield normal, dict(zip(names, fills, strict=True)), target

    def _made(self, side: str, default: Fill, fills: Mapping[str, Fill]) -> Batch:
        """Inputs or targets: each field by its own fill, or the default."""
        fields = {}
        for name, field in fields_of(getattr(self, side)).items():
            is_mask = "mask" in name and field.ndim > 1
            fill = lengths if is_mask else fills.get(name, default)
            draw = public_generator(0, "made up", int(side == "targets"), name)
            fields[name] = fill(field, draw).to(field.dtype)
        batch: Batch = of_fields(fields)
        return batch

    def _takes_row(self, inputs: Batch, targets: Batch, row: int) -> bool:
        alone = torch.tensor([row])
        return self.takes(rows_of(inputs, alone), rows_of(targets, alone))
