"""Proofs between server and clients: the code that they run, and the ledger of a deployed client.

If a client's code clips or adds noise differently, every reported epsilon is wrong. So the server
puts version and digest of its code into the query, each client puts its own into the reply, and
both refuse a difference. The digest covers every .py file that a run can import, under its name in
the package (``fedlsg/strategies/...``), wherever it is on the disk. Attacks and audit read finished
runs; they are not in a Flower bundle and not in the digest. So a clone, a wheel and a bundle of one
version have one digest. Not covered: other packages (torch, numpy), and a program that reports a
false identity.

The server cannot read a client's disk, and keeps copies of ledgers:
    server -> client   in an announcement: the run's name, and the hash of the last line that the
                       server has
    client -> server   in a reply (identity or update): the lines after it, and the hash of the last
                       one
A payload is accepted only with the ledger entry that charges it: for its round of this run, with
the announced rate, noise and steps. In a simulation there is neither record: the server reads the
ledgers themselves.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from fedlsg.privacy import Entry, LedgerError, extend, head_of, ledger_path, read_entries
from fedlsg.privacy.ledger_copy import verify
from fedlsg.user_code.digest import HOME, version_at

PARTS = ("simulations", "strategies")
"""Folders of fedlsg that are inside of it in a wheel, and next to it in a clone and in a bundle."""
OUTSIDE = re.compile(r"fedlsg/(attacks|simulations/attacks)/")
"""Files that no run imports: ``fab-exclude`` in pyproject.toml leaves them out of a bundle."""

CODE = "code"
"""Name of the record with a code identity."""
SHORT = 12
"""Hexadecimal digits of a digest in a message for people."""


@dataclass(frozen=True, kw_only=True)
class CodeIdentity:
    """The code of a process.

    version: of fedlsg.
    digest: SHA-256 of the files.
    folder: that has fedlsg; it is for messages and not compared. Empty if it is not known.
    """

    version: str
    digest: str
    folder: str

    def __str__(self) -> str:
        where = f" from {self.folder}" if self.folder else ""
        return f"fedlsg {self.version} ({self.digest[:SHORT]}){where}"

    def same(self, other: "CodeIdentity") -> bool:
        """Whether both are the same code, wherever it is installed."""
        return (self.version, self.digest) == (other.version, other.digest)


class OtherCodeError(RuntimeError):
    """Server and client run different code."""


@lru_cache(maxsize=1)  # of the code that was imported: for a process
def own_identity() -> CodeIdentity:
    """The code that this process imported, whatever its working directory is."""
    return identity_of(HOME)


def identity_of(home: Path) -> CodeIdentity:
    """The identity of the code whose package ``fedlsg`` is the folder ``home``."""
    root = home.parent
    return CodeIdentity(version=version_at(root), digest=digest_of(home), folder=str(root))


def digest_of(home: Path) -> str:
    """SHA-256 over names and contents of the .py files of a package, in the order of the names."""
    folders = {"fedlsg": home}
    for part in PARTS:
        inside = home / part
        folders[f"fedlsg/{part}"] = inside if inside.exists() else home.parent / part
    files = {
        f"{name}/{file.relative_to(folder).as_posix()}": file
        for name, folder in folders.items()
        for file in folder.rglob("*.py")
    }
    sha = hashlib.sha256()
    for name in sorted(files):
        if not OUTSIDE.match(name):
            content = files[name].read_bytes()
            sha.update(f"{name}\n{len(content)}\n".encode() + content)
    return sha.hexdigest()


def code_record(*, local: bool = True) -> ConfigRecord:
    """This process's identity for a message; ``local``: it stays here, so it has the folder."""
    identity = own_identity()
    return ConfigRecord(
        {
            "version": identity.version,
            "digest": identity.digest,
            "folder": identity.folder if local else "",
        }
    )


def check_same_code(
    content: RecordDict, sender: str, *, receiver: str = "this process", local: bool = True
) -> None:
    """Raise OtherCodeError unless the sender of a message runs the code of this process.

    sender: in words.
    receiver: this process in words.
    local: whether the error stays on this machine, so that it may name a folder.
    """
    identity, record = own_identity(), content.config_records.get(CODE)
    if not local:
        identity = replace(identity, folder="")
    if record is None or not {"version", "digest", "folder"} <= record.keys():
        raise OtherCodeError(
            f"{sender} does not say which code it runs, {receiver} runs {identity}: {SAME_VERSION}"
        )
    theirs = CodeIdentity(**{name: str(record[name]) for name in ("version", "digest", "folder")})
    if not identity.same(theirs):
        fix = SAME_VERSION if identity.version != theirs.version else SAME_FILES
        raise OtherCodeError(f"{sender} runs {theirs}, {receiver} runs {identity}: {fix}")


