"""The batch function of data that user code makes: each row alone, rows of one shape together."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from copy import copy
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from fedlsg.randomness import SecretStream
from fedlsg.rows.collate import check_row, collate, form_of, in_own_memory, tensors_of
from fedlsg.rows.draws import RowDraws
from fedlsg.rows.padding import Padding
from fedlsg.rows.workers import RowWorkers, Start
from fedlsg.tensors import each, fields_of
from fedlsg.user_code.objects import generators_in

Positions = Int[Tensor, " batch"]
Row = tuple[Any, Any]
KEPT_BYTES = 2**28
"""Most bytes of rows that are kept from the grouping of a batch to its passes; other rows are made
a second time.
"""
AHEAD = 64
"""Rows that workers make in advance."""


class KeyedRow:
    """A function that makes the row of a position with the draws of a key, equally in every
    process.

    It has no stream, so that a worker gets it without the secret from which keys follow.
    """

    def __init__(
        self, make: Callable[[int], Any], source: Any, dtype: torch.dtype, padding: Padding | None
    ) -> None:
        self.make, self.dtype, self.padding = make, dtype, padding
        self.source, self.name = source, getattr(source, "__name__", type(source).__name__)
        self.draws, self._tried = RowDraws(), False

    def __call__(self, asked: tuple[int, bytes]) -> Row:
        """In a worker, the row of one (position, key)."""
        with self.draws.making():
            if not self._tried:  # the first row may make generators, which are seeded from then on
                self.row(*asked)
                self.draws.held, self._tried = generators_in(self.source), True
            return self.row(*asked)

    def row(self, place: int, key: bytes) -> Row:
        """The row of a position and key, inside of ``draws.making``."""
        self.draws.begin(key)
        inputs, targets = check_row(self.make(place), self.name)
        if self.padding is None:
            return in_own_memory(inputs), in_own_memory(targets)
        return self.padding.of_row(inputs, targets, self.dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "draws": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.draws = RowDraws()


class OneByOne:
    """Batches of rows, each made by one call of ``make(position)``.

    source: the user's data set or function.
    device: of the batches.
    dtype: of values that python or numpy made as float64.
    padding: how rows grow to public lengths; None leaves each row its own length.
    own_lengths: whether the user declared that rows of a function keep their own lengths.
    workers: processes that make rows; 0: this one makes them.
    start: how workers start (``RowWorkers``).
    Guarantee: the row of an example, and its group, depend on that example and on its own secret
    draws alone, if ``make`` keeps nothing from one call to the next. Within a step the row of a
    position has the same draws in every call, and in every process: rows are equal bit for bit with
    any number of workers.
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
        workers: int = 0,
        start: Start | None = None,
    ) -> None:
        self._keyed = KeyedRow(make, source, dtype, padding)
        self.source, self.name = source, self._keyed.name
        self.own_lengths = own_lengths
        self.padding, self._device, self._dtype = padding, device, dtype
        self._draws = self._keyed.draws
        self._keys: dict[int, bytes] = {}
        self._kept: dict[int, Row] = {}
        self.find_generators()
        self._workers = RowWorkers(copy(self._keyed), workers, start=start) if workers else None
        self._open_workers()

    def _open_workers(self) -> None:
        """Start the workers, also in place of lost ones; never after a batch is drawn."""
        if self._workers is not None:
            self._workers.open()

    def find_generators(self) -> None:
        """Find the generators that the source keeps, which are seeded for each row like the global
        ones.
        """
        self._draws.held = generators_in(self.source)

    def draw_from(self, stream: SecretStream | None) -> None:
        """Begin a step, whose draws come from this stream; or end it, and keep no key."""
        self._keys, self._kept = {}, {}
        if stream is not None:
            self._open_workers()
        self._draws.stream = stream

    def rows(self, positions: Positions, key: bytes | None = None) -> list[Row]:
        """The rows of the positions, in their order, made in this process.

        ``key``: one key for all of them, for tests of ``make``; None: their own keys.
        """
        places = positions.tolist()
        keys = [key] * len(places) if key else self._keys_of(places)
        with self._draws.making():
            return list(map(self._keyed.row, places, keys))

    def under(self, key: bytes, call: Callable[[], Any]) -> Any:
        """The result of a call with the draws of a key."""
        with self._draws.making():
            self._draws.begin(key)
            return call()

    def groups(self, positions: Positions) -> list[Positions]:
        """The positions by the form of their rows, ascending in each group."""
        if not len(positions):
            return [positions]
        places: dict[Any, list[int]] = {}
        size: dict[Any, int] = {}
        room = KEPT_BYTES
        all_places = positions.tolist()
        with closing(self._each(all_places)) as rows:
            for place, row in zip(all_places, rows, strict=True):
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
        """A function that cuts each of the user's groups by the form of its rows."""

        def cut(positions: Positions) -> list[Positions]:
            parts = []
            for group in groups(positions):
                parts += self.groups(group)
            return parts

        return cut

    def __call__(self, positions: Positions) -> tuple[Any, Any]:
        """Inputs and targets of positions whose rows have one form.

        Raises ValueError for rows that are not pairs of tensors, arrays and numbers, or of several
        forms.
        """
        if not len(positions):  # nothing reads an empty batch but its size
            return torch.zeros(0, 1), torch.zeros(0)
        places = positions.tolist()
        missing = [place for place in places if place not in self._kept]
        if missing:
            with closing(self._each(missing)) as rows:
                self._kept.update(zip(missing, rows, strict=True))
        inputs, targets = collate([self._kept[p] for p in places], self.name, self._dtype)
        for place in places:
            self._kept.pop(place, None)
        inputs, targets = (each(part, lambda t: t.to(self._device)) for part in (inputs, targets))
        return inputs, targets

    def _keys_of(self, places: Sequence[int]) -> list[bytes]:
        """The keys of the places in this step; a place without one gets the next."""
        new = [place for place in dict.fromkeys(places) if place not in self._keys]
        self._keys.update(zip(new, self._draws.next_keys(len(new)), strict=True))
        return [self._keys[place] for place in places]

    def _each(self, places: Sequence[int]) -> Generator[Row, None, None]:
        """The rows of the places, one after the other, each with the key of its draws."""
        if self._draws.stream is None:  # outside of a step
            self._open_workers()
        keys = self._keys_of(places)
        if self._workers is not None:
            self._workers.begin(zip(places, keys, strict=True), room=AHEAD)
            for _ in places:
                yield from self._workers.take(1)
            return
        with self._draws.making():
            yield from map(self._keyed.row, places, keys)


def _bytes_of(part: Any) -> int:
    """About the bytes of a part of a row."""
    values = part.values() if isinstance(part, Mapping) else [part]
    return sum(getattr(value, "nbytes", 8) for value in values)


def first_row(row: Row) -> Row:
    """The row of a batch of one."""
    inputs, targets = row
    return each(inputs, _first), each(targets, _first)


def _first(value: Tensor) -> Tensor:
    """The first entry."""
    return value[0]


def same_row(one: Row, other: Row) -> bool:
    """Whether two rows are equal bit for bit; NaN is equal to itself."""
    for part, other_part in zip(one, other, strict=True):
        a, b = (fields_of(tensors_of(each, torch.float32)) for each in (part, other_part))
        if a.keys() != b.keys() or not all(_equal(a[name], b[name]) for name in a):
            return False
    return True


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have one shape and type, and equal numbers; NaN is equal to itself."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())
