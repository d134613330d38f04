"""What clients were charged for before the rounds that a plan is for: in earlier rounds of the
same run, or in another run whose weights it starts from.

Epsilon is that of both parts together. So noise for a target is calibrated for the rounds that
come, next to what each client has spent already.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedlsg.accounting import Event
from fedlsg.accounting.population import front
from fedlsg.privacy import SERVER, RunLedger
from fedlsg.privacy.ledger_entry import kind_of

History = tuple[Event, ...]
"""All that a client was charged for."""
Kind = tuple[int, float | None, float | None]
"""What the noise of a client follows from: its declared size N_k, its epsilon and its delta."""
NOTHING: tuple[History, ...] = ((),)


@dataclass(frozen=True, kw_only=True)
class Before:
    """``rounds``: of this run, that are over. ``histories``: of the clients by their kind, those
    that no other history covers.
    """

    rounds: int = 0
    histories: Mapping[Kind, tuple[History, ...]] = field(default_factory=dict)

    def of(self, kind: Kind) -> tuple[History, ...]:
        """The histories of clients of a kind, () for one that was never charged."""
        return self.histories.get(kind, NOTHING)


def read_before(
    ledger: RunLedger, kinds: Sequence[Kind], *, rounds: int = 0, at_server: bool = False
) -> Before:
    """What the ledgers of a run hold; ``at_server``: its server is charged for everybody.

    Guarantee: whichever client is of a kind, its history is covered by one of that kind.
    """
    known: dict[Hashable, History] = {}

    def history(client: int) -> History:
        charges = ledger.of(client)
        entries = tuple(map(kind_of, charges.entries))
        if entries not in known:
            known[entries] = charges.events()
        return known[entries]

    if at_server:
        common = (history(SERVER),)
        return Before(rounds=rounds, histories=dict.fromkeys(kinds, common))
    by_kind: dict[Kind, set[History]] = {}
    for client in ledger.clients():
        if client < len(kinds):
            by_kind.setdefault(kinds[client], set()).add(history(client))
    return Before(rounds=rounds, histories=least_covered(by_kind))


def least_covered(
    by_kind: Mapping[Kind, Iterable[History]],
) -> dict[Kind, tuple[History, ...]]:
    """Of the histories of a kind those that no other one covers."""
    return {kind: tuple(front(list(histories))) for kind, histories in by_kind.items()}
