"""What a run has spent so far: certified epsilons of its clients, from their ledgers."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from fedlsg.accounting import AccountingError, Event, Spread, compose, displayed, spread
from fedlsg.privacy import SERVER, Ledger
from fedlsg.privacy.readers import READERS, WITH_SERVER
from simulations.rundir.rundir import RunDir


class Spent:
    """The ledgers of all clients in a run directory; ``at_server``: epsilon is of the server's ledger, for all of them.

    ``update`` reads the ledgers of a round's clients; ``heads`` are the ledgers' ends as they were then, which a
    resumed run must find again.
    """

    def __init__(self, run: RunDir, clients: int, *, delta: float, at_server: bool = False) -> None:
        self._run, self._clients, self._delta = run, clients, delta
        self._server = Ledger(run.ledger(SERVER), client=SERVER) if at_server else None
        self._ledgers: dict[int, Ledger] = {}
        """Of clients that were charged: there is no file of the others."""
        self._events: dict[int, tuple[Event, ...] | None] = {}
        self._open_new()
        self._late = set[int]()
        self.heads = {str(ledger.client): ledger.snapshot() for ledger in self._all if ledger.entries}

    def _open_new(self) -> None:
        """Open the ledgers whose files have come since."""
        there = {path.name for path in self._run.ledgers.glob("client-*.jsonl")}
        for name in sorted(there - {self._run.ledger(client).name for client in self._ledgers}):
            client = int(name.removeprefix("client-").removesuffix(".jsonl"))
            if client < self._clients:
                self._events[client] = _events(self._ledger(client))

    def _ledger(self, client: int) -> Ledger:
        if client not in self._ledgers:
            self._ledgers[client] = Ledger(self._run.ledger(client), client=client)
        return self._ledgers[client]

    def update(self, selected: Iterable[int], rejected: Iterable[int]) -> None:
        """Read the ledgers that a round may have changed.

        A rejected client may be late and still at work: its ledger is read in all later rounds, too.
        """
        self._late |= set(rejected)
        for client in sorted({*selected, *self._late}):
            ledger = self._ledger(client)
            self._events[client] = _events(ledger)
            if ledger.entries:
                self.heads[str(client)] = ledger.snapshot()
        if self._server is not None:
            self.heads[str(SERVER)] = self._server.snapshot()

    def check_charged(self, client: int, round: int, name: str) -> None:
        """Raise RuntimeError if a client that replied has no entry for the round: its epsilon would be wrong."""
        if not self._ledger(client).of_round(round, name):
            raise RuntimeError(
                f"client {client} replied in round {round}, and its ledger in {self._run.ledgers} has no entry for "
                "that round: its epsilon is unknown"
            )

    def displayed(self) -> Spread:
        """Upper bounds for the running display, see ``fedlsg.accounting.displayed``. Reads no ledger."""
        return self._over_clients(certified=False)

    def certified(self) -> Spread:
        """The largest and the median epsilon over all clients; infinite where a mechanism was not private."""
        self._open_new()
        self._events = {client: _events(ledger) for client, ledger in self._ledgers.items()}
        return self._over_clients(certified=True)

    def by_reader(self) -> dict[str, float]:
        """The largest epsilon over all clients against each reader; one that is promised nothing is left out.

        A server that adds the noise knows it. The client that epsilon is about is not among the participants. Of
        private mechanisms alone: ``certified`` is infinite for others.
        """
        claims = self._ledgers.values() if self._server is None else [self._server]
        known: dict[tuple[tuple[Event, ...], ...], float] = {}
        found: dict[str, float] = {}
        for reader in READERS:
            if self._server is not None and reader in WITH_SERVER:
                continue
            events = tuple(dict.fromkeys(ledger.events(reader) for ledger in claims)) or ((),)
            if events not in known:
                known[events] = spread(events, delta=self._delta).largest
            found[reader] = known[events]
        return found

    def bounds(self, client: int) -> dict[str, Any]:
        """A client's epsilon by each accountant, whose is reported, who witnessed it, and the texts of failures."""
        try:
            bound = compose((self._server or self._ledger(client)).events(), delta=self._delta)
        except AccountingError as error:
            none = {"reported": "none", "witness": "unwitnessed", "client": client}
            return none | {"intervals": {}, "failures": {"all": str(error)}}
        intervals = {name: asdict(interval) for name, interval in bound.intervals.items()}
        said = {"reported": bound.accountant, "witness": bound.witness, "client": client}
        return said | {"intervals": intervals, "failures": bound.failures}

    @property
    def reproducible(self) -> bool:
        """Whether any noise came from a known seed, also in earlier processes of the run."""
        return any(ledger.reproducible for ledger in self._all)

    @property
    def _all(self) -> list[Ledger]:
        own = list(self._ledgers.values())
        return own if self._server is None else [*own, self._server]

    def _over_clients(self, *, certified: bool) -> Spread:
        """By distinct histories, each with a client that has it; clients that were never charged have the empty one."""
        first: dict[tuple[Event, ...] | None, int] = {}
        counts = Counter[tuple[Event, ...] | None]()
        if self._server is not None:
            first[events := _events(self._server)], counts[events] = 0, 1
        else:
            for client, events in self._events.items():
                first[events] = min(first.get(events, client), client)
                counts[events] += 1
            if idle := self._clients - len(self._events):
                first.setdefault((), next(c for c in range(self._clients) if c not in self._events))
                counts[()] += idle
        if None in counts:
            return Spread(largest=math.inf, median=_median_of(counts[None], sum(counts.values())), worst=first[None])
        ordered = sorted(first, key=first.__getitem__)
        population = [events for events in ordered if events is not None]
        compute = spread if certified else displayed
        found = compute(population, delta=self._delta, counts=[counts[events] for events in population])
        return replace(found, worst=first[population[found.worst]])


def _median_of(endless: int, clients: int) -> float:
    """Median over clients of whom some have no bound, and the others count as 0."""
    return math.inf if 2 * endless >= clients else 0.0


def _events(ledger: Ledger) -> tuple[Event, ...] | None:
    """The mechanism invocations of a client; None where one was not private, which has no bound."""
    return None if any(entry.mechanism != "dp" for entry in ledger.entries) else ledger.events()
