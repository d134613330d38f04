"""How a privacy ledger lies on disk: JSON lines in a hash chain, appended under a lock.

Its first line is a header (schema, client, adjacency), every later one an entry. Each line carries ``prev``,
the SHA-256 of the valid line before it, so an edit, a removal or a swap anywhere but at the very end is found
on reading. It ends with ``sha256``, its own digest: damage to the last line, which no other line vouches for, is
found, too. (Files of schema 1 lack it.)

A line that a crash tore was never released. The next append ends it, and it stays in the file as text outside
the chain: a line is skipped only if it holds no closing brace, and only where the ``prev`` of the next valid
line skips it too.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from fedlsg.accounting import checked_noise_multiplier, checked_sample_rate, checked_steps

try:
    import fcntl
except ImportError:  # not on Windows: there one process per client is the caller's duty
    fcntl = None  # type: ignore[assignment]

SCHEMA = 2
UNSEALED = 1
"""The schema whose lines have no digest of their own."""
ADJACENCY = "add/remove"
MECHANISMS = ("dp", "clip-only", "noise-only", "none")
GENESIS = "0" * 64
LONGEST_RUN = 64


class LedgerError(ValueError):
    """A ledger that cannot be trusted, or a charge that it must not take."""


Key = tuple[int, str, int, int]
"""Client, run, round, attempt."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One attempt of one client in one round: ``steps`` noisy steps on its ``num_examples`` examples.

    ``noise_multiplier`` is the effective one (noise s.d. over joint sensitivity), 0.0 unless the mechanism is
    "dp". ``reproducible`` marks noise from a known seed: it is accounted as if it were secret, and its
    reports say NOT PRIVATE. ``run`` names the run in a ledger that goes on over several (a deployed client's); ""
    in a simulation, whose ledger is that of one run.
    """

    client: int
    round: int
    attempt: int
    steps: int
    sample_rate: float
    noise_multiplier: float
    clip_norm: float
    num_examples: int
    mechanism: str
    reproducible: bool = False
    run: str = ""
    adjacency: ClassVar[str] = ADJACENCY

    def __post_init__(self) -> None:
        for name in ("client", "round", "attempt", "num_examples"):
            value = getattr(self, name)
            if type(value) is not int or value < (1 if name == "num_examples" else 0):
                raise ValueError(f"expected a non-negative integer {name}, got {value!r} (num_examples at least 1)")
        if self.mechanism not in MECHANISMS:
            raise ValueError(f"expected mechanism={self.mechanism!r} among {MECHANISMS}")
        if type(self.reproducible) is not bool:
            raise ValueError(f"expected {self.reproducible=} to be True or False")
        if type(self.run) is not str or len(self.run) > LONGEST_RUN:
            raise ValueError(f"expected {self.run=} to be the name of a run, {LONGEST_RUN} characters at most")
        checked_steps(self.steps)
        checked_sample_rate(self.sample_rate)
        if self.mechanism == "dp":
            checked_noise_multiplier(self.noise_multiplier)
        elif self.noise_multiplier != 0.0:
            raise ValueError(
                f"expected {self.noise_multiplier=} to be 0.0 under mechanism={self.mechanism!r}: not accounted"
            )
        bounded = self.mechanism in ("dp", "clip-only")
        if not self.clip_norm > 0 or (bounded and not math.isfinite(self.clip_norm)):
            raise ValueError(f"expected a finite {self.clip_norm=} > 0 (inf where nothing is clipped)")

    @property
    def key(self) -> Key:
        return self.client, self.run, self.round, self.attempt


FIELDS = tuple(field.name for field in fields(Entry))


@dataclass(frozen=True)
class State:
    """What the valid lines of a file say; ``torn`` if its last line, valid or not, lacks its line feed."""

    entries: tuple[Entry, ...] = ()
    heads: tuple[str, ...] = ()  # heads[n] is the hash of the line that holds entry n; heads[0] of the header
    torn: bool = False


@dataclass(frozen=True)
class Parsed:
    """Bytes of a file that were verified, and what they say; its owner is -1 where no header is written yet."""

    content: bytes = b""
    owner: int = -1
    state: State = State()
    keys: frozenset[Key] = frozenset()
    schema: int = SCHEMA


BYTES_REMEMBERED = 2**24
"""Bytes of files that are remembered at most; what they say takes a few times as much."""


class Memo:
    """What was parsed of which file, those first forgotten that were last parsed longest ago."""

    def __init__(self) -> None:
        self._parsed: OrderedDict[Path, Parsed] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def of(self, path: Path) -> Parsed:
        """What is remembered of a file, nothing at worst."""
        return self._parsed.get(path, Parsed())

    def remember(self, path: Path, parsed: Parsed) -> None:
        """Put it last, and forget what is too much."""
        with self._lock:
            self._bytes += len(parsed.content) - len(self.of(path).content)
            self._parsed[path] = parsed
            self._parsed.move_to_end(path)
            while self._bytes > BYTES_REMEMBERED and len(self._parsed) > 1:
                self._bytes -= len(self._parsed.popitem(last=False)[1].content)


_MEMO = Memo()


def load(path: Path, client: int | None) -> tuple[int, State]:
    """Parse and verify a file: (its client, its state); the client is -1 where no header is written yet.

    Guarantee: what is returned follows from every byte that lies on disk now. Bytes that are those of an earlier call
    are compared, not parsed again: a file grows by a line at a time, and is read after every line.
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
        known = _continued(path, client, known, content)
        _MEMO.remember(path, known)
    return known.owner, known.state


def _continued(path: Path, client: int | None, known: Parsed, content: bytes) -> Parsed:
    """What ``content`` says, of which ``known`` is the beginning, up to the end of a line."""
    owner, heads, entries, keys = known.owner, list(known.state.heads), list(known.state.entries), set(known.keys)
    head, schema = heads[-1] if heads else GENESIS, known.schema
    before = known.content.count(b"\n")
    for number, line in enumerate(content[len(known.content) :].split(b"\n"), start=before + 1):
        if b"}" not in line and not _LOST_ITS_BRACE.search(line):
            continue  # torn by a crash, or blank; if it once was whole, the next line's prev shows it
        try:
            record = json.loads(line)
            if record.pop("prev") != head:
                raise LedgerError("it does not continue the line before: a line was edited, removed or moved")
            schema = schema if heads else record.get("schema")
            if record.pop("sha256", None) is not None or schema != UNSEALED:
                _check_seal(line)
            if not heads:
                owner = _checked_header(record, client)
            else:
                entry = _decode_entry(record)
                if entry.client != owner or entry.key in keys:
                    raise LedgerError(
                        f"unexpected client, run, round, attempt = {entry.key}: charged already, or not its own"
                    )
                keys.add(entry.key)
                entries.append(entry)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise LedgerError(f"{path}, line {number}: {error}; restore the file, it is the authority") from error
        head = sha256(line)
        heads.append(head)
    torn = bool(content) and not content.endswith(b"\n")
    return Parsed(content, owner, State(tuple(entries), tuple(heads), torn=torn), frozenset(keys), schema)


def parse(path: Path, client: int, content: bytes) -> State:
    """What the bytes of a whole ledger of ``client`` say; ``path`` is named in errors. Nothing is remembered."""
    return _continued(path, client, Parsed(), content).state


def _checked_header(record: dict[str, Any], client: int | None) -> int:
    owner = record.get("client")
    if record.get("schema") not in (UNSEALED, SCHEMA) or record.get("adjacency") != ADJACENCY or type(owner) is not int:
        raise LedgerError(f"expected the header of schema {SCHEMA}, {ADJACENCY}, got {record}")
    if client is not None and owner != client:
        raise LedgerError(f"expected the ledger of client {client}, this is client {owner}'s")
    return owner


def encode_entry(entry: Entry) -> dict[str, Any]:
    """An entry as JSON takes it: an infinite clip norm is null; without a run where that has no name."""
    record = {name: getattr(entry, name) for name in FIELDS if name != "run" or entry.run}
    return record | ({"clip_norm": None} if math.isinf(entry.clip_norm) else {})


def _decode_entry(record: dict[str, Any]) -> Entry:
    if record["clip_norm"] is None:
        record["clip_norm"] = math.inf
    return Entry(**record)


def encode_line(record: Mapping[str, Any], previous: str) -> bytes:
    """One line, without its line feed, chained to the hash of the valid line before it; its own digest ends it."""
    body = json.dumps({**record, "prev": previous}, allow_nan=False).encode()
    return body[:-1] + _seal(body)


def _seal(body: bytes) -> bytes:
    return b', "sha256": "' + sha256(body).encode() + b'"}'


_SEAL = len(b', "sha256": ""}') + 64
_LOST_ITS_BRACE = re.compile(rb'"sha256": "[0-9a-f]{64}".\Z', re.DOTALL)
"""The end of a line whose last byte was changed: a torn line is shorter."""


def _check_seal(line: bytes) -> None:
    if _seal(line[:-_SEAL] + b"}") != line[-_SEAL:]:
        raise LedgerError("it is not what its own digest says: the line is damaged")


def sha256(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def appendable(path: Path) -> Iterator[int]:
    """A descriptor that appends to a file; file and folders are made where they are missing."""
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
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def locked(descriptor: int) -> Iterator[None]:
    """Exclusive advisory lock for the time of one append; released by the system if the process dies."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
