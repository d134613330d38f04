"""The server's copies of the ledgers of deployed clients: new lines come with the replies.

A payload is accepted only with the ledger entry that charges it: for its round of this run, with the announced rate,
noise and steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from fedlsg.privacy import Entry, LedgerError, extend, head_of, ledger_path, read_entries
from strategies.federation.ledger_wire import Held, News


@dataclass(frozen=True, kw_only=True)
class LedgerCopies:
    """Copies in ``folder``, one file for each client: entries of the run named ``run`` and of earlier ones."""

    folder: Path
    run: str

    def path(self, client: int) -> Path:
        """Where a client's copy is."""
        return ledger_path(self.folder, client)

    def held(self, client: int) -> Held:
        """The end of a client's copy, as the server announces it."""
        return Held(run=self.run, head=head_of(self.path(client), client))

    def take(self, client: int, news: News | None) -> None:
        """Append what a client sent. Raises LedgerError if it sent nothing, or lines that do not continue its copy."""
        if news is None:
            raise LedgerError(f"client {client} sent no ledger: its epsilon is unknown")
        extend(self.path(client), client, news.lines, news.head)

    def insist(self, client: int, round: int, terms: Mapping[str, object]) -> None:
        """Raise LedgerError unless the last entry of a round has these ``terms``, values by the names of its fields."""
        path = self.path(client)
        entries = [e for e in (read_entries(path) if path.exists() else ()) if (e.run, e.round) == (self.run, round)]
        if not entries:
            raise LedgerError(f"client {client} replied in round {round}, and its ledger has no entry for that round")
        names = {f.name for f in fields(Entry)}
        assert terms.keys() <= names
        differ = [name for name, value in terms.items() if getattr(entries[-1], name) != value]
        if differ:
            found = ", ".join(f"{name}={getattr(entries[-1], name)} (announced {terms[name]})" for name in differ)
            raise LedgerError(f"client {client} charged round {round} with {found}")
