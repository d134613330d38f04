"""Ledger files of single clients: parsing with all checks, a cache, and appending under a lock."""

import contextlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlsg.bounded import parse_json
from fedlsg.locks import locked
from fedlsg.owner_only import make_parents, open_file
from fedlsg.privacy.ledger_entry import (
    ADJACENCY,
    GENESIS,
    SCHEMA,
    SERVER,
    UNSEALED,
    Entry,
    Key,
    LedgerError,
    check_line,
    client_of_torn_header,
    decode_entry,
    encode_entry,
    encode_header,
    encoded_beginning,
    has_its_end,
    may_be_torn,
    sha256,
)

DAMAGED = (  # end of the message for a line that no crash leaves
    "damaged: a line is cut off or overwritten as no crash leaves it, so charges may be lost. "
    "Without a copy, begin another ledger, and add to its epsilon what this one had spent"
)
BYTES_REMEMBERED = 2**24
"""Most bytes of files that are cached; their entries take a few times as much memory."""


@dataclass(frozen=True)
class State:
    """The content of a ledger file.

    entries: the charges, in order.
    heads: heads[0] is the hash of the header, heads[n] that of the line of the n-th entry.
    size: bytes up to the end of the last whole line.
    torn: whether the file does not end with a line feed. Its last line is whole and lacks it, or
        there is text after ``size`` that a crash left.
    """

    entries: tuple[Entry, ...] = ()
    heads: tuple[str, ...] = ()
    size: int = 0
    torn: bool = False

    @property
    def head(self) -> str:
        """The hash of the last valid line; ``GENESIS`` if there is none."""
        return self.heads[-1] if self.heads else GENESIS


@dataclass(frozen=True)
class Parsed:
    """Bytes of a ledger file that were verified, and what was read from them.

    content: the bytes.
    owner: the client; -1 if no header names it yet.
    state: the entries.
    keys: those of all entries.
    schema: that of the header.
    """

    content: bytes = b""
    owner: int = -1
    state: State = State()
    keys: frozenset[Key] = frozenset()
    schema: int = SCHEMA


def parse(path: Path, client: int, content: bytes) -> State:
    """The state of a whole ledger of ``client`` from its bytes; errors name ``path``."""
    parsed = parse_on(path, Parsed(), content)
    if parsed.state.heads and parsed.owner != client:
        raise LedgerError(f"{path}: expected client {client}'s, this is client {parsed.owner}'s")
    return parsed.state


