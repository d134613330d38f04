"""Ledgers of deployed clients: how entries travel, and the server's copies. It cannot read the client's disk.

    server -> client   in an announcement: the run's name, and the hash of the last line that the server has
    client -> server   in a reply (identity or update): the lines after it, and the hash of the last one

A payload is accepted only with the ledger entry that charges it: for its round of this run, with the announced rate,
noise and steps. In a simulation there is neither record: the server reads the ledgers themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from flwr.app import ConfigRecord, RecordDict

from fedlsg.privacy import Entry, LedgerError, extend, head_of, ledger_path, read_entries
from fedlsg.privacy.ledger_copy import verify

RECORD = "ledger"


@dataclass(frozen=True, kw_only=True)
class Held:
    """From the server: the name of the run, and the end of its copy of this client's ledger."""

    run: str
    head: str


@dataclass(frozen=True, kw_only=True)
class News:
    """From a client: the lines that the server does not have, and the end of its ledger."""

    lines: bytes
    head: str


def held_record(held: Held) -> ConfigRecord:
    """The record of an announcement."""
    return ConfigRecord({"run": held.run, "head": held.head})


def read_held(content: RecordDict) -> Held | None:
    """The record of an announcement, None in a simulation; KeyError or ValueError for anything else."""
    if RECORD not in content.config_records:
        return None
    record = content.config_records[RECORD]
    return Held(run=_text(record["run"]), head=_text(record["head"]))


def news_record(news: News) -> ConfigRecord:
    """The record of a reply."""
    return ConfigRecord({"lines": news.lines, "head": news.head})


def read_news(content: RecordDict) -> News | None:
    """The record of a reply, None from a simulated client; KeyError or ValueError for anything else."""
    if RECORD not in content.config_records:
        return None
    record = content.config_records[RECORD]
    lines = record["lines"]
    if not isinstance(lines, bytes):
        raise ValueError(f"expected the lines of a ledger, got {type(lines).__name__}")
    return News(lines=lines, head=_text(record["head"]))


def check_news(client: int, news: News | None) -> News:
    """What a client sent as its whole ledger. Raises LedgerError as ``verify``, and where it sent none."""
    if news is None:
        raise LedgerError(f"client {client} sent no ledger: its epsilon is unknown")
    verify(client, news.lines, news.head)
    return news


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a hash or a name, got {type(value).__name__}")
    return value


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
        """Raise LedgerError unless the last entry of a round has these ``terms``, values by the names of its fields.

        ``log_ratio`` is 0, and noise is not shared, unless the terms say otherwise.
        """
        terms = {"log_ratio": 0.0, "min_survivors": 0, "colluders": 0, **terms}
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
