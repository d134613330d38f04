"""The totals of a run: epsilons of its clients, from their ledgers, and sums over its rounds."""

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
from fedlsg.simulations.storage.round_tables import BYTE_COLUMNS, CLIENT_LISTS, SUMS, Times
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.strategies.protocol.round_report import RoundReport

History = tuple[Event, ...] | None
"""The mechanism invocations of a client, which its epsilon is computed from.

None without a bound: a mechanism was not private, or its noise is known.
"""


class Spent:
    """The ledgers of all clients in a run directory.

    ``update`` reads the ledgers of a round's clients. ``heads`` has the ledgers' ends as they were
    then, which a resumed run must find again. The time of a round grows with its clients and with
    the number of different histories, not with the number of all clients.
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
        """Read the ledgers of a run.

        clients: their number.
        delta: of every epsilon but those of ``of_each``.
        deltas: of each client, for ``of_each``; ``delta`` if left out.
        at_server: whether epsilon follows from the server's entries, for all clients.
        """
        self._deltas = [delta] * clients if deltas is None else deltas
        self._run, self._clients, self._delta = run, clients, delta
        self._ledger = run.charges
        self._server = self._ledger.of(SERVER) if at_server else None
        # by client; those that were never charged are left out
        self._events: dict[int, History] = {}
        # charged clients by history
        self._counts = Counter[History]()
        # clients that were rejected in some round
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
        """Read the ledgers of all charged clients; clients with equal entries are composed once."""
        self._events = {}
        history_of: dict[Hashable, History] = {}
        for client in self._ledger.clients():
            if client < self._clients:
                entries = tuple(map(kind_of, self._ledger.of(client).entries))
                if entries not in history_of:
                    history_of[entries] = _events(self._ledger.of(client))
                self._events[client] = history_of[entries]
        self._counts = Counter(self._events.values())
        return list(self._events)

    def update(self, selected: Iterable[int], rejected: Iterable[int]) -> None:
        """Read the ledgers that a round may have changed.

        A rejected client may be late and still at work: its ledger is read in all later rounds,
        too.
        """
        self._late |= set(rejected)
        changed = sorted({*selected, *self._late})
        for client in changed:
            if client in self._events:
                before = self._events[client]
                self._counts[before] -= 1
                if not self._counts[before]:
                    del self._counts[before]
            self._events[client] = _events(self._ledger.of(client))
            self._counts[self._events[client]] += 1
        self._note([*changed, *([] if self._server is None else [SERVER])])

    def check_charged(self, client: int, round: int, name: str) -> None:
        """Raise RuntimeError if a client that replied has no ledger entry for the round."""
        if not self._ledger.of(client).of_round(round, name):
            raise RuntimeError(
                f"client {client} replied in round {round}, and its ledger in {self._run.ledgers} "
                "has no entry for that round: its epsilon is unknown"
            )

    def _note(self, changed: Iterable[int]) -> None:
        """Keep the ends of the run's ledger, and of ledgers that clients keep themselves."""
        for client in changed:
            own_ledger = self._ledger.of(client).own
            if own_ledger is not None and own_ledger.entries:
                self.heads[str(client)] = own_ledger.snapshot()
        if self._ledger.snapshot()[0]:
            self.heads[RUN] = self._ledger.snapshot()

    def displayed(self) -> Spread:
        """Upper bounds for the running display, see ``fedlsg.accounting.displayed``. Reads no
        ledger.
        """
        return self._over_clients(certified=False)

    def certified(self) -> Spread:
        """The largest and the median epsilon over all clients; infinite without a bound."""
        self._read_all()
        return self._over_clients(certified=True)

    def of_each(self) -> list[float]:
        """The certified epsilon of each client at its own delta. Call ``certified`` before."""
        questions = [
            (self._events.get(client, ()), self._deltas[client]) for client in range(self._clients)
        ]
        answers = {
            (events, delta): math.inf if events is None else spread([events], delta=delta).largest
            for events, delta in set(questions)
        }
        return [answers[question] for question in questions]

    def by_reader(self) -> dict[str, float]:
        """The largest epsilon over all clients, against each reader.

        Readers that include the server are left out if the server adds the noise: it knows it. The
        client that epsilon is about is not among the participants. For private mechanisms only.
        """
        if self._server is not None:
            ledgers = [self._server]
        else:
            ledgers = [self._ledger.of(client) for client in self._one_of_each_kind()]
        computed: dict[tuple[tuple[Event, ...], ...], float] = {}
        epsilons: dict[str, float] = {}
        for reader in READERS:
            if self._server is not None and reader in WITH_SERVER:
                continue
            histories = tuple(dict.fromkeys(ledger.events(reader) for ledger in ledgers)) or ((),)
            if histories not in computed:
                computed[histories] = spread(histories, delta=self._delta).largest
            epsilons[reader] = computed[histories]
        return epsilons

    def bounds(self, client: int) -> dict[str, Any]:
        """A client's epsilon interval by each accountant, the one that is reported, and failures.

        As "accountant" in summary.json.
        """
        try:
            bound = compose((self._server or self._ledger.of(client)).events(), delta=self._delta)
        except AccountingError as error:
            return {
                "reported": "none",
                "witness": "unwitnessed",
                "client": client,
                "intervals": {},
                "failures": {"all": str(error)},
            }
        return {
            "reported": bound.accountant,
            "witness": bound.witness,
            "client": client,
            "intervals": {name: asdict(interval) for name, interval in bound.intervals.items()},
            "failures": bound.failures,
        }

    def _one_of_each_kind(self) -> list[int]:
        """The first client with each kind of entries."""
        first: dict[tuple[Hashable, ...], int] = {}
        for client in sorted(self._events):
            first.setdefault(tuple(map(kind_of, self._ledger.of(client).entries)), client)
        return list(first.values())

    def _over_clients(self, *, certified: bool) -> Spread:
        """Largest and median epsilon, computed once for each history; ``worst`` is a client.

        Clients that were never charged have the history (). Without ``certified`` the worst client
        is 0.
        """
        if self._server is not None:
            counts = Counter([_events(self._server)])
            first = dict.fromkeys(counts, 0)
        else:
            counts = Counter(self._counts)
            idle = self._clients - len(self._events)
            if idle:
                counts[()] += idle
            first = self._first(idle > 0) if certified else dict.fromkeys(counts, 0)
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


