"""Totals of a ledger's entries, for each reader: the events that an accountant composes.

Symbols: m fewest shares of noise in a sum, t readers among its clients, sigma the noise multiplier
that is charged.

Every client of a sum gets the next weights and knows the noise that it added. So its share protects
the other clients from all readers but itself. A client adds noise of sigma C / sqrt(m - t): the m -
t shares that t clients do not know add up to noise of deviation sigma C.

    reader                                        shares it knows    noise multiplier against it
    outside: sees the released weights            0                  sigma sqrt(m / (m - t))
    server: sees every sum                        0                  sigma sqrt(m / (m - t))
    participant: a client of the sum              1                  sigma sqrt((m - 1) / (m - t))
    participants: t of them                       t                  sigma
    server_and_participants: t with the server    t                  sigma

A sum of more clients, or without some of these readers, has more shares that they do not know,
never fewer. More noise is post-processing, so the numbers hold for every sum of at least m. If the
noise is not shared (m = t = 0), sigma protects against each of them. A server that adds the noise
itself knows it: no epsilon holds against it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, get_args

from fedlsg.accounting import Event
from fedlsg.accounting.events import sum_up
from fedlsg.privacy.ledger_entry import Entry

Reader = Literal["outside", "server", "participant", "participants", "server_and_participants"]
READERS: tuple[Reader, ...] = get_args(Reader)
STRONGEST_READER: Reader = "server_and_participants"
"""The reader that knows most: noise is calibrated against it."""
WITH_SERVER: tuple[Reader, ...] = ("server", "server_and_participants")
"""Readers that include the server."""
MIN_SURVIVORS = 2
"""Least number of survivors of a secure sum, for entries that do not have m."""


def shares_known(reader: Reader, colluders: int) -> int:
    """Number of a sum's shares of noise that a reader knows; ``colluders``: t."""
    return {"outside": 0, "server": 0, "participant": min(1, colluders)}.get(reader, colluders)


def shares_hidden(min_survivors: int, colluders: int) -> tuple[int, ...]:
    """Numbers of shares that readers do not know, in sums of m: one number for each kind of reader.

    Ascending, without repeats.
    """
    return tuple(sorted({min_survivors - shares_known(reader, colluders) for reader in READERS}))


def multiplier_against(
    reader: Reader, noise_multiplier: float, *, min_survivors: int, colluders: int
) -> float:
    """The noise multiplier against a reader, if ``noise_multiplier`` is that of m - t shares.

    Guarantee: not above the exact one, by a margin for rounding. With m = 0 the noise is not
    shared, and the same against all readers.
    """
    known = shares_known(reader, colluders)
    if known == colluders:
        return noise_multiplier
    ratio = math.sqrt((min_survivors - known) / (min_survivors - colluders))
    return noise_multiplier * ratio * (1 - 4 * 2.0**-53)


Noise = tuple[float, int, int]
"""sigma of m - t shares, m and t; (sigma, 0, 0) for noise that is not shared."""
Setting = tuple[float, Noise]
"""q, and the noise."""
Sum = tuple[int, float]
"""Steps, and their Lambda."""
Order = tuple[str, int, int]
"""Run, examples, and batches of an epoch: they are equal for shuffled batches of one sequence of
epochs.
"""
Epoch = tuple[Order, int, int]
"""An order, the number of an epoch, and 0. In place of 0, the number of an entry whose batches were
charged before.
"""