def parse_on(path: Path, known: Parsed, content: bytes) -> Parsed:
    """Parse ``content``, of which ``known`` is parsed already: its beginning, up to the end of a
    line.

    Raises LedgerError, naming file and line, for a broken chain or a damaged line, and for text
    that no crash leaves (``ledger_entry``).
    """
    reader = _Reader(known)
    try:
        for line in content[len(known.content) :].split(b"\n"):
            reader.read(line)
        reader.end(content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise LedgerError(
            f"{path}, line {reader.number}: {error}; restore the file, it is the authority"
        ) from error
    return reader.parsed(content)


class _Reader:
    """Reads a file line by line; ``number``: that of the line that it reads, from 1."""

    def __init__(self, known: Parsed) -> None:
        self.number, self._place = known.content.count(b"\n"), len(known.content)
        self._owner, self._schema = known.owner, known.schema
        self._heads, self._entries = list(known.state.heads), list(known.state.entries)
        self._keys, self._size = set(known.keys), known.state.size
        self._torn: list[bytes] = []
        """Torn lines since the last whole one."""

    def read(self, line: bytes) -> None:
        """Read one line, given without its line feed."""
        self.number += 1
        self._place += len(line) + 1
        if line and b"}" not in line and not has_its_end(line):
            self._tear(line)
        elif line:
            self._add(line)

    def end(self, content: bytes) -> None:
        """Raise LedgerError if the end of the file is one that no crash leaves."""
        if len(self._torn) > 1 or (self._torn and content.endswith(b"\n")):
            raise LedgerError(DAMAGED)

    def parsed(self, content: bytes) -> Parsed:
        """What was read."""
        state = State(
            tuple(self._entries),
            tuple(self._heads),
            size=min(self._size, len(content)),
            torn=bool(content) and not content.endswith(b"\n"),
        )
        return Parsed(content, self._owner, state, frozenset(self._keys), self._schema)

    @property
    def _head(self) -> str:
        return self._heads[-1] if self._heads else GENESIS

    def _tear(self, line: bytes) -> None:
        """Read a torn line. Raises LedgerError for one that no crash leaves."""
        if self._heads:
            if not may_be_torn(line, [encoded_beginning(self._owner)], self._head):
                raise LedgerError(DAMAGED)
        elif (owner := client_of_torn_header(line)) is None:
            raise LedgerError(DAMAGED)
        else:
            self._owner = owner
        self._torn.append(line)

    def _add(self, line: bytes) -> None:
        """Read a whole line: the header, or an entry. Raises LedgerError for a broken chain."""
        record = parse_json(line)
        schema = self._schema if self._heads else record.get("schema")
        check_line(line, record, self._head, sealed="sha256" in record or schema != UNSEALED)
        if self._heads:
            self._entries.append(_read_entry(record, self._owner, self._keys))
            self._keys.add(self._entries[-1].key)
        elif not all(line.startswith(torn) for torn in self._torn):
            raise LedgerError(DAMAGED)
        else:
            self._owner, self._schema = _read_header(record), schema
        self._torn.clear()
        self._heads.append(sha256(line))
        self._size = self._place


def _read_header(record: dict[str, Any]) -> int:
    """The client that a header names. Raises LedgerError for another schema or adjacency."""
    owner = record.get("client")
    if (
        record.get("schema") not in (UNSEALED, SCHEMA)
        or record.get("adjacency") != ADJACENCY
        or type(owner) is not int
    ):
        raise LedgerError(f"expected the header of schema {SCHEMA}, {ADJACENCY}, got {record}")
    return owner


def _read_entry(record: dict[str, Any], owner: int, keys: set[Key]) -> Entry:
    """The entry of a line. Raises LedgerError for another client's, or a key in ``keys``."""
    entry = decode_entry(record)
    if entry.client != owner or entry.key in keys:
        raise LedgerError(
            f"unexpected client, run, round, attempt = {entry.key}: charged already, or of another "
            "client"
        )
    return entry


class Memo:
    """A cache of parsed files; the file that was parsed longest ago is dropped first."""

    def __init__(self) -> None:
        self._parsed: OrderedDict[Path, Parsed] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def of(self, path: Path) -> Parsed:
        """The cached part of a file; an empty one if there is none."""
        return self._parsed.get(path, Parsed())

    def remember(self, path: Path, parsed: Parsed) -> None:
        """Cache a file, and drop the oldest ones beyond the limit."""
        with self._lock:
            self._bytes += len(parsed.content) - len(self.of(path).content)
            self._parsed[path] = parsed
            self._parsed.move_to_end(path)
            while self._bytes > BYTES_REMEMBERED and len(self._parsed) > 1:
                self._bytes -= len(self._parsed.popitem(last=False)[1].content)


_MEMO = Memo()


def load(path: Path, client: int | None) -> tuple[int, State]:
    """Parse and verify a file: (its client, its state); the client is -1 if no header names it yet.

    ``client``: whose ledger it must be; None for anybody's.
    Guarantee: the result follows from every byte that is on disk now. Bytes of an earlier call are
    compared and not parsed again, because a file grows by one line at a time and is read after
    every line. Raises LedgerError as ``parse_on``, and for another client's ledger.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return -1, State()
    except OSError as error:
        raise LedgerError(f"{path}: cannot read the privacy ledger ({error})") from error
    known = _MEMO.of(path)
    if known.state.torn or not content.startswith(known.content):
        known = Parsed()
    if len(content) > len(known.content):
        known = parse_on(path, known, content)
        _MEMO.remember(path, known)
    if client is None:
        return known.owner, known.state
    if not known.state.heads and not encode_header(client).startswith(content):
        raise LedgerError(
            f"{path} begins as the ledger of another client than {client}, and then ends: restore "
            "the file, or give its client"
        )
    if known.state.heads and known.owner != client:
        raise LedgerError(
            f"{path} is the ledger of client {known.owner}, and not of client {client}. The file "
            f"is undamaged: leave it as it is, and read it as fedlsg.Ledger({str(path)!r})"
        )
    return known.owner, known.state


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Identity, size and modification time of a file; None without a file.

    While they stay the same, the file has not changed.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerError(f"{path}: cannot read the privacy ledger ({error})") from error
    return status.st_ino, status.st_size, status.st_mtime_ns


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, however many calls that takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


LOCK = ".ledger.lock"
"""The file that is locked for the ledgers of its folder: other users may read, and lock, a ledger.
"""


@contextlib.contextmanager
def appendable(path: Path) -> Iterator[int]:
    """A descriptor that appends to a ledger, under the lock of its folder.

    Missing file and folders are created. Raises OSError, as ``locked``.
    """
    flags = (
        os.O_WRONLY
        | os.O_CREAT
        | os.O_APPEND
        | getattr(os, "O_BINARY", 0)
        | getattr(os, "O_CLOEXEC", 0)
    )
    try:
        descriptor = open_file(path, flags)
    except FileNotFoundError:
        make_parents(path.parent)
        descriptor = open_file(path, flags)
    try:
        with locked(path.resolve().with_name(LOCK)):  # one lock for all links to the file
            yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Make a new file in the directory survive a crash (POSIX)."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def ledger_path(directory: str | os.PathLike[str], client: int) -> Path:
    """Path of a client's ledger, or the server's, in the ledger directory of a run."""
    return Path(directory) / ("server.jsonl" if client == SERVER else f"client-{client:06d}.jsonl")


def read_entries(path: str | os.PathLike[str]) -> tuple[Entry, ...]:
    """All entries of a ledger file of any client, whose chain is verified.

    Raises LedgerError as ``Ledger``.
    """
    return load(Path(path), None)[1].entries


def merge(entries: Iterable[Entry], out: str | os.PathLike[str], names: Sequence[str] = ()) -> None:
    """Write entries, sorted by (round, client, attempt), to one file, atomically.

    names: of the clients 0, 1, ..., which are written with their entries.
    The file is a copy for readers, without the hash chain; the original files are the authority.
    Raises LedgerError if it cannot be written.
    """
    entries = sorted(entries, key=lambda entry: (entry.round, entry.client, entry.attempt))
    name_of = dict(enumerate(names))
    text = ""
    for entry in entries:
        record = {**encode_entry(entry), "adjacency": entry.adjacency}
        if entry.client in name_of:
            record["name"] = name_of[entry.client]
        text += json.dumps(record) + "\n"
    out = Path(out)
    try:
        temporary = out.with_name(f".{out.name}.{os.getpid()}")
        try:
            with open(temporary, "w", encoding="utf-8", opener=open_file) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(out)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(out.parent)
    except OSError as error:
        if error.errno is not None:
            error.filename = str(out)  # the user does not know the temporary file
        raise LedgerError(f"{out}: cannot write the merged copy ({error})") from error


def check_extends(path: Path, client: int, count: int, head: str) -> None:
    """Check that a client's ledger begins with the ``count`` entries of a checkpoint.

    ``head``: hash of the last of them. The ledger may have more entries. Raises LedgerError for one
    that is missing, shorter, or different.
    """
    check_heads(path, load(path, client)[1].heads, count, head)


def check_heads(path: Path, heads: Sequence[str], count: int, head: str) -> None:
    """``check_extends`` for a ledger that was read; ``heads``: those of its ``State``."""
    if not path.exists():
        raise LedgerError(f"{path}: the checkpoint knows {count} entries, the ledger is missing")
    if len(heads) <= count:
        raise LedgerError(
            f"{path}: {max(len(heads) - 1, 0)} entries, fewer than the checkpoint's {count}"
        )
    if heads[count] != head:
        raise LedgerError(
            f"{path}: its first {count} entries are not those that the checkpoint saw"
        )
