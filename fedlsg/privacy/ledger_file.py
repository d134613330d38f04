"""A privacy ledger on disk: read with a cache, append under a lock, synced before anything is released."""

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from fedlsg.privacy.ledger_chain import Parsed, State, parse_on
from fedlsg.privacy.ledger_entry import LedgerError

try:
    import fcntl
except ImportError:  # not on Windows: there the caller must run one process per client
    fcntl = None  # type: ignore[assignment]

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
        descriptor = os.open(path, flags, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o666)
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
