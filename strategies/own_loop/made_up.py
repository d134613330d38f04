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
    code       numbers in the user's code, among rows of each kind: they may stand for missing values, or be thresholds
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from fedlsg.gradients import Batch
from fedlsg.randomness import public_generator
from fedlsg.tensors import each, fields_of, of_fields, rows_of
from strategies.own_loop.fills import (
    FLOATS,
    ROWS,
    TARGETS,
    Fill,
    always,
    chunks,
    flags,
    half,
    lengths,
    normal,
    numbers,
    of_numbers,
    ones,
    shares,
    whole,
    with_missing,
    zeros,
)

LARGEST = 1_000_000
LADDER = [step * 10**power for power in range(6) for step in (1, 2, 5)] + [256]
FEW = 16
"""Most columns of which each gets a largest number of its own."""
FIELDS = 3
"""Most fields of integers that get numbers of different kinds."""
PLAIN: tuple[Fill, ...] = (flags, ones, zeros)
IGNORED = (-100, -1, 255)

Takes = Callable[[Batch, Batch], bool]
"""Whether model and loss take a batch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Maker:
    """Makes families for data of the form of ``inputs`` and ``targets``.

    ``sizes``: numbers in the model that may be the size of a range. ``ignored``: class numbers that may not count.
    ``written``: numbers in the user's code.
    """

    inputs: Batch
    targets: Batch
    takes: Takes
    sizes: frozenset[int]
    ignored: tuple[int, ...] = IGNORED
    written: tuple[float, ...] = ()

    def families(self) -> list[tuple[Batch, Batch]]:
        """Inputs and targets of each family that the model and the loss take, ``ROWS`` rows each; some may fail."""
        rows = self.rows()
        if rows is None:
            return []
        base = _row(rows[0], 0), _row(rows[1], 0)
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
            if sum(self._takes_row([inputs, targets], row) for row in range(ROWS)) > 1:
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

    def rows(self) -> tuple[Batch, Batch] | None:
        """Plain rows that the model and the loss take, each alone; None where they take none that are tried."""
        for floats, integers, target in self._plain_fills():
            made = [self._plain(side, floats, integers, target) for side in (0, 1)]
            if self._takes_row(made, 0):
                taken = [0, *(row for row in range(1, ROWS) if self._takes_row(made, row))]
                return rows_of(made[0], torch.tensor(taken)), rows_of(made[1], torch.tensor(taken))
        return None

    def _takes_row(self, made: list[Any], row: int) -> bool:
        return self.takes(_row(made[0], row), _row(made[1], row))

    def _plain_fills(self) -> Iterator[tuple[Fill, Mapping[str, Fill], Fill]]:
        """For floats, for each field of integers, and for targets.

        Integers are alike at first; then numbers of the code, and the next ones; then of other kinds in each field.
        """
        targets = (zeros, ones, TARGETS[0], TARGETS[1])
        names = [name for name, field in fields_of(self.inputs).items() if not field.is_floating_point()]
        alike = [dict.fromkeys(names, fill) for fill in PLAIN]
        for floats in (normal, shares, whole):
            for integers in alike:
                yield from ((floats, integers, target) for target in targets)
        code = dict.fromkeys(n for c in self.written if c == int(c) for n in (int(c), int(c) + 1))
        other: list[Mapping[str, Fill]] = [dict.fromkeys(names, partial(always, number)) for number in code if names]
        if 1 < len(names) <= FIELDS:
            other += [dict(zip(names, fills, strict=True)) for fills in product(PLAIN, repeat=len(names))]
        yield from ((normal, integers, target) for integers in other for target in targets)

    def _plain(self, side: int, floats: Fill, integers: Mapping[str, Fill], target: Fill) -> Any:
        made = {}
        for name, field in fields_of((self.inputs, self.targets)[side]).items():
            fill = target if side else integers.get(name, floats)
            fill = lengths if "mask" in name and field.ndim > 1 else fill
            made[name] = fit(fill(field, public_generator(0, "made up", side, name)), field)
        return of_fields(made)

    def _fills(self, side: int, base: tuple[Batch, Batch]) -> dict[str, list[Fill]]:
        found: dict[str, list[Fill]] = {}
        for name, field in fields_of((self.inputs, self.targets)[side]).items():
            if side == 0 and "mask" in name and field.ndim > 1:
                found[name] = [lengths]
            elif field.is_floating_point():
                found[name] = [*(TARGETS if side else FLOATS), *self._of_code(side, field)]
            elif field.dtype == torch.bool:
                found[name] = [flags]
            else:
                found[name] = list(self._integers(side, name, field, base))
        return found

    def _of_code(self, side: int, field: Tensor) -> Iterator[Fill]:
        for part in chunks(self.written, field[:1].numel() // 2):
            for fill in (flags, normal) if side else (normal,):
                yield partial(of_numbers, part, fill)

    def _integers(self, side: int, name: str, field: Tensor, base: tuple[Batch, Batch]) -> Iterator[Fill]:
        """Fills of a field of integers, whose largest number in each column is found by trials."""

        def takes(value: Any) -> bool:
            changed = [dict(fields_of(part)) for part in base]
            changed[side][name] = torch.as_tensor(value).expand(field.shape[1:]).unsqueeze(0).to(field.dtype)
            return self.takes(of_fields(changed[0]), of_fields(changed[1]))

        tries = dict.fromkeys([0, 1, *fields_of(base[side])[name].unique().tolist()])
        low = next((int(value) for value in tries if takes(int(value))), None)
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
                    yield partial(with_missing, fill, value)
        elif field.dtype.is_signed and takes(-3):
            yield numbers((high // 2).clamp(min=2), int(-(high.min() // 2).clamp(min=2)))
        yield from self._integers_of_code(side, field, takes, fill, low)

    def _integers_of_code(
        self, side: int, field: Tensor, takes: Callable[[Any], bool], fill: Fill, low: int
    ) -> Iterator[Fill]:
        """Fills with integers of the code that a field can have; of inputs also the next ones and the doubles."""
        known = torch.iinfo(field.dtype)
        code = [int(n) for n in self.written if n == int(n) and known.min <= n <= known.max]
        if side:
            yield from (partial(with_missing, fill, n) for n in code if n not in self.ignored and takes(n))
            return
        near = dict.fromkeys(n for c in code for n in (c, c + 1, 2 * c) if known.min <= n <= known.max)
        found = [n for n in near if any(map(takes, _at_the_end(n, low, field)))]
        for part in chunks(found, field[:1].numel() // 2):
            yield partial(of_numbers, part, half(fill))


def _at_the_end(number: int, low: int, field: Tensor) -> Iterator[Tensor]:
    """Rows with a number at the last place alone: a row of padding everywhere may have no result."""
    for rest in (low, low + 1):
        row = torch.full(field.shape[1:], rest)
        row.view(-1)[-1] = number
        yield row


def _below(size: int, low: int) -> tuple[int, ...]:
    """Numbers that must all be taken in a range up to ``size``: one ignored number above the range is taken as well."""
    return size - 1, max(low, size // 2), max(low, size // 3)


def fit(rows: Tensor, like: Tensor) -> Tensor:
    """Rows in the type of a field; on the CPU."""
    return rows.to(like.dtype)


def _row(part: Batch, row: int) -> Any:
    return each(part, lambda t: t[row : row + 1])
