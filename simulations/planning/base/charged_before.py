"""The charges of each client before the rounds that are planned now.

Earlier charges are those of past rounds of the same run, or of another run whose weights this one
starts from. They are read from the ledgers. A client's epsilon covers both parts together, so the
noise for a target epsilon depends on what the client has spent already.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedlsg.accounting import Event
from fedlsg.accounting.population import front
from fedlsg.privacy import SERVER, RunLedger
from fedlsg.privacy.ledger_entry import kind_of

History = tuple[Event, ...]
"""All events that a client was charged for; () if it was never charged."""
Kind = tuple[int, float | None, float | None]
"""What decides the noise of a client: its declared size N_k, its target epsilon and its delta.
Clients of one kind get the same noise."""
NEVER_CHARGED: tuple[History, ...] = ((),)


@dataclass(frozen=True, kw_only=True)
class Before:
    """What happened before the planned rounds.

    rounds: rounds of this run that are over.
    histories: for each kind of client, a few histories that cover those of all its clients. For
        each client there is one that loses at least as much privacy.
    """

    rounds: int = 0
    histories: Mapping[Kind, tuple[History, ...]] = field(default_factory=dict)

    def of(self, kind: Kind) -> tuple[History, ...]:
        """The histories of a kind; an empty one if no client of the kind was ever charged."""
        return self.histories.get(kind, NEVER_CHARGED)


def read_before(
    ledger: RunLedger, kinds: Sequence[Kind], *, rounds: int = 0, at_server: bool = False
) -> Before:
    """The charges in the ledgers of a run.

    kinds: the kind of each client, by its number.
    at_server: the server is charged for everybody, and no client is.
    Guarantee: the history of each client is covered by one of its kind.
    """
    if at_server:
        common = (ledger.of(SERVER).events(),)
        return Before(rounds=rounds, histories=dict.fromkeys(kinds, common))
    # Many clients have entries of the same kinds, and making events of entries takes longest.
    histories: dict[Hashable, History] = {}
    by_kind: dict[Kind, set[History]] = {}
    for client in ledger.clients():
        if client < len(kinds):
            charges = ledger.of(client)
            entries = tuple(map(kind_of, charges.entries))
            if entries not in histories:
                histories[entries] = charges.events()
            by_kind.setdefault(kinds[client], set()).add(histories[entries])
    return Before(rounds=rounds, histories=least_covered(by_kind))


def least_covered(
    by_kind: Mapping[Kind, Iterable[History]],
) -> dict[Kind, tuple[History, ...]]:
    """For each kind, the histories that no other history of the kind covers."""
    return {kind: tuple(front(list(histories))) for kind, histories in by_kind.items()}
