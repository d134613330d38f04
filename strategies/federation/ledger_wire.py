"""How a deployed client sends its ledger entries: the server cannot read the client's disk.

    server -> client   in an announcement: the run's name, and the hash of the last line that the server has
    client -> server   in a reply (identity or update): the lines after it, and the hash of the last one

In a simulation there is neither record: the server reads the ledgers themselves.
"""

from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

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


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a hash or a name, got {type(value).__name__}")
    return value
