"""What a run has spent so far: certified epsilons of its clients, from their ledgers; and sums over
its rounds.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from fedlsg.accounting import AccountingError, Event, Spread, compose, displayed, spread
from fedlsg.privacy import RUN, SERVER
from fedlsg.privacy.ledger_entry import kind_of
from fedlsg.privacy.run_ledger import ClientCharges
from fedlsg.privacy.totals import READERS, WITH_SERVER
from fedlsg.simulations.storage.round_tables import BYTE_COLUMNS, SUMS, Times
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.strategies.protocol.round_report import RoundReport

History = tuple[Event, ...] | None
"""What an epsilon is of; None where there is no bound: a mechanism was not private, or its noise is
known.
"""


class Spent:
    """The ledgers of all clients in a run directory; ``at_server``: epsilon is of the server's
    entries, for everybody. ``deltas``: of each client, where they have their own; what is said of
    all clients together is at ``delta``.

    ``update`` reads the ledgers of a round's clients; ``heads`` are the ledgers' ends as they were
    then, which a resumed run must find again. A round costs what its clients and the different
    histories cost, not what all clients would.
    """

    def __init__(
        self,
        run: RunDir,
        clients: int,
        *,
        delta: float,
        deltas: Sequence[float] | None = None,
        at_server: bool = False,
    ) -> None:
        self._deltas = [delta] * clients if deltas is None else deltas
        self._run, self._clients, self._delta = run, clients, delta
        self._ledger = run.charges
        self._server = self._ledger.of(SERVER) if at_server else None
        self._events: dict[int, History] = {}
        """Of clients that were charged: the others have nothing to be read."""
        self._counts = Counter[History]()
        self._late = set[int]()
        self.heads: dict[str, tuple[int, str]] = {}
        self._note([*self._read_all(), *([] if self._server is None else [SERVER])])

    def receive(self, report: RoundReport, name: str) -> None:
        """Read what a round has charged.

        Raises RuntimeError if a client that replied, late or not, has no entry for the round in the
        run ``name``.
        """
        self.update(report.asked, report.rejected)
        for client in (*report.late, *report.payloads):
            self.check_charged(client, report.round, name)

    def _read_all(self) -> list[int]:
        """Read the ledgers of all clients that were charged; clients with equal entries are
        composed once.
        """
        self._events, known, charged = {}, dict[Hashable, History](), list[int]()
        for client in self._ledger.clients():
            if client < self._clients:
                entries = tuple(map(kind_of, self._ledger.of(client).entries))
                if entries not in known:
                    known[entries] = _events(self._ledger.of(client))
                self._events[client] = known[entries]
                charged.append(client)
        self._counts = Counter(self._events.values())
        return charged

    def update(self, selected: Iterable[int], rejected: Iterable[int]) -> None:
        """Read the ledgers that a round may have changed.

        A rejected client may be late and still at work: its ledger is read in all later rounds,
        too.
        """
        self._late |= set(rejected)
        for client in (changed := sorted({*selected, *self._late})):
            if client in self._events:
                self._counts[before := self._events[client]] -= 1
                if not self._counts[before]:
                    del self._counts[before]
            self._events[client] = now = _events(self._ledger.of(client))
            self._counts[now] += 1
        self._note([*changed, *([] if self._server is None else [SERVER])])

    def check_charged(self, client: int, round: int, name: str) -> None:
        """Raise RuntimeError if a client that replied has no entry for the round: its epsilon would
        be wrong.
        """
        if not self._ledger.of(client).of_round(round, name):
            raise RuntimeError(
                f"client {client} replied in round {round}, and its ledger in {self._run.ledgers} "
                "has no entry for that round: its epsilon is unknown"
            )

    def _note(self, changed: Iterable[int]) -> None:
        """Keep the ends of the run's ledger, and of ledgers that clients keep themselves."""
        lines = {str(client): self._ledger.of(client).own for client in changed}
        self.heads |= {
            name: ledger.snapshot()
            for name, ledger in lines.items()
            if ledger is not None and ledger.entries
        }
        if self._ledger.snapshot()[0]:
            self.heads[RUN] = self._ledger.snapshot()

    def displayed(self) -> Spread:
        """Upper bounds for the running display, see ``fedlsg.accounting.displayed``. Reads no
        ledger.
        """
        return self._over_clients(certified=False)

    def certified(self) -> Spread:
        """The largest and the median epsilon over all clients; infinite where noise was missing or
        is known.
        """
        self._read_all()
        return self._over_clients(certified=True)

    def of_each(self) -> list[float]:
        """The certified epsilon of each client at its own delta, as ``certified`` read the
        ledgers.
        """
        known: dict[tuple[History, float], float] = {}
        each = [
            (self._events.get(client, ()), self._deltas[client]) for client in range(self._clients)
        ]
        for events, delta in dict.fromkeys(each):
            known[events, delta] = (
                math.inf if events is None else spread([events], delta=delta).largest
            )
        return [known[epsilon] for epsilon in each]

    def by_reader(self) -> dict[str, float]:
        """The largest epsilon over all clients against each reader; one that is promised nothing is
        left out.

        A server that adds the noise knows it. The client that epsilon is about is not among the
        participants. Of private mechanisms alone: ``certified`` is infinite for others.
        """
        claims = (
            [self._server]
            if self._server is not None
            else [self._ledger.of(client) for client in self._each()]
        )
        known: dict[tuple[tuple[Event, ...], ...], float] = {}
        epsilons: dict[str, float] = {}
        for reader in READERS:
            if self._server is not None and reader in WITH_SERVER:
                continue
            events = tuple(dict.fromkeys(ledger.events(reader) for ledger in claims)) or ((),)
            if events not in known:
                known[events] = spread(events, delta=self._delta).largest
            epsilons[reader] = known[events]
        return epsilons

    def bounds(self, client: int) -> dict[str, Any]:
        """A client's epsilon by each accountant, whose is reported, who witnessed it, and the texts
        of failures.
        """
        try:
            bound = compose((self._server or self._ledger.of(client)).events(), delta=self._delta)
        except AccountingError as error:
            none = {"reported": "none", "witness": "unwitnessed", "client": client}
            return none | {"intervals": {}, "failures": {"all": str(error)}}
        intervals = {name: asdict(interval) for name, interval in bound.intervals.items()}
        bounds = {"reported": bound.accountant, "witness": bound.witness, "client": client}
        return bounds | {"intervals": intervals, "failures": bound.failures}

    def _each(self) -> list[int]:
        """The first client of each history."""
        first: dict[tuple[Hashable, ...], int] = {}
        for client in sorted(self._events):
            first.setdefault(tuple(map(kind_of, self._ledger.of(client).entries)), client)
        return list(first.values())

    def _over_clients(self, *, certified: bool) -> Spread:
        """By distinct histories, ``certified`` with the first client that has each; who was never
        charged has ().
        """
        counts = Counter(self._counts) if self._server is None else Counter([_events(self._server)])
        if self._server is None and (idle := self._clients - len(self._events)):
            counts[()] += idle
        first = (
            self._first(idle > 0)
            if certified and self._server is None
            else dict.fromkeys(counts, 0)
        )
        if None in counts:
            return Spread(
                largest=math.inf, median=_median_of(counts[None], counts.total()), worst=first[None]
            )
        population = sorted(
            (events for events in counts if events is not None), key=first.__getitem__
        )
        compute = spread if certified else displayed
        result = compute(
            population, delta=self._delta, counts=[counts[events] for events in population]
        )
        return replace(result, worst=first[population[result.worst]])

    def _first(self, idle: bool) -> dict[History, int]:
        """The first client with each history; ``idle``: whether some were never charged."""
        first: dict[History, int] = {}
        for client in sorted(self._events):
            first.setdefault(self._events[client], client)
        if idle:
            unknown = next(client for client in range(self._clients) if client not in self._events)
            first[()] = min(first.get((), unknown), unknown)
        return first


