"""The batch function of data that user code makes: each row alone, rows of one shape together."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from fedlsg.randomness import SecretStream
from fedlsg.rows.collate import check_row, collate, form_of, in_own_memory, tensors_of
from fedlsg.rows.draws import RowDraws
from fedlsg.rows.padding import Padding
from fedlsg.tensors import each, fields_of
from fedlsg.user_code.objects import generators_in

Positions = Int[Tensor, " batch"]
Row = tuple[Any, Any]
KEPT_BYTES = 2**28
"""Bytes of rows that are kept from the grouping of a batch to its passes; further rows are made a
second time.
"""


class OneByOne:
    """Batches of rows that ``make(position)`` gives, one call a row.

    ``source``: what the user gave, a data set or a function. ``padding``: None leaves each row its
    own length.
    ``own_lengths``: whether the user said that rows of a function keep their own lengths.
    Guarantee: what is made of an example, and its group, depend on that example and on secret draws
    of its own alone, as far as ``make`` keeps nothing from one call to the next. Within a step the
    row of a position has the same draws in every call.
    """

    def __init__(
        self,
        make: Callable[[int], Any],
        source: Any,
        *,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        padding: Padding | None = None,
        own_lengths: bool = True,
    ) -> None:
        self.source, self.name = source, getattr(source, "__name__", type(source).__name__)
        self.own_lengths = own_lengths
        self._make, self._device, self._dtype, self._padding = make, device, dtype, padding
        self._draws = RowDraws()
        self._keys: dict[int, bytes] = {}
        self._kept: dict[int, Row] = {}
        self.find_generators()

    def find_generators(self) -> None:
        """Look for generators that the source keeps: they are seeded for each row, as the global
        ones are.
        """
        self._draws.held = generators_in(self.source)

    def draw_from(self, stream: SecretStream | None) -> None:
        """Begin a step, whose draws come from this stream; or end it, and keep no key."""
        self._draws.stream = stream
        self._keys, self._kept = {}, {}

    def rows(self, positions: Positions, key: bytes | None = None) -> list[Row]:
        """The rows of the positions, in their order. ``key``: one for all of them, for tests of
        ``make``.
        """
        with self._draws.making():
            return [self._row(place, key) for place in positions.tolist()]

    def under(self, key: bytes, call: Callable[[], Any]) -> Any:
        """What a call gives under the draws of a key."""
        with self._draws.making():
            self._draws.begin(key)
            return call()

    def groups(self, positions: Positions) -> list[Positions]:
        """The positions by the form of their rows, ascending in each group."""
        if not len(positions):
            return [positions]
        places: dict[Any, list[int]] = {}
        size, room = {}, KEPT_BYTES
        with self._draws.making():
            for place in positions.tolist():
                row = self._row(place)
                form = form_of(row[0]), form_of(row[1])
                if form not in places:
                    places[form], size[form] = [], sum(map(_bytes_of, row))
                places[form].append(place)
                room -= size[form]
                if room > 0:
                    self._kept[place] = row
        if len(places) == 1:
            return [positions]
        return [torch.tensor(places[form]) for form in sorted(places, key=repr)]

    def within(
        self, groups: Callable[[Positions], Sequence[Positions]]
    ) -> Callable[[Positions], list[Positions]]:
        """Groups of the user's own, each cut by the form of its rows."""
        return lambda positions: [
            part for group in groups(positions) for part in self.groups(group)
        ]

    def __call__(self, positions: Positions) -> tuple[Any, Any]:
        """Inputs and targets of positions whose rows have one form.

        Raises ValueError for rows that are no pairs of tensors, arrays and numbers, or of several
        forms.
        """
        if not len(positions):  # nothing reads an empty batch but its size
            return torch.zeros(0, 1), torch.zeros(0)
        rows = [self._kept.pop(place, None) for place in positions.tolist()]
        if missing := [
            place for place, row in zip(positions.tolist(), rows, strict=True) if row is None
        ]:
            made = iter(self.rows(torch.tensor(missing)))
            rows = [next(made) if row is None else row for row in rows]
        inputs, targets = collate([row for row in rows if row is not None], self.name, self._dtype)
        return each(inputs, lambda t: t.to(self._device)), each(
            targets, lambda t: t.to(self._device)
        )

    def _row(self, place: int, key: bytes | None = None) -> Row:
        if key is None:
            if place not in self._keys:
                self._keys[place] = self._draws.next_key()
            key = self._keys[place]
        self._draws.begin(key)
        inputs, targets = map(in_own_memory, check_row(self._make(place), self.name))
        if self._padding is None:
            return inputs, targets
        return self._padding.of_row(inputs, targets, self._dtype)


def _bytes_of(part: Any) -> int:
    values = part.values() if isinstance(part, Mapping) else [part]
    return sum(getattr(value, "nbytes", 8) for value in values)


def first_row(row: Row) -> Row:
    """The row of a batch of one."""
    inputs, targets = row
    return each(inputs, _first), each(targets, _first)


def _first(value: Tensor) -> Tensor:
    return value[0]


def same_row(one: Row, other: Row) -> bool:
    """Whether two rows are equal bit for bit; NaN is equal to itself."""
    fields = [fields_of(tensors_of(part, torch.float32)) for row in (one, other) for part in row]
    for a, b in ((fields[0], fields[2]), (fields[1], fields[3])):
        if a.keys() != b.keys() or not all(_equal(a[name], b[name]) for name in a):
            return False
    return True


def _equal(a: Tensor, b: Tensor) -> bool:
    return (
        a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())
    )
