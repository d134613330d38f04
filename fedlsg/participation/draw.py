"""The clients of a round and the time at which it ends, by public draws and a simulated clock.

A round begins, selects some of the clients that are there, loses those that leave, and ends when
enough replies have arrived. Every draw is public, and follows from (seed, purpose, round, client):
it is the same on every engine and in a resumed run.

Symbols: k = ``per_round``, the replies that a round uses at most; s_i = ``compute_seconds[i]``,
client i's declared expected examples x local steps x seconds an example x the client's own factor.

    reply of client i arrives     8 bytes_down / downlink + s_i + 8 bytes_up / uplink
                                  seconds after the start of the round
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from fedlsg.config.selection import UNIFORM, Selection
from fedlsg.participation.availability_trace import Trace
from fedlsg.randomness import public_generator

Traffic = Mapping[int, tuple[int, int]]
"""Payload bytes of a round by client: (down to it, up from it)."""


@dataclass(frozen=True, kw_only=True)
class Finish:
    """How a round ended.

    seconds: from its start to its end.
    in_time: the clients whose replies it used.
    """

    seconds: float
    in_time: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Participation:
    """The public conditions of a run. Without ``compute_seconds`` there is no clock, and every
    reply is in time.

    clients: their number, K; client numbers are 0 to K - 1.
    per_round: k.
    seed: of all draws.
    availability: the probability that a client is there when a round starts, or a trace of it.
    dropout: the probability that a selected client leaves before it trains.
    over_selection: clients selected on top of k, as a share of k.
    deadline: seconds after which a round takes no reply.
    compute_seconds: s_i of each client.
    uplink, downlink: bits a second of each client.
    least: clients for which a round waits, under a trace.
    selection: the rule of the draw.

    Raises ValueError for a trace with links: who is there would depend on the size of messages,
    which nobody knows before the run, and the number of a client's rounds, which its noise is
    planned for, would be unknown.
    """

    clients: int
    per_round: int
    seed: int
    availability: float | Trace = 1.0
    dropout: float = 0.0
    over_selection: float = 0.0
    deadline: float = math.inf
    compute_seconds: Sequence[float] = ()
    uplink: float = math.inf
    downlink: float = math.inf
    least: int = 1
    selection: Selection = UNIFORM

    def __post_init__(self) -> None:
        if isinstance(self.availability, Trace) and min(self.uplink, self.downlink) < math.inf:
            raise ValueError(
                "a trace of availability needs a clock that is known before the run, and sending "
                "times depend on the size of messages: leave out uplink_mbps and downlink_mbps, or "
                "give availability as a share"
            )

    @property
    def timed(self) -> bool:
        """Whether there is a simulated clock."""
        return len(self.compute_seconds) > 0

    @property
    def selected(self) -> int:
        """The most clients selected in a round: k and those on top of it."""
        with_spare = self.per_round * (1 + self.over_selection)
        # less 1e-9, so that 10 x 1.1 = 11.000000000000002 is 11 and not 12
        return min(math.ceil(with_spare - 1e-9), self.clients)

    def begin(self, round: int, now: float) -> tuple[float, list[int]]:
        """When a round starts, and the clients that it selects, ascending.

        It starts at ``now``. Under a trace it starts as soon as ``least`` clients are there; if so
        many will never be there again, it starts now with those that are.
        """
        if self.availability == 1.0:
            selected = self.selection.select(
                self.clients, self.selected, round=round, seed=self.seed
            )
            return now, selected
        start, there = self._first_start(round, now)
        selected = self.selection.select(
            self.clients, self.selected, round=round, seed=self.seed, available=there
        )
        return start, selected

    def _first_start(self, round: int, now: float) -> tuple[float, "Chosen"]:
        """When ``least`` clients are there for the first time from ``now`` on, and who is there.

        ``now`` if that never happens, or without a trace: a draw does not change with time.
        """
        there_now = self._there(round, now)
        if len(there_now) < self.least and isinstance(self.availability, Trace):
            for time in self.availability.arrivals:
                if time > now and len(there := self._there(round, time)) >= self.least:
                    return time, there
        return now, there_now

    def order(self, round: int) -> Iterator[int]:
        """All clients, in the order in which the rule of the draw prefers them in a round."""
        order = self.selection.order(
            self.clients, per_round=self.selected, round=round, seed=self.seed
        )
        return iter(order)

    def available(self, round: int, now: float) -> frozenset[int]:
        """The clients that are there when a round starts at a time."""
        return frozenset(self._there(round, now))

    def _there(self, round: int, now: float) -> "Chosen":
        """The clients that are there when a round starts at a time."""
        trace = self.availability
        if not isinstance(trace, Trace):
            return self._draw("available", round, probability=trace)
        away = [client for client in trace.intervals if not trace.available(client, now)]
        there = np.ones(self.clients, dtype=bool)
        there[away] = False
        return Chosen(there)

    def leaving(self, round: int) -> Set[int]:
        """The clients that leave a round before they train, if it selects them."""
        if not self.dropout:
            return frozenset()
        return self._draw("dropout", round, probability=self.dropout)

    def arrival(self, client: int, traffic: Traffic) -> float:
        """Seconds after the round's start at which a client's reply is there."""
        down, up = traffic.get(client, (0, 0))
        return 8 * down / self.downlink + self.compute_seconds[client] + 8 * up / self.uplink

    def finish(self, round: int, selected: Sequence[int], traffic: Traffic) -> Finish:
        """The clients whose replies a round uses, and the time at which it ends.

        It uses the first k replies that arrive by the deadline (equal times: the lower client
        first) and ends with the k-th. If fewer come, it ends when every client has replied or left,
        or at the deadline. A client that leaves does so when the round's message has arrived, and
        the server sees it at once.
        Guarantee: whether a reply is an error does not matter, so that without links the clock is
        known before the run.
        """
        leaving = self.leaving(round)
        arrivals = sorted((self.arrival(c, traffic), c) for c in selected if c not in leaving)
        before_deadline = [(time, client) for time, client in arrivals if time <= self.deadline]
        used = before_deadline[: self.per_round]
        in_time = frozenset(client for _, client in used)
        if len(used) == self.per_round:
            kth_arrival, _ = used[-1]
            return Finish(seconds=kth_arrival, in_time=in_time)
        departures = [self._departure(c, traffic) for c in selected if c in leaving]
        last = max([*departures, *(time for time, _ in arrivals)], default=0.0)
        return Finish(seconds=min(last, self.deadline), in_time=in_time)

    def _departure(self, client: int, traffic: Traffic) -> float:
        """Seconds after the round's start at which the server sees that a client leaves."""
        bytes_down, _ = traffic.get(client, (0, 0))
        return 8 * bytes_down / self.downlink

    def schedule(self, rounds: int) -> Iterator[list[int]]:
        """The clients that each round selects, from the first on: the public schedule.

        Guarantee: they are those of a run, whatever happens in it. Clients that will leave are
        included: no server knows in advance who will.
        """
        now = 0.0
        for round in range(1, rounds + 1):
            start, selected = self.begin(round, now)
            yield selected
            if isinstance(self.availability, Trace):
                now = start + self.finish(round, selected, {}).seconds

    def selections(self, rounds: int, *, after: int = 0) -> Counter[int]:
        """How often the public schedule selects each client, in the rounds after ``after``.

        A client is selected more often if others are away.
        """
        later = islice(self.schedule(rounds), after, None)
        return Counter(client for selected in later for client in selected)

    def most_selections(self, rounds: int, *, after: int = 0) -> int:
        """The largest of ``selections``."""
        if self.availability == 1.0 and self.selected >= self.clients:
            return rounds - after
        return max(self.selections(rounds, after=after).values(), default=0)

    def _draw(self, purpose: str, round: int, *, probability: float) -> "Chosen":
        """A set in which each client is with this probability, by one uniform number a client."""
        generator = public_generator(self.seed, purpose, round)
        uniform = torch.rand(self.clients, generator=generator, dtype=torch.float64)
        return Chosen((uniform < probability).numpy())


class Chosen(Set[int]):
    """A set of client numbers, for very many clients: one boolean for each."""

    def __init__(self, chosen: np.ndarray) -> None:
        self._chosen = chosen

    @classmethod
    def _from_iterable(cls, it: Iterable[int]) -> frozenset[int]:  # type: ignore[override]
        return frozenset(it)

    def __contains__(self, client: object) -> bool:
        return isinstance(client, int) and bool(self._chosen[client])

    def __iter__(self) -> Iterator[int]:
        return iter(self._chosen.nonzero()[0].tolist())

    def __len__(self) -> int:
        return int(self._chosen.sum())