def _median_of(endless: int, clients: int) -> float:
    """Median over clients of whom some have no bound, and the others count as 0."""
    return math.inf if 2 * endless >= clients else 0.0


def _events(ledger: ClientCharges) -> History:
    """The mechanism invocations of a client; None where noise was missing or is known, which has no
    bound.
    """
    return ledger.events() if ledger.has_epsilon else None


CLIENTS = ("asked", "answered", "rejected", "dropped", "late")
"""What a report says of clients."""


class RunTotals:
    """``sums`` of bytes are those of all rounds; of messages, those of training rounds.

    ``times``: seconds by what they went into. ``pruning``: of the pruning round. ``clients``:
    selections of training rounds by what became of them; those who answered, and those who were
    late, have trained.
    """

    def __init__(self) -> None:
        self.sums = dict.fromkeys(SUMS, 0)
        self.clients = dict.fromkeys(CLIENTS, 0)
        self.pruning: dict[str, Any] = {}
        self.times: dict[str, float] = {}
        self._started = False

    def note_start(self, seconds: float) -> None:
        """Count how long this process took until its first round."""
        if not self._started:
            self.times["start"] = self.times.get("start", 0.0) + seconds
        self._started = True

    def add(self, report: RoundReport, times: Times) -> None:
        """Count a training round."""
        for name, seconds in vars(times).items():
            phase = name.removesuffix("_seconds")
            self.times[phase] = self.times.get(phase, 0.0) + seconds
        for name in SUMS:
            self.sums[name] += getattr(report, name)
        for name in CLIENTS:
            self.clients[name] += len(getattr(report, name))

    def add_pruning(self, report: RoundReport, *, noise_multiplier: float) -> None:
        """Count an attempt of the pruning round.

        Its messages are not in ``sums``: the bytes of dense training are computed from the training
        messages.
        """
        before = self.pruning
        self.pruning = {
            **{name: before.get(name, 0) + getattr(report, name) for name in BYTE_COLUMNS},
            "messages": before.get("messages", 0) + len(report.sent),
            "noise_multiplier": noise_multiplier,
            "answered": list(report.answered),
            "rejected": {str(client): why for client, why in report.rejected.items()},
        }
        for name in BYTE_COLUMNS:
            self.sums[name] += getattr(report, name)

    def state_dict(self) -> dict[str, Any]:
        """All of it, in plain values."""
        return {
            "totals": self.sums,
            "pruning": self.pruning,
            "clients": self.clients,
            "times": self.times,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``."""
        self.sums, self.pruning = saved["totals"], saved["pruning"]
        self.clients = saved["clients"]
        self.times = saved["times"]
