"""Ledgers of single clients on disk: parsed and verified, read with a cache, appended to under a
lock.
"""

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
    decode_entry,
    encode_entry,
    has_its_end,
    sha256,
)

BYTES_REMEMBERED = 2**24
"""Bytes of files that are cached at most; their entries take a few times as much memory."""


@dataclass(frozen=True)
class State:
    """The entries of a file; ``torn`` if its last line, valid or not, lacks its line feed."""

    entries: tuple[Entry, ...] = ()
    # heads[n] is the hash of the line of entry n; heads[0] of the header
    heads: tuple[str, ...] = ()
    torn: bool = False

    @property
    def head(self) -> str:
        """The hash of the last valid line; ``GENESIS`` if there is none."""
        return self.heads[-1] if self.heads else GENESIS


@dataclass(frozen=True)
class Parsed:
    """Bytes of a file that were verified, and their meaning; ``owner`` is -1 if no header is
    written yet.
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
    """Parse ``content``, whose beginning ``known``, up to the end of a line, is parsed already.

    Raises LedgerError, naming file and line, for a broken chain or a damaged line.
    """
    owner = known.owner
    heads = list(known.state.heads)
    entries = list(known.state.entries)
    keys = set(known.keys)
    head, schema = known.state.head, known.schema
    before = known.content.count(b"\n")
    for number, line in enumerate(content[len(known.content) :].split(b"\n"), start=before + 1):
        if b"}" not in line and not has_its_end(line):
            # torn by a crash, or blank; if it once was whole, the next line's prev shows it
            continue
        try:
            record = parse_json(line)
            schema = schema if heads else record.get("schema")
            check_line(line, record, head, sealed="sha256" in record or schema != UNSEALED)
            if not heads:
                owner = _checked_header(record)
            else:
                entries.append(_checked_entry(record, owner, keys))
                keys.add(entries[-1].key)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise LedgerError(
                f"{path}, line {number}: {error}; restore the file, it is the authority"
            ) from error
        head = sha256(line)
        heads.append(head)
    torn = bool(content) and not content.endswith(b"\n")
    return Parsed(
        content, owner, State(tuple(entries), tuple(heads), torn=torn), frozenset(keys), schema
    )


def _checked_header(record: dict[str, Any]) -> int:
    owner = record.get("client")
    if (
        record.get("schema") not in (UNSEALED, SCHEMA)
        or record.get("adjacency") != ADJACENCY
        or type(owner) is not int
    ):
        raise LedgerError(f"expected the header of schema {SCHEMA}, {ADJACENCY}, got {record}")
    return owner


def _checked_entry(record: dict[str, Any], owner: int, keys: set[Key]) -> Entry:
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
        """What is cached of a file; empty if nothing is."""
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
    """Parse and verify a file: (its client, its state); the client is -1 if no header is written
    yet.

    Guarantee: the result follows from every byte that is on disk now. Bytes of an earlier call are
    compared and not parsed again, because a file grows by one line at a time and is read after
    every line.
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
    if client is not None and known.state.heads and known.owner != client:
        raise LedgerError(
            f"{path} is the ledger of client {known.owner}, and not of client {client}. The file "
            f"is undamaged: leave it as it is, and read it as fedlsg.Ledger({str(path)!r})"
        )
    return known.owner, known.state


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Identity, size and modification time of a file: it has not changed while they stay. None
    without a file.
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
"""Lock of the ledgers of a folder, which others may read and could lock."""


@contextlib.contextmanager
def appendable(path: Path) -> Iterator[int]:
    """A descriptor that appends to a ledger; missing file and folders are created. No other process
    appends to a ledger of its folder meanwhile. Raises OSError, as ``locked``.
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
        with locked(path.resolve().with_name(LOCK)):  # one lock, whichever link leads there
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
    """All entries of one ledger file of any client, with its chain verified. Raises LedgerError as
    ``Ledger``.
    """
    return load(Path(path), None)[1].entries


def merge(entries: Iterable[Entry], out: str | os.PathLike[str], names: Sequence[str] = ()) -> None:
    """Write entries, sorted by (round, client, attempt), to one file, atomically.

    Each has the name of its client where ``names`` has one.

    The file is a copy for readers, without the hash chain; the authority is the file that they come
    from.
    Raises LedgerError if it cannot be written.
    """
    entries = sorted(entries, key=lambda entry: (entry.round, entry.client, entry.attempt))
    named = dict(enumerate(names))
    lines = list[str]()
    for entry in entries:
        more = {"name": named[entry.client]} if entry.client in named else {}
        lines.append(json.dumps({**encode_entry(entry), "adjacency": entry.adjacency, **more}))
    text = "".join(f"{line}\n" for line in lines)
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
            error.filename = str(out)  # not the temporary file, which the reader does not know
        raise LedgerError(f"{out}: cannot write the merged copy ({error})") from error


def check_extends(path: Path, client: int, count: int, head: str) -> None:
    """Check that a client's ledger begins with the entries that a checkpoint saw; ``head``: hash of
    the last one.

    It may have more. Raises LedgerError for one that is missing, shorter, or different.
    """
    check_heads(path, load(path, client)[1].heads, count, head)


def check_heads(path: Path, heads: Sequence[str], count: int, head: str) -> None:
    """As ``check_extends``; ``heads``: hashes of the header and of the lines after it, which were
    read.
    """
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
