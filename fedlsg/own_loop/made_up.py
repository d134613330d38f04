"""Made-up examples with the values that real ones have, in several families.

Ranges come from types, from sizes in the model and from trials: nothing of the data is read but shapes and types.
A family is made if the model and the loss take some of its rows, each alone. Trials run on the CPU, where a wrong class
number is an error; on a GPU it would end the process's use of the device.

    floats     normal numbers, numbers in [0, 1], columns of very different scale (1e-3 to 1e6, a unix time), small
               whole numbers, missing values (NaN)
    integers   0 and 1; numbers up to the largest that the model takes (rows of tables, a byte, 1,000,000): rows of
               small ones, of all, of large ones; negative ones. Masks are lengths, the longest first
    targets    class numbers of the whole range; with ignored ones, one label in a row, all, half, none; floats:
               shares, normal numbers, 0 and 1, distributions, positive ones, large ones, missing ones
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedlsg.gradients import Batch
from fedlsg.randomness import public_generator

ROWS = 4
"""Rows of a family."""
LARGEST = 1_000_000
LADDER = [step * 10**power for power in range(6) for step in (1, 2, 5)] + [256]
FEW = 16
"""Most columns of which each gets a largest number of its own."""
UNIX_TIME = 1.7e9
IGNORED = (-100, -1, 255)

Fill = Callable[[Tensor, torch.Generator], Tensor]
"""From a field of the data, of which shape and type are read, to ``ROWS`` rows."""
Takes = Callable[[Batch, Batch], bool]
"""Whether model and loss take a batch."""


def fields_of(batch: Batch) -> dict[str, Tensor]:
    """Tensors by name, "" for a batch that is a tensor."""
    return {"": batch} if isinstance(batch, Tensor) else dict(batch)


def of_fields(fields: Mapping[str, Tensor]) -> Any:
    """The batch of these fields."""
    return fields[""] if set(fields) == {""} else dict(fields)


def normal(like: Tensor, draw: torch.Generator) -> Tensor:
    return torch.randn((ROWS, *like.shape[1:]), generator=draw, dtype=torch.float64)


def shares(like: Tensor, draw: torch.Generator) -> Tensor:
    """In [0, 1]; the last row is constant."""
    rows = torch.rand((ROWS, *like.shape[1:]), generator=draw, dtype=torch.float64)
    rows[-1] = 0.5
    return rows


def scales(like: Tensor, draw: torch.Generator) -> Tensor:
    """Each column of the last dimension has a scale of its own; one is a unix time."""
    rows = normal(like, draw)
    if rows.ndim < 2:
        return 1e5 * rows
    width = rows.shape[-1]
    rows = rows * (10.0 ** torch.linspace(-3, 6, width, dtype=torch.float64)[torch.randperm(width, generator=draw)])
    if width > 1:
        rows[..., width // 2] = UNIX_TIME + 1e5 * torch.randn(rows.shape[:-1], generator=draw, dtype=torch.float64)
    return rows


def whole(like: Tensor, draw: torch.Generator) -> Tensor:
    """Counts or categories as floats: 0 and 1, up to 3, and in the last row up to 5,000."""
    most = torch.tensor([2, 4, 3, 5000]).view(-1, *[1] * (like.ndim - 1))
    return (torch.rand((ROWS, *like.shape[1:]), generator=draw, dtype=torch.float64) * most).floor()


def missing(rows: Tensor, draw: torch.Generator, value: float = torch.nan) -> Tensor:
    """A value at some places: of the first row all but one, of the second none, of the third half, of the last all.

    Of a row without columns: in the last two.
    """
    share = torch.tensor([1.0, 0.0, 0.5, 1.0] if rows.ndim > 1 else [0.0, 0.0, 1.0, 1.0])
    gone = torch.rand(rows.shape, generator=draw) < share.view(-1, *[1] * (rows.ndim - 1))
    if rows.ndim > 1:
        gone.flatten(1)[0, 0] = False
    return torch.where(gone, torch.full_like(rows, value), rows)


def some_missing(like: Tensor, draw: torch.Generator) -> Tensor:
    """Normal numbers, and NaN at every fourth place of the first rows."""
    rows = normal(like, draw)
    gone = torch.rand(rows.shape, generator=draw) < torch.tensor([0.25, 0.5, 0.25, 0.0]).view(
        -1, *[1] * (like.ndim - 1)
    )
    return torch.where(gone, torch.nan, rows)


def flags(like: Tensor, draw: torch.Generator) -> Tensor:
    rows = torch.randint(2, (ROWS, *like.shape[1:]), generator=draw)
    if rows.ndim > 1:
        rows[:, 0] = 1
    return rows


def lengths(like: Tensor, draw: torch.Generator) -> Tensor:
    """Masks of padding, the longest first: 1 at as many places as a row has."""
    size = like.shape[-1]
    long = torch.tensor([size, max(1, size // 2), 1, max(1, size * 3 // 4)]).view(-1, *[1] * (like.ndim - 1))
    return (torch.arange(size) < long).expand(ROWS, *like.shape[1:]).long()


def numbers(high: Tensor, low: int = 0) -> Fill:
    """Integers from ``low`` up to the largest of each column: small ones, all, large ones, and half of them low."""

    def fill(like: Tensor, draw: torch.Generator) -> Tensor:
        span = (high - low).clamp(min=1).double()
        starts = torch.tensor([0.0, 0.0, 0.75, 0.0]).double().view(-1, *[1] * (like.ndim - 1))
        drawn = torch.rand((ROWS, *like.shape[1:]), generator=draw, dtype=torch.float64)
        rows = (starts + (1 - starts) * drawn) * span
        rows[0] = drawn[0] * span.clamp(max=20)
        rows[3] = rows[3] * (torch.rand(rows[3].shape, generator=draw) < 0.5)
        if like.ndim == 1:  # one number a row: all of them different where there are as many
            rows = torch.tensor([0.3, 0.99, 0.6, 0.0]).double() * span
        return (rows.floor().long() + low).clamp(max=(high - 1).clamp(min=low))

    return fill


def _with_missing(fill: Fill, value: float, like: Tensor, draw: torch.Generator) -> Tensor:
    return missing(fill(like, draw), draw, value)


def softmax(like: Tensor, draw: torch.Generator) -> Tensor:
    return normal(like, draw).reshape(ROWS, -1).softmax(1).view(ROWS, *like.shape[1:])


FLOATS: tuple[Fill, ...] = (normal, shares, scales, whole, some_missing)
TARGETS: tuple[Fill, ...] = (
    lambda like, draw: normal(like, draw).sigmoid(),
    normal,
    lambda like, draw: flags(like, draw).double(),
    softmax,
    lambda like, draw: normal(like, draw).exp(),
    lambda like, draw: 1e5 * normal(like, draw),
    lambda like, draw: missing(normal(like, draw).sigmoid(), draw),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Maker:
    """Makes families for data of the form of ``inputs`` and ``targets``.

    ``sizes``: numbers in the model that may be the size of a range. ``ignored``: class numbers that may not count.
    """

    inputs: Batch
    targets: Batch
    takes: Takes
    sizes: frozenset[int]
    ignored: tuple[int, ...] = IGNORED

    def families(self) -> list[tuple[Batch, Batch]]:
        """Inputs and targets of each family that the model and the loss take, ``ROWS`` rows each; some may fail."""
        base = self._base()
        if base is None:
            return []
        own, wanted = self._fills(0, base), self._fills(1, base)
        first, second = (max(map(len, fills.values()), default=1) for fills in (own, wanted))
        pairs: list[tuple[int, int]] = []
        for one in range(first):
            pairs += self._first([(one, (one + shift) % second) for shift in range(second)], own, wanted)
        for two in set(range(second)) - {two for _, two in pairs}:
            pairs += self._first([(one, two) for one in range(first)], own, wanted)
        return [(self._rows(0, own, one), self._rows(1, wanted, two)) for one, two in pairs]

    def _first(self, pairs: list[tuple[int, int]], own: Any, wanted: Any) -> list[tuple[int, int]]:
        """The first pair of which the model takes two rows, each alone."""
        for one, two in pairs:
            inputs, targets = self._rows(0, own, one), self._rows(1, wanted, two)
            if sum(self.takes(_row(inputs, row), _row(targets, row)) for row in range(ROWS)) > 1:
                return [(one, two)]
        return []

    def _rows(self, side: int, fills: Mapping[str, list[Fill]], number: int) -> Any:
        like = fields_of((self.inputs, self.targets)[side])
        rows = {}
        for name, field in like.items():
            draw = public_generator(number, "made up", side, name)
            rows[name] = fit(fills[name][number % len(fills[name])](field, draw), field)
        masks = [value for name, value in rows.items() if "mask" in name]
        for name, value in rows.items():
            if side == 0 and masks and not value.is_floating_point() and value.shape == masks[0].shape:
                rows[name] = value * masks[0].to(value.dtype)
        return of_fields(rows)

    def _base(self) -> tuple[Batch, Batch] | None:
        """One row that the model takes."""
        for floats in (normal, shares, whole):
            for integer in (flags, _ones, _zeros):
                for target in (_zeros, _ones, TARGETS[0], TARGETS[1]):
                    rows = [self._plain(side, floats, integer, target) for side in (0, 1)]
                    if self.takes(rows[0], rows[1]):
                        return rows[0], rows[1]
        return None

    def _plain(self, side: int, floats: Fill, integer: Fill, target: Fill) -> Any:
        made = {}
        for name, field in fields_of((self.inputs, self.targets)[side]).items():
            fill = floats if field.is_floating_point() else integer
            fill = lengths if "mask" in name and field.ndim > 1 else target if side else fill
            made[name] = fit(fill(field, public_generator(0, "made up", side, name)), field)[:1]
        return of_fields(made)

    def _fills(self, side: int, base: tuple[Batch, Batch]) -> dict[str, list[Fill]]:
        found: dict[str, list[Fill]] = {}
        for name, field in fields_of((self.inputs, self.targets)[side]).items():
            if side == 0 and "mask" in name and field.ndim > 1:
                found[name] = [lengths]
            elif field.is_floating_point():
                found[name] = list(TARGETS if side else FLOATS)
            elif field.dtype == torch.bool:
                found[name] = [flags]
            else:
                found[name] = list(self._integers(side, name, field, base))
        return found

    def _integers(self, side: int, name: str, field: Tensor, base: tuple[Batch, Batch]) -> Iterator[Fill]:
        """Fills of a field of integers, whose largest number in each column is found by trials."""

        def takes(value: Any) -> bool:
            changed = [dict(fields_of(part)) for part in base]
            changed[side][name] = torch.as_tensor(value).expand(field.shape[1:]).unsqueeze(0).to(field.dtype)
            return self.takes(of_fields(changed[0]), of_fields(changed[1]))

        low = next((value for value in (0, 1) if takes(value)), None)
        if low is None:
            yield flags
            return
        top = min(LARGEST, torch.iinfo(field.dtype).max)
        tried = sorted({*LADDER, *self.sizes}, reverse=True)
        tried = [top + 1, *(size for size in tried if low + 1 < size <= top)]
        common = next((size for size in tried if all(map(takes, _below(size, low)))), low + 1)
        high = torch.full(field.shape[1:], common)
        if common < tried[0] and 1 < high.numel() <= FEW:
            for place in range(high.numel()):
                alone = torch.zeros_like(high)
                alone.view(-1)[place] = 1
                more = (n for n in tried if n > common and all(takes(low + alone * (v - low)) for v in _below(n, low)))
                high.view(-1)[place] = next(more, common)
        fill = numbers(high, low)
        if not side and int(high.max()) > 2:
            yield flags
        yield fill
        if side:
            for value in dict.fromkeys(self.ignored):
                if (value >= common or (value < 0 and field.dtype.is_signed)) and (field.ndim > 1 or takes(value)):
                    yield partial(_with_missing, fill, value)
        elif field.dtype.is_signed and takes(-3):
            yield numbers((high // 2).clamp(min=2), int(-(high.min() // 2).clamp(min=2)))


def _below(size: int, low: int) -> tuple[int, ...]:
    """Numbers that must all be taken in a range up to ``size``: one ignored number above the range is taken as well."""
    return size - 1, max(low, size // 2), max(low, size // 3)


def fit(rows: Tensor, like: Tensor) -> Tensor:
    """Rows in the type of a field; on the CPU."""
    return rows.to(like.dtype)


def _row(part: Batch, row: int) -> Any:
    return of_fields({name: value[row : row + 1] for name, value in fields_of(part).items()})


def _ones(like: Tensor, draw: torch.Generator) -> Tensor:
    return torch.ones((ROWS, *like.shape[1:]))


def _zeros(like: Tensor, draw: torch.Generator) -> Tensor:
    return torch.zeros((ROWS, *like.shape[1:]))
