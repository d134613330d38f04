"""The public conditions of a federation: who is there, who is selected or leaves, when replies come
and a round ends.

Symbols: k = ``per_round``, the replies that a round uses at most; s_i = ``compute_seconds[i]``,
client i's declared expected examples x local steps x seconds an example x the client's own factor.

    arrival of client i = 8 bytes_down / downlink + s_i + 8 bytes_up / uplink       (seconds after
                                                                                    the round's
                                                                                    start)

Every draw is public, and follows from (seed, purpose, round, client): equal on every engine and in
a resumed run. A trace of availability says when each client can be selected, in simulated seconds
since the start of the run:

    client,from,to
    3,0,120
    3,300,420        client 3 is there in [0, 120) and in [300, 420); a client without a line is
                     always there
"""

import csv
import hashlib
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from fedlsg.config.selection import UNIFORM, Selection
from fedlsg.randomness import public_generator

COLUMNS = ["client", "from", "to"]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """``intervals``: from and to by client, ascending and apart; ``digest``: SHA-256 of the file,
    hexadecimal.
    """

    intervals: Mapping[int, tuple[tuple[float, float], ...]]
    digest: str

    def available(self, client: int, now: float) -> bool:
        """Whether a client is there at a time: from <= now < to of one of its intervals."""
        intervals = self.intervals.get(client)
        if intervals is None:
            return True
        place = bisect_right(intervals, (now, math.inf))
        return place > 0 and now < intervals[place - 1][1]

    @cached_property
    def arrivals(self) -> tuple[float, ...]:
        """The times at which a client comes, ascending."""
        return tuple(
            sorted({start for intervals in self.intervals.values() for start, _ in intervals})
        )


