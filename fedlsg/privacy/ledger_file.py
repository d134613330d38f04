"""Privacy ledgers on disk: read with a cache, append under a lock; the ledgers of all clients of a run."""

import contextlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedlsg.owner_only import make_parents, open_file
from fedlsg.privacy.ledger_entry import SERVER, Entry, LedgerError, Parsed, State, encode_entry, parse_on

try:
    import fcntl
except ImportError:  # not on Windows: there the caller must run one process per client
    fcntl = None  # type: ignore[assignment]

MANY = 100
"""Files from which one call for the whole system is quicker than one for each."""
BYTES_REMEMBERED = 2**24
"""Bytes of files that are cached at most; their entries take a few times as much memory."""


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
    """Parse and verify a file: (its client, its state); the client is -1 if no header is written yet.

    Guarantee: the result follows from every byte that is on disk now. Bytes of an earlier call are compared and not
    parsed again, because a file grows by one line at a time and is read after every line.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return -1, State()
    except OSError as error:
        raise LedgerError(f"{path}: cannot read the privacy ledger ({error})") from error
    known = _MEMO.of(path)
    if known.state.torn or not content.startswith(known.content) or (client is not None and known.owner != client):
        known = Parsed()
    if len(content) > len(known.content):
        known = parse_on(path, client, known, content)
        _MEMO.remember(path, known)
    return known.owner, known.state


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes, however many calls that takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def appendable(path: Path) -> Iterator[int]:
    """A descriptor that appends to a file; missing file and folders are created."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = open_file(path, flags)
    except FileNotFoundError:
        make_parents(path.parent)
        descriptor = open_file(path, flags)
    try:
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


def sync_files(paths: Sequence[Path]) -> None:
    """Bring files and their folders to the disk; many of them by one call for the whole system. Raises OSError."""
    if len(paths) > MANY and hasattr(os, "sync"):
        os.sync()
        return
    for path in paths:
        with appendable(path) as descriptor:
            os.fsync(descriptor)
    for folder in {path.parent for path in paths}:
        sync_directory(folder)


@contextlib.contextmanager
def locked(descriptor: int) -> Iterator[None]:
    """An exclusive advisory lock for one append; the system releases it if the process dies."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def ledger_path(directory: str | os.PathLike[str], client: int) -> Path:
    """Path of a client's ledger, or the server's, in the ledger directory of a run."""
    return Path(directory) / ("server.jsonl" if client == SERVER else f"client-{client:06d}.jsonl")


def read_entries(path: str | os.PathLike[str]) -> tuple[Entry, ...]:
    """All entries of one ledger file of any client, with its chain verified. Raises LedgerError as ``Ledger``."""
    return load(Path(path), None)[1].entries


def merge(paths: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str]) -> None:
    """Write all entries, sorted by (round, client, attempt), to one file, atomically.

    The file is a copy for readers, without the hash chain; the authority is the clients' own files.
    Raises LedgerError if it cannot be written.
    """
    entries = [entry for path in paths for entry in read_entries(path)]
    entries.sort(key=lambda entry: (entry.round, entry.client, entry.attempt))
    text = "".join(json.dumps({**encode_entry(entry), "adjacency": entry.adjacency}) + "\n" for entry in entries)
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


def verify_extends(checkpoint: Mapping[str, Sequence[Any]], directory: str | os.PathLike[str]) -> None:
    """Check that the ledgers on disk begin with the entries that a checkpoint saw; they may have more.

    ``checkpoint`` has (number of entries, head) of each client, as ``Ledger.snapshot`` returns them.
    Raises LedgerError naming the client whose ledger is missing, shorter, or different.
    """
    for client, (count, head) in sorted(checkpoint.items()):
        check_extends(ledger_path(directory, int(client)), int(client), count, head)


def check_extends(path: Path, client: int, count: int, head: str) -> None:
    """Check one ledger as ``verify_extends`` does."""
    if not path.exists():
        raise LedgerError(f"{path}: the checkpoint knows {count} entries of client {client}, the ledger is missing")
    heads = load(path, client)[1].heads
    if len(heads) <= count:
        raise LedgerError(f"{path}: {max(len(heads) - 1, 0)} entries, fewer than the checkpoint's {count}")
    if heads[count] != head:
        raise LedgerError(f"{path}: its first {count} entries are not those that the checkpoint saw")
