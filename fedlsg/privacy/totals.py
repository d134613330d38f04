"""What the entries of a ledger amount to, against each reader: the events that an accountant
composes, and more.

Symbols: m fewest shares of noise in a sum, t readers among its clients, sigma the noise multiplier
that is charged.

Every client of a sum gets the next weights and knows the noise that it added, so its share protects
others from everybody but itself. A client adds noise of sigma C / sqrt(m - t): the m - t shares
that t clients do not know add up to noise of deviation sigma C.

    reader                                        shares it knows    noise multiplier against it
    outside: sees the released weights            0                  sigma sqrt(m / (m - t))
    server: sees every sum                        0                  sigma sqrt(m / (m - t))
    participant: a client of the sum              1                  sigma sqrt((m - 1) / (m - t))
    participants: t of them                       t                  sigma
    server_and_participants: t with the server    t                  sigma

A sum of more clients, or without some of these readers, has more shares that they do not know,
never fewer. More noise is post-processing, so the numbers hold for every sum of at least m. Where
noise is not shared (m = t = 0), sigma protects against each of them. A server that adds the noise
itself knows it: nothing is promised against it.
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
MIN_SURVIVORS = 2
"""Survivors of a secure sum, at least, in entries that do not say how many there are."""


def shares_known(reader: Reader, colluders: int) -> int:
    """How many of a sum's shares of noise a reader knows, of t = ``colluders``."""
    return {"outside": 0, "server": 0, "participant": min(1, colluders)}.get(reader, colluders)


def shares_hidden(min_survivors: int, colluders: int) -> tuple[int, ...]:
    """The numbers of shares that some reader does not know, in sums of m: t participants, one, and
    nobody of them.
    """
    return tuple(sorted({min_survivors - shares_known(reader, colluders) for reader in READERS}))


def multiplier_against(
    reader: Reader, noise_multiplier: float, *, min_survivors: int, colluders: int
) -> float:
    """The noise multiplier that protects against a reader, where ``noise_multiplier`` is that of m
    - t shares.

    Never above the exact one, whatever is rounded. m = 0: the noise is not shared, and protects
    alike against all.
    """
    known = shares_known(reader, colluders)
    if known == colluders:
        return noise_multiplier
    ratio = math.sqrt((min_survivors - known) / (min_survivors - colluders))
    return noise_multiplier * ratio * (1 - 4 * 2.0**-53)


Noise = tuple[float, int, int]
"""sigma of m - t shares, m and t; (sigma, 0, 0) where the noise is not shared."""
Setting = tuple[float, Noise]
"""q, and the noise."""
Sum = tuple[int, float]
"""Steps, and their Lambda."""
Order = tuple[str, int, int]
"""Run, examples and batches of an epoch: shuffled batches of one order of epochs."""
Epoch = tuple[Order, int, int]
"""An order, its epoch, and 0; or the number of an entry that took batches once more."""


@dataclass(frozen=True)
class Totals:
    """What the first ``count`` entries amount to. In a long run it is extended, and not made again
    in every step: a step costs the same, however many rounds there were.

    ``spent``: steps and Lambda of mechanism "dp", by q and noise.
    ``private``: whether every entry is of mechanism "dp".
    ``secret``: whether the noise of each is.
    Of shuffled batches: ``taken``, the number of batches of each order; ``epochs``, the least noise
    in each epoch that was begun. An example is in one batch of an epoch, so an epoch counts as one
    release.
    """

    count: int = 0
    spent: Mapping[Setting, Sum] = field(default_factory=dict)
    private: bool = True
    secret: bool = True
    taken: Mapping[Order, int] = field(default_factory=dict)
    epochs: Mapping[Epoch, Noise] = field(default_factory=dict)

    def extended(self, entries: Sequence[Entry]) -> "Totals":
        """The totals of ``entries``, which begin with those that are counted: a ledger is
        append-only.
        """
        new = entries[self.count :]
        return self._and(new) if new else self

    def _and(self, new: Sequence[Entry]) -> "Totals":
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
        """The totals with one more entry, of mechanism "dp"."""
        return self._and([entry])

    def events(self, reader: Reader = STRONGEST_READER) -> tuple[Event, ...]:
        """Everything of mechanism "dp" as a reader sees it, merged by (q, sigma).

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
    """The entries of an append-only ledger by run and round: to find those of a round takes the
    same time in every round.
    """

    def __init__(self) -> None:
        self._count = 0
        self._entries: dict[tuple[str, int], list[Entry]] = {}

    def extend(self, entries: Sequence[Entry]) -> None:
        """Take in those of ``entries``, which begin with those that are there."""
        for entry in entries[self._count :]:
            self._entries.setdefault((entry.run, entry.round), []).append(entry)
        self._count = len(entries)

    def of(self, run: str, round: int) -> Sequence[Entry]:
        """In the order in which they were charged."""
        return self._entries.get((run, round), ())


def _together(before: Sum | None, entry: Entry) -> Sum:
    """The entries of a setting so far, and one more. Lambdas are added upwards."""
    steps, log_ratio = before or (0, 0.0)
    return steps + entry.steps, sum_up((log_ratio, entry.log_ratio))


def _events(spent: Mapping[tuple[float, float], Sum]) -> tuple[Event, ...]:
    return tuple(
        Event(sample_rate=q, noise_multiplier=sigma, steps=steps, log_ratio=log_ratio)
        for (q, sigma), (steps, log_ratio) in sorted(spent.items())
    )


def noise_of(entry: Entry) -> Noise:
    """sigma, m and t of an entry.

    A secure sum that a deployed client was in before entries had m and t may have counted the noise
    of every client, of two at least: against one of them less was left.
    """
    sigma = entry.noise_multiplier
    if entry.run and entry.log_ratio and not entry.min_survivors:
        sigma /= math.sqrt(MIN_SURVIVORS)
    return sigma, entry.min_survivors, entry.colluders


def order_of(entry: Entry) -> Order:
    """The order of epochs that an entry of shuffled batches continues."""
    return entry.run, entry.num_examples, entry.batches


def _touched(entry: Entry, taken: Mapping[Order, int], number: int) -> Iterator[Epoch]:
    """The epochs that an entry takes batches of. Batches that were taken already count as an epoch
    of their own.
    """
    order = order_of(entry)
    again = number if entry.first_batch < taken.get(order, 0) else 0
    last = entry.first_batch + entry.steps - 1
    for epoch in range(entry.first_batch // entry.batches, last // entry.batches + 1):
        yield order, epoch, again