def read_trace(path: Path, clients: int) -> Trace:
    """The trace of a CSV file for clients 0 to ``clients - 1``. Intervals of a client that overlap
    become one.

    Raises ValueError, naming file and line, for anything else.
    """
    try:
        data = path.read_bytes()
        lines = list(csv.reader(data.decode().splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = (
            f"availability={path}: expected a share such as 0.8, or a trace with the columns "
            f"client,from,to: {error}"
        )
        raise ValueError(why) from None
    if not lines or [name.strip() for name in lines[0]] != COLUMNS:
        raise ValueError(
            f"{path}: expected the first line client,from,to, got "
            f"{','.join(lines[0]) if lines else ''!r}"
        )
    by_client: dict[int, list[tuple[float, float]]] = {}
    for number, line in enumerate(lines[1:], 2):
        if line:
            client, start, end = _parse(line, clients, f"{path}, line {number}")
            by_client.setdefault(client, []).append((start, end))
    intervals = {client: _merge(spans) for client, spans in sorted(by_client.items())}
    return Trace(intervals=intervals, digest=hashlib.sha256(data).hexdigest())


def _parse(line: list[str], clients: int, where: str) -> tuple[int, float, float]:
    try:
        client, start, end = int(line[0]), float(line[1]), float(line[2])
    except (ValueError, IndexError):
        raise ValueError(
            f"{where}: expected client,from,to as numbers, got {','.join(line)!r}"
        ) from None
    if not 0 <= client < clients:
        raise ValueError(f"{where}: expected a client from 0 to {clients - 1}, got {client}")
    if not 0 <= start < end:
        raise ValueError(
            f"{where}: expected 0 <= from < to in simulated seconds, got {start:g} and {end:g}"
        )
    return client, start, end


def _merge(own: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(own):
        if merged and start <= merged[-1][1]:
            start, end = merged[-1][0], max(end, merged.pop()[1])
        merged.append((start, end))
    return tuple(merged)


Traffic = Mapping[int, tuple[int, int]]
"""Payload bytes of a round down to each client and up from it."""


@dataclass(frozen=True, kw_only=True)
class Finish:
    """How a round ended: ``seconds`` after its start; ``in_time``: the clients whose replies it
    used.
    """

    seconds: float
    in_time: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Participation:
    """Public conditions. Without ``compute_seconds`` there is no clock, and everybody is there and
    in time.

    ``availability``: the chance of a client to be there when a round starts, or a trace of it.
    ``dropout``: the chance of a selected client to leave before it trains.
    ``over_selection``: clients selected on top of k, as a share of k.
    ``deadline``: seconds after which a round takes no reply.
    ``uplink``, ``downlink``: bits a second of each client.
    ``least``: clients that a round waits for, under a trace.
    ``selection``: the rule of the draw.
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
        """Clients selected in a round, at most: k and those on top of it."""
        return min(math.ceil(self.per_round * (1 + self.over_selection) - 1e-9), self.clients)

    def begin(self, round: int, now: float) -> tuple[float, list[int]]:
        """When a round starts, and the clients that it selects, ascending.

        It starts at ``now``. Under a trace it starts as soon as ``least`` clients are there; if so
        many will never be there again, it starts now with those that are.
        """
        if self.availability == 1.0:
            return now, self.selection.select(
                self.clients, self.selected, round=round, seed=self.seed
            )
        times = [now]
        if isinstance(self.availability, Trace):
            times += [time for time in self.availability.arrivals if time > now]
        start, there = now, self._there(round, now)
        for time in times:
            if len(available := self._there(round, time)) >= self.least:
                start, there = time, available
                break
        return start, self.selection.select(
            self.clients, self.selected, round=round, seed=self.seed, available=there
        )

    def order(self, round: int) -> Iterator[int]:
        """All clients, those first that the rule prefers in a round."""
        return iter(
            self.selection.order(self.clients, per_round=self.selected, round=round, seed=self.seed)
        )

    def available(self, round: int, now: float) -> frozenset[int]:
        """The clients that are there when a round starts at a time."""
        return frozenset(self._there(round, now))

    def _there(self, round: int, now: float) -> "Chosen":
        if isinstance(self.availability, Trace):
            there, trace = np.ones(self.clients, dtype=bool), self.availability
            there[[client for client in trace.intervals if not trace.available(client, now)]] = (
                False
            )
            return Chosen(there)
        return self._draw("available", round, self.availability)

    def leaving(self, round: int) -> Set[int]:
        """The clients that leave a round before they train, if it selects them."""
        return self._draw("dropout", round, self.dropout) if self.dropout else frozenset()

    def arrival(self, client: int, traffic: Traffic) -> float:
        """Seconds after the round's start at which a client's reply is there."""
        down, up = traffic.get(client, (0, 0))
        return 8 * down / self.downlink + self.compute_seconds[client] + 8 * up / self.uplink

    def finish(self, round: int, selected: Sequence[int], traffic: Traffic) -> Finish:
        """Whose replies a round uses, and when it ends.

        It uses the first k replies that arrive by the deadline (equal times: the lower client
        first) and ends with the k-th. If fewer come, it ends when every client has replied or left,
        or at the deadline. Who leaves does so when its announcement has arrived, and the server
        sees it at once.
        Guarantee: whether a reply is an error does not matter, so that without links the clock is
        known before the run.
        """
        leaving = self.leaving(round)
        arrivals = sorted((self.arrival(c, traffic), c) for c in selected if c not in leaving)
        used = [(time, client) for time, client in arrivals if time <= self.deadline][
            : self.per_round
        ]
        in_time = frozenset(client for _, client in used)
        if len(used) == self.per_round:
            return Finish(seconds=used[-1][0], in_time=in_time)
        left = [8 * traffic.get(c, (0, 0))[0] / self.downlink for c in selected if c in leaving]
        last = max([*left, *(time for time, _ in arrivals)], default=0.0)
        return Finish(seconds=min(last, self.deadline), in_time=in_time)

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
        """How often each client is selected in the public schedule, in the rounds after ``after``:
        more often where others are away.
        """
        later = islice(self.schedule(rounds), after, None)
        return Counter(client for selected in later for client in selected)

    def most_selections(self, rounds: int, *, after: int = 0) -> int:
        """The largest of ``selections``."""
        if self.availability == 1.0 and self.selected >= self.clients:
            return rounds - after
        return max(self.selections(rounds, after=after).values(), default=0)

    def _draw(self, purpose: str, round: int, chance: float) -> "Chosen":
        """The clients that a chance hits: one uniform number a client, of a round's own
        generator.
        """
        generator = public_generator(self.seed, purpose, round)
        return Chosen(
            (torch.rand(self.clients, generator=generator, dtype=torch.float64) < chance).numpy()
        )


class Chosen(Set[int]):
    """Some of very many clients: a byte for each, whether it is one of them."""

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