@dataclass(frozen=True)
class Totals:
    """Totals of the first entries of a ledger.

    They are extended in every step of a run, so that a step's cost does not grow with the rounds.

    count: number of the entries.
    spent: steps and Lambda of private entries with Poisson batches, by q and noise.
    private: whether every entry is private.
    secret: whether the noise of every entry is secret.
    taken: number of shuffled batches by order, up to the last one that was charged.
    epochs: the least noise in each epoch of shuffled batches that was begun. An example is in one
        batch of an epoch, so an epoch counts as one release.
    """

    count: int = 0
    spent: Mapping[Setting, Sum] = field(default_factory=dict)
    private: bool = True
    secret: bool = True
    taken: Mapping[Order, int] = field(default_factory=dict)
    epochs: Mapping[Epoch, Noise] = field(default_factory=dict)

    def extended(self, entries: Sequence[Entry]) -> "Totals":
        """The totals of ``entries``, of which the first ``count`` are counted already."""
        new = entries[self.count :]
        return self._add(new) if new else self

    def _add(self, new: Sequence[Entry]) -> "Totals":
        """The totals with ``new`` entries after the counted ones."""
        spent, taken, epochs = dict(self.spent), dict(self.taken), dict(self.epochs)
        for number, entry in enumerate(new, start=self.count + 1):
            if entry.batches:
                noise, order = noise_of(entry), order_of(entry)
                for epoch in _touched(entry, taken, number) if entry.private else ():
                    epochs[epoch] = min(epochs.get(epoch, noise), noise)
                taken[order] = max(taken.get(order, 0), entry.first_batch + entry.steps)
            elif entry.private:
                setting = (entry.sample_rate, noise_of(entry))
                spent[setting] = _together(spent.get(setting), entry)
        private = self.private and all(entry.private for entry in new)
        secret = self.secret and not any(entry.reproducible for entry in new)
        return Totals(self.count + len(new), spent, private, secret, taken, epochs)

    def with_next(self, entry: Entry) -> "Totals":
        """The totals with one more entry."""
        return self._add([entry])

    def events(self, reader: Reader = STRONGEST_READER) -> tuple[Event, ...]:
        """All private entries as events for a reader, merged by (q, sigma).

        An epoch of shuffled batches is a step at q = 1.
        """
        merged: dict[tuple[float, float], Sum] = {}
        of_epochs = (((1.0, noise), (1, 0.0)) for noise in self.epochs.values())
        for (q, noise), (steps, log_ratio) in chain(self.spent.items(), of_epochs):
            sigma, shares, colluders = noise
            sigma = multiplier_against(reader, sigma, min_survivors=shares, colluders=colluders)
            before = merged.get((q, sigma), (0, 0.0))
            merged[q, sigma] = before[0] + steps, sum_up((before[1], log_ratio))
        return _events(merged)


class ByRound:
    """The entries of an append-only ledger by run and round, found in constant time."""

    def __init__(self) -> None:
        self._count = 0
        self._entries: dict[tuple[str, int], list[Entry]] = {}

    def extend(self, entries: Sequence[Entry]) -> None:
        """Add the new ones of ``entries``, which begin with those that are there."""
        for entry in entries[self._count :]:
            self._entries.setdefault((entry.run, entry.round), []).append(entry)
        self._count = len(entries)

    def of(self, run: str, round: int) -> Sequence[Entry]:
        """The entries of a round, in the order in which they were charged."""
        return self._entries.get((run, round), ())


def _together(before: Sum | None, entry: Entry) -> Sum:
    """Steps and Lambda of a setting with one more entry; Lambda is rounded up."""
    steps, log_ratio = before or (0, 0.0)
    return steps + entry.steps, sum_up((log_ratio, entry.log_ratio))


def _events(spent: Mapping[tuple[float, float], Sum]) -> tuple[Event, ...]:
    """Events from steps and Lambda by (q, sigma), in ascending order."""
    return tuple(
        Event(sample_rate=q, noise_multiplier=sigma, steps=steps, log_ratio=log_ratio)
        for (q, sigma), (steps, log_ratio) in sorted(spent.items())
    )


def noise_of(entry: Entry) -> Noise:
    """sigma, m and t of an entry.

    Entries of deployed clients in secure sums may lack m and t. Their sigma may be that of the
    noise of all clients, at least two; half of its variance is certain against one of them.
    """
    sigma = entry.noise_multiplier
    if entry.run and entry.log_ratio and not entry.min_survivors:
        sigma /= math.sqrt(MIN_SURVIVORS)
    return sigma, entry.min_survivors, entry.colluders


def order_of(entry: Entry) -> Order:
    """The order whose epochs an entry of shuffled batches continues."""
    return entry.run, entry.num_examples, entry.batches


def _touched(entry: Entry, taken: Mapping[Order, int], number: int) -> Iterator[Epoch]:
    """The epochs of which an entry has batches.

    If some of them were charged before, its epochs count once more, under its ``number``.
    """
    order = order_of(entry)
    repeat = number if entry.first_batch < taken.get(order, 0) else 0
    last = entry.first_batch + entry.steps - 1
    for epoch in range(entry.first_batch // entry.batches, last // entry.batches + 1):
        yield order, epoch, repeat