def _median_of(unbounded: int, clients: int) -> float:
    """Median epsilon if some clients have no bound; the others count as 0."""
    return math.inf if 2 * unbounded >= clients else 0.0


def _events(ledger: ClientCharges) -> History:
    """The history of a client."""
    return ledger.events() if ledger.has_epsilon else None


class RunTotals:
    """Sums over the rounds of a run.

    sums: of bytes, over all rounds; of messages, over training rounds.
    clients: clients of training rounds by what became of them, see ``CLIENT_LISTS``; those that
        answered and those that were late have trained.
    pruning: numbers of the pruning round; empty without one.
    times: seconds by part of a round, and "start": until the first round.
    """

    def __init__(self) -> None:
        self.sums = dict.fromkeys(SUMS, 0)
        self.clients = dict.fromkeys(CLIENT_LISTS, 0)
        self.pruning: dict[str, Any] = {}
        self.times: dict[str, float] = {}
        self._started = False

    def note_start(self, seconds: float) -> None:
        """Add the seconds that this process took until its first round; later calls do nothing."""
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
        for name in CLIENT_LISTS:
            self.clients[name] += len(getattr(report, name))

    def add_pruning(self, report: RoundReport, *, noise_multiplier: float) -> None:
        """Count an attempt of the pruning round.

        Its messages are not in ``sums``, from which the bytes of dense training are computed.
        """
        earlier = self.pruning
        self.pruning = {
            **{name: earlier.get(name, 0) + getattr(report, name) for name in BYTE_COLUMNS},
            "messages": earlier.get("messages", 0) + len(report.sent),
            "noise_multiplier": noise_multiplier,
            "answered": list(report.answered),
            "rejected": {str(client): why for client, why in report.rejected.items()},
        }
        for name in BYTE_COLUMNS:
            self.sums[name] += getattr(report, name)

    def state_dict(self) -> dict[str, Any]:
        """The totals in plain values, for the checkpoint."""
        return {
            "totals": self.sums,
            "pruning": self.pruning,
            "clients": self.clients,
            "times": self.times,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``."""
        self.sums = saved["totals"]
        self.pruning = saved["pruning"]
        self.clients = saved["clients"]
        self.times = saved["times"]
