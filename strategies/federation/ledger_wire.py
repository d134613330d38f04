"""Ledger entries on their way from a deployed client to the server, which cannot see the client's disk.

    server -> client   in an announcement: the run's name, and the hash of the last line that the server holds
    client -> server   in a reply (identity or update): the lines since then, and the hash of the last one

A simulation has neither record: its server reads the ledgers themselves.
"""

from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

RECORD = "ledger"


@dataclass(frozen=True, kw_only=True)
class Held:
    """What the server says: the name of the run, and the end of its copy of this client's ledger."""

    run: str
    head: str


@dataclass(frozen=True, kw_only=True)
class News:
    """What a client reports: the lines that the server lacks, and the end of its ledger."""

    lines: bytes
    head: str


def held_record(held: Held) -> ConfigRecord:
    """The record of an announcement."""
    return ConfigRecord({"run": held.run, "head": held.head})


def read_held(content: RecordDict) -> Held | None:
    """What an announcement says, None in a simulation; KeyError or ValueError for anything else."""
    if RECORD not in content.config_records:
        return None
    record = content.config_records[RECORD]
    return Held(run=_text(record["run"]), head=_text(record["head"]))


def news_record(news: News) -> ConfigRecord:
    """The record of a reply."""
    return ConfigRecord({"lines": news.lines, "head": news.head})


def read_news(content: RecordDict) -> News | None:
    """What a reply says, None from a simulated client; KeyError or ValueError for anything else."""
    if RECORD not in content.config_records:
        return None
    record = content.config_records[RECORD]
    lines = record["lines"]
    if not isinstance(lines, bytes):
        raise ValueError(f"expected the lines of a ledger, got {type(lines).__name__}")
    return News(lines=lines, head=_text(record["head"]))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a hash or a name, got {type(value).__name__}")
    return value
