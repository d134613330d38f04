"""The lines of a privacy ledger: JSON in a hash chain, and what a file with such lines says.

The first line is a header (schema, client, adjacency), every later line an entry. Each line has ``prev``, the SHA-256
of the valid line before it, so an edit, a removal or a swap is found on reading, except at the very end. Each line ends
with ``sha256``, its own digest, which also finds damage to the last line. (Files of schema 1 lack it.)

A line that a crash tore was never released. The next append ends it, and it stays in the file as text outside the
chain. A line is skipped only if it has no closing brace, and if the ``prev`` of the next valid line skips it, too.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlsg.privacy.ledger_entry import ADJACENCY, Entry, Key, LedgerError, decode_entry

SCHEMA = 2
UNSEALED = 1
"""The schema whose lines have no digest of their own."""
GENESIS = "0" * 64
"""The hash before the first line."""


def sha256(line: bytes) -> str:
    """The hash of a line, as hexadecimal digits."""
    return hashlib.sha256(line).hexdigest()


@dataclass(frozen=True)
class State:
    """The entries of a file; ``torn`` if its last line, valid or not, lacks its line feed."""

    entries: tuple[Entry, ...] = ()
    heads: tuple[str, ...] = ()  # heads[n] is the hash of the line of entry n; heads[0] of the header
    torn: bool = False

    @property
    def head(self) -> str:
        """The hash of the last valid line; ``GENESIS`` if there is none."""
        return self.heads[-1] if self.heads else GENESIS


@dataclass(frozen=True)
class Parsed:
    """Bytes of a file that were verified, and their meaning; ``owner`` is -1 if no header is written yet."""

    content: bytes = b""
    owner: int = -1
    state: State = State()
    keys: frozenset[Key] = frozenset()
    schema: int = SCHEMA


def parse(path: Path, client: int, content: bytes) -> State:
    """The state of a whole ledger of ``client`` from its bytes; errors name ``path``."""
    return parse_on(path, client, Parsed(), content).state


def parse_on(path: Path, client: int | None, known: Parsed, content: bytes) -> Parsed:
    """Parse ``content``, whose beginning ``known``, up to the end of a line, is parsed already.

    Raises LedgerError, naming file and line, for a broken chain, a damaged line, or another client's ledger.
    """
    owner, heads, entries, keys = known.owner, list(known.state.heads), list(known.state.entries), set(known.keys)
    head, schema = known.state.head, known.schema
    before = known.content.count(b"\n")
    for number, line in enumerate(content[len(known.content) :].split(b"\n"), start=before + 1):
        if b"}" not in line and not _LOST_ITS_BRACE.search(line):
            continue  # torn by a crash, or blank; if it once was whole, the next line's prev shows it
        try:
            record = json.loads(line)
            if record.pop("prev") != head:
                raise LedgerError("it does not continue the line before: a line was edited, removed or moved")
            schema = schema if heads else record.get("schema")
            sealed = record.pop("sha256", None) is not None or schema != UNSEALED
            if sealed and _seal(line[:-_SEAL] + b"}") != line[-_SEAL:]:
                raise LedgerError("it is not what its own digest says: the line is damaged")
            if not heads:
                owner = _checked_header(record, client)
            else:
                entries.append(_checked_entry(record, owner, keys))
                keys.add(entries[-1].key)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise LedgerError(f"{path}, line {number}: {error}; restore the file, it is the authority") from error
        head = sha256(line)
        heads.append(head)
    torn = bool(content) and not content.endswith(b"\n")
    return Parsed(content, owner, State(tuple(entries), tuple(heads), torn=torn), frozenset(keys), schema)


def _checked_header(record: dict[str, Any], client: int | None) -> int:
    owner = record.get("client")
    if record.get("schema") not in (UNSEALED, SCHEMA) or record.get("adjacency") != ADJACENCY or type(owner) is not int:
        raise LedgerError(f"expected the header of schema {SCHEMA}, {ADJACENCY}, got {record}")
    if client is not None and owner != client:
        raise LedgerError(f"expected the ledger of client {client}, this is client {owner}'s")
    return owner


def _checked_entry(record: dict[str, Any], owner: int, keys: set[Key]) -> Entry:
    entry = decode_entry(record)
    if entry.client != owner or entry.key in keys:
        raise LedgerError(
            f"unexpected client, run, round, attempt = {entry.key}: charged already, or of another client"
        )
    return entry


def encode_header(client: int) -> bytes:
    """The first line of the ledger of ``client``, without its line feed."""
    return encode_line({"schema": SCHEMA, "client": client, "adjacency": ADJACENCY}, GENESIS)


def encode_line(record: Mapping[str, Any], previous: str) -> bytes:
    """One line, without its line feed, chained to the hash of the valid line before it; its own digest ends it."""
    body = json.dumps({**record, "prev": previous}, allow_nan=False).encode()
    return body[:-1] + _seal(body)


def lines_with_hashes(content: bytes) -> Iterator[tuple[bytes, str]]:
    """The lines that may be entries, without their line feed, and the hash of each."""
    for line in content.split(b"\n"):
        if b"}" in line:
            yield line, sha256(line)


def _seal(body: bytes) -> bytes:
    return b', "sha256": "' + sha256(body).encode() + b'"}'


_SEAL = len(b', "sha256": ""}') + 64
_LOST_ITS_BRACE = re.compile(rb'"sha256": "[0-9a-f]{64}".\Z', re.DOTALL)
"""The end of a line whose last byte was changed: a torn line is shorter."""
