"""What a run has spent so far: certified epsilons of its clients, from their ledgers."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from fedlsg.accounting import AccountingError, Event, Spread, compose, displayed, spread
from fedlsg.privacy import RUN, SERVER
from fedlsg.privacy.readers import READERS, WITH_SERVER
from fedlsg.privacy.run_ledger import ClientCharges
from simulations.rundir.rundir import RunDir
from strategies.federation.report import RoundReport


class Spent:
    """The ledgers of all clients in a run directory; ``at_server``: epsilon is of the server's entries, for everybody.

    ``update`` reads the ledgers of a round's clients; ``heads`` are the ledgers' ends as they were then, which a
    resumed run must find again.
    """

    def __init__(self, run: RunDir, clients: int, *, delta: float, at_server: bool = False) -> None:
        self._run, self._clients, self._delta = run, clients, delta
        self._ledger = run.charges
        self._server = self._ledger.of(SERVER) if at_server else None
        self._charged: dict[int, ClientCharges] = {}
        """Clients that were charged: the others have nothing to be read."""
        self._events: dict[int, tuple[Event, ...] | None] = {}
        self._open_new()
        self._late = set[int]()
        self.heads: dict[str, tuple[int, str]] = {}
        self._note(self._all)

    def receive(self, report: RoundReport, name: str) -> None:
        """Read what a round has charged.

        Raises RuntimeError if a client that replied, late or not, has no entry for the round in the run ``name``.
        """
        self.update(report.asked, report.rejected)
        for client in (*report.late, *report.payloads):
            self.check_charged(client, report.round, name)

    def _open_new(self) -> None:
        """Find the clients that were charged since."""
        for client in self._ledger.clients():
            if client < self._clients and client not in self._charged:
                self._events[client] = _events(self._client(client))

    def _client(self, client: int) -> ClientCharges:
        return self._charged.setdefault(client, self._ledger.of(client))

    def update(self, selected: Iterable[int], rejected: Iterable[int]) -> None:
        """Read the ledgers that a round may have changed.

        A rejected client may be late and still at work: its ledger is read in all later rounds, too.
        """
        self._late |= set(rejected)
        for client in (changed := sorted({*selected, *self._late})):
            self._events[client] = _events(self._client(client))
        self._note([self._client(client) for client in changed])

    def check_charged(self, client: int, round: int, name: str) -> None:
        """Raise RuntimeError if a client that replied has no entry for the round: its epsilon would be wrong."""
        if not self._client(client).of_round(round, name):
            raise RuntimeError(
                f"client {client} replied in round {round}, and its ledger in {self._run.ledgers} has no entry for "
                "that round: its epsilon is unknown"
            )

    def _note(self, changed: Iterable[ClientCharges]) -> None:
        """Keep the ends of the run's ledger, and of ledgers that clients keep themselves."""
        own = {str(charges.client): charges.own for charges in changed}
        self.heads |= {name: ledger.snapshot() for name, ledger in own.items() if ledger is not None and ledger.entries}
        if self._ledger.snapshot()[0]:
            self.heads[RUN] = self._ledger.snapshot()

    def displayed(self) -> Spread:
        """Upper bounds for the running display, see ``fedlsg.accounting.displayed``. Reads no ledger."""
        return self._over_clients(certified=False)

    def certified(self) -> Spread:
        """The largest and the median epsilon over all clients; infinite where a mechanism was not private."""
        self._open_new()
        self._events = {client: _events(charges) for client, charges in self._charged.items()}
        return self._over_clients(certified=True)

    def by_reader(self) -> dict[str, float]:
        """The largest epsilon over all clients against each reader; one that is promised nothing is left out.

        A server that adds the noise knows it. The client that epsilon is about is not among the participants. Of
        private mechanisms alone: ``certified`` is infinite for others.
        """
        claims = list(self._charged.values()) if self._server is None else [self._server]
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
            bound = compose((self._server or self._client(client)).events(), delta=self._delta)
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
    def _all(self) -> list[ClientCharges]:
        own = list(self._charged.values())
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


def _events(ledger: ClientCharges) -> tuple[Event, ...] | None:
    """The mechanism invocations of a client; None where one was not private, which has no bound."""
    return None if any(entry.mechanism != "dp" for entry in ledger.entries) else ledger.events()