SAME_VERSION = (
    "install the same version of fedlsg on both sides, and let no other fedlsg come before it on "
    "the Python path"
)
SAME_FILES = (
    "the versions are equal and the files differ: take the same commit, or the same build, on both "
    "sides, and let no other fedlsg come before it on the Python path"
)

RECORD = "ledger"
"""Name of the record with ``Held`` or ``News``."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """The part of a client's ledger that the server has.

    run: name of the run.
    head: hash of the last line of the server's copy.
    """

    run: str
    head: str


@dataclass(frozen=True, kw_only=True)
class News:
    """The part of a client's ledger that the server does not have.

    lines: after those of the server's copy.
    head: hash of the last line of the ledger.
    """

    lines: bytes
    head: str


def held_record(held: Held) -> ConfigRecord:
    """The record of an announcement."""
    return ConfigRecord({"run": held.run, "head": held.head})


def read_held(content: RecordDict) -> Held | None:
    """The ``Held`` of an announcement; None in a simulation.

    Raises KeyError or ValueError for another record.
    """
    if RECORD not in content.config_records:
        return None
    record = content.config_records[RECORD]
    return Held(run=_text(record["run"]), head=_text(record["head"]))


def news_record(news: News) -> ConfigRecord:
    """The record of a reply."""
    return ConfigRecord({"lines": news.lines, "head": news.head})


def read_news(content: RecordDict) -> News | None:
    """The ``News`` of a reply; None from a simulated client.

    Raises KeyError or ValueError for another record.
    """
    if RECORD not in content.config_records:
        return None
    record = content.config_records[RECORD]
    lines = record["lines"]
    if not isinstance(lines, bytes):
        raise ValueError(f"expected the lines of a ledger, got {type(lines).__name__}")
    return News(lines=lines, head=_text(record["head"]))


def check_news(client: int, news: News | None) -> News:
    """The whole ledger that a client sent. Raises LedgerError without one, and as ``verify``."""
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
    """The server's copies of the ledgers of deployed clients.

    folder: with one file for each client, with entries of this run and of earlier ones.
    run: name of this run.
    unconfirmed: by client, the charges that were announced since it last sent its ledger, as fields
        of ``Entry``. It may have been charged for each of them.
    """

    folder: Path
    run: str
    unconfirmed: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def path(self, client: int) -> Path:
        """The path of a client's copy."""
        return ledger_path(self.folder, client)

    def held(self, client: int) -> Held:
        """The end of a client's copy, as the server announces it."""
        return Held(run=self.run, head=head_of(self.path(client), client))

    def announce(self, client: int, round: int, terms: Mapping[str, Any]) -> Held:
        """As ``held``, for an announcement of a round with these ``terms``, fields of ``Entry``."""
        self.unconfirmed.setdefault(client, []).append({"round": round, **terms})
        return self.held(client)

    def take(self, client: int, news: News | None) -> None:
        """Append the lines that a client sent.

        Raises LedgerError if it sent nothing, or lines that do not continue its copy.
        """
        if news is None:
            raise LedgerError(f"client {client} sent no ledger: its epsilon is unknown")
        extend(self.path(client), client, news.lines, news.head)
        self.unconfirmed.pop(client, None)

    def insist(self, client: int, round: int, terms: Mapping[str, object]) -> None:
        """Raise LedgerError unless the last entry of a round has these ``terms``, values by the
        names of its fields.

        ``log_ratio`` is 0, and noise is not shared, unless the terms say otherwise.
        """
        terms = {"log_ratio": 0.0, "min_survivors": 0, "colluders": 0, **terms}
        path = self.path(client)
        entries = [
            entry
            for entry in (read_entries(path) if path.exists() else ())
            if (entry.run, entry.round) == (self.run, round)
        ]
        if not entries:
            raise LedgerError(
                f"client {client} replied in round {round}, and its ledger has no entry for that "
                "round"
            )
        assert terms.keys() <= {field.name for field in fields(Entry)}
        differ = [name for name, value in terms.items() if getattr(entries[-1], name) != value]
        if differ:
            differences = ", ".join(
                f"{name}={getattr(entries[-1], name)} (announced {terms[name]})" for name in differ
            )
            raise LedgerError(f"client {client} charged round {round} with {differences}")
