"""The privacy ledger: what one client has spent, on disk before anything leaves it.

One append-only file per client (see ledger_file.py), the authority for privacy accounting. What its hash
chain cannot find is a file cut off at the end of a line: checkpoints therefore hold a `snapshot`, and
`verify_extends` refuses a ledger that fell behind one.
"""

import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedlsg.accounting import (
    AccountingError,
    EpsilonBound,
    Event,
    checked_delta,
    compose,
    max_steps,
    population,
    surely_within,
)
from fedlsg.privacy.ledger_file import (
    ADJACENCY,
    GENESIS,
    SCHEMA,
    Entry,
    LedgerError,
    State,
    appendable,
    encode_entry,
    encode_line,
    load,
    locked,
    sha256,
    sync_directory,
    write_all,
)

__all__ = [
    "Entry",
    "Ledger",
    "LedgerError",
    "fingerprint",
    "ledger_path",
    "merge",
    "read_entries",
    "snapshot",
    "verify_extends",
]


class Ledger:
    """The ledger of one client, bound to a path; every method reads what is on disk if that has changed.

    Raises: LedgerError naming file and line where the file is damaged, belongs to another client or another
    schema.
    """

    def __init__(self, path: str | os.PathLike[str], client: int) -> None:
        if type(client) is not int or client < 0:
            raise ValueError(f"expected {client=} to be an integer >= 0: the partition id")
        self.path = Path(path)
        self.client = client
        self._state = State()
        self._stamp: tuple[int, int, int] | None = None
        self._read()

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self._read().entries

    def charge(self, entry: Entry) -> None:
        """Append one entry; when this returns, it is on disk (file and, if new, directory synced).

        The lock is exclusive and the file is read again under it, so of two processes that charge the same
        key one is refused. Whatever happens in the middle, earlier entries stay valid.

        Raises: LedgerError for another client's entry, a key already charged, or a path that cannot be
        written.
        """
        if entry.client != self.client:
            raise LedgerError(
                f"{self.path}: expected an entry of client {self.client}, got one of client {entry.client}"
            )
        try:
            with appendable(self.path) as descriptor, locked(descriptor):
                self._append(descriptor, entry)
        except OSError as error:
            raise LedgerError(
                f"{self.path}: cannot write the privacy ledger ({error}); nothing may be released"
            ) from error

    def of_round(self, round: int, run: str = "") -> tuple[Entry, ...]:
        """The entries of a round of a run."""
        return tuple(entry for entry in self.entries if (entry.run, entry.round) == (run, round))

    def next_attempt(self, round: int, run: str = "") -> int:
        """The lowest attempt number of a round that comes after all charged ones."""
        return max((entry.attempt + 1 for entry in self.of_round(round, run)), default=0)

    def events(self) -> tuple[Event, ...]:
        """The private entries, merged by (q, sigma). Entries of other mechanisms are absent: see `epsilon`."""
        return _events(self.entries)

    def epsilon(self, delta: float, accountants: Sequence[str] = ("prv", "pld")) -> EpsilonBound | float:
        """Epsilon spent so far; ``math.inf`` if any entry's mechanism is not "dp".

        Reproducible noise is accounted as if it were secret: the caller must print NOT PRIVATE
        (`reproducible`).
        """
        if any(entry.mechanism != "dp" for entry in self.entries):
            return math.inf
        return compose(self.events(), delta=delta, accountants=accountants)

    @property
    def reproducible(self) -> bool:
        """Whether any noise came from a known seed."""
        return any(entry.reproducible for entry in self.entries)

    def would_exceed(self, entry: Entry, epsilon_budget: float, delta: float, *, run: str | None = None) -> bool:
        """Whether charging ``entry`` would pass the budget; of one ``run``, where that is named, its entries alone.

        What no accountant certifies passes it.

        Far from the budget a bound in closed form answers. Near it, as many steps as are taken at the (q, sigma) of
        ``entry`` cost one cached `max_steps` beside everything else (nothing, or a pruning round), and then an integer
        comparison.
        """
        entries = (*(e for e in self.entries if run in (None, e.run)), entry)
        if any(e.mechanism != "dp" for e in entries):
            return True
        events = _events(entries)
        if surely_within(events, epsilon=epsilon_budget, delta=checked_delta(delta)):
            return False
        setting = (entry.sample_rate, entry.noise_multiplier)
        now = next(e for e in events if (e.sample_rate, e.noise_multiplier) == setting)
        if len(events) <= 2:
            besides = tuple(e for e in events if e is not now)
            if any(now.steps <= most for most in _allowed(now, besides, epsilon_budget, delta)):
                return False  # beyond it, ask: upper bounds need not be monotone to the last step
        try:
            return compose(events, delta=delta).upper > epsilon_budget
        except AccountingError:
            return True

    def snapshot(self) -> tuple[int, str]:
        """(number of entries, hash of the last line): what a checkpoint keeps and `verify_extends` compares."""
        state = self._read()
        return len(state.entries), state.heads[-1] if state.heads else GENESIS

    def _read(self) -> State:
        """Today's state; parsed again only if the file's identity, size or modification time changed.

        What this object has seen once it must see again: a file that was deleted, cut or exchanged is
        refused.
        """
        try:
            status = os.stat(self.path)
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            stamp = None
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot read the privacy ledger ({error})") from error
        if stamp is None or stamp != self._stamp:
            state, seen = load(self.path, self.client)[1], self._state.heads
            if state.heads[: len(seen)] != seen:
                raise LedgerError(f"{self.path}: entries seen earlier are gone; restore the file before going on")
            self._state, self._stamp = state, stamp
        return self._state

    def _append(self, descriptor: int, entry: Entry) -> None:
        state = self._read()
        if any(entry.key == known.key for known in state.entries):
            raise LedgerError(
                f"{self.path}: client, run, round, attempt = {entry.key} is charged already; every attempt that draws"
                " noise takes the next attempt number"
            )
        lines = [b""] if state.torn else []  # ends a torn line, so that ours starts on a fresh one
        heads = list(state.heads)
        if not heads:
            lines.append(encode_line({"schema": SCHEMA, "client": self.client, "adjacency": ADJACENCY}, GENESIS))
            heads.append(sha256(lines[-1]))
        lines.append(encode_line(encode_entry(entry), heads[-1]))
        heads.append(sha256(lines[-1]))
        write_all(descriptor, b"\n".join([*lines, b""]))
        os.fsync(descriptor)
        if not state.entries:
            sync_directory(self.path.parent)
        status = os.fstat(descriptor)
        self._state = State((*state.entries, entry), tuple(heads))
        self._stamp = (status.st_ino, status.st_size, status.st_mtime_ns)


def _allowed(now: Event, besides: tuple[Event, ...], budget: float, delta: float) -> Iterator[int]:
    """How many steps a budget allows, the last number exact; before it, where settings are many, one of the grid.

    A step at a larger q and a smaller sigma costs more: what is allowed there is allowed here.
    """
    own = (now.sample_rate, now.noise_multiplier)
    level = population.DISPLAYED
    near = (min(population.grid_up(own[0], level), 1.0), population.grid_down(own[1], level))
    many = max_steps.cache_info().currsize >= population.EXACT
    for q, sigma in (near, own) if many else (own,):
        yield max_steps(epsilon=budget, delta=delta, sample_rate=q, noise_multiplier=sigma, besides=besides)


def ledger_path(directory: str | os.PathLike[str], client: int) -> Path:
    """Where a client's ledger lies in a run's ledger directory."""
    return Path(directory) / f"client-{client:06d}.jsonl"


def read_entries(path: str | os.PathLike[str]) -> tuple[Entry, ...]:
    """All entries of one ledger file, whoever's it is, chain verified. Raises: LedgerError as `Ledger` does."""
    return load(Path(path), None)[1].entries


def merge(paths: Iterable[str | os.PathLike[str]], out: str | os.PathLike[str]) -> None:
    """Write all entries, sorted by (round, client, attempt), to one file, atomically.

    It is a copy for readers, without the hash chain; the authority is the clients' own files.
    """
    entries = [entry for path in paths for entry in read_entries(path)]
    entries.sort(key=lambda entry: (entry.round, entry.client, entry.attempt))
    text = "".join(json.dumps({**encode_entry(entry), "adjacency": ADJACENCY}) + "\n" for entry in entries)
    out = Path(out)
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=out.parent, prefix=out.name, suffix=".tmp", delete=False
        ) as file:
            try:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                os.chmod(file.name, 0o644)  # temporary files are private, this copy is for readers
                os.replace(file.name, out)
            except BaseException:
                os.unlink(file.name)
                raise
        sync_directory(out.parent)
    except OSError as error:
        if error.errno is not None:
            error.filename = str(
                out
            )  # a failed write names no file, and the temporary file is none that a reader knows
        raise LedgerError(f"{out}: cannot write the merged copy ({error})") from error


def snapshot(paths: Iterable[str | os.PathLike[str]]) -> dict[str, tuple[int, str]]:
    """{client: (entries, head)} of ledger files, for a checkpoint; JSON turns it into lists, which are as good."""
    heads = {}
    for path in paths:
        client, state = load(Path(path), None)
        if state.heads:
            heads[str(client)] = (len(state.entries), state.heads[-1])
    return heads


def fingerprint(paths: Iterable[str | os.PathLike[str]]) -> str:
    """SHA-256 over all ledgers' clients, lengths and heads; independent of the order of paths."""
    return sha256(json.dumps(sorted(snapshot(paths).items())).encode())


def verify_extends(checkpoint: Mapping[str, Sequence[Any]], directory: str | os.PathLike[str]) -> None:
    """Check that today's ledgers begin with what a checkpoint saw: being ahead is fine, what was spent stays
    spent.

    Raises: LedgerError naming the client whose ledger is missing, behind, or different.
    """
    for client, (count, head) in sorted(checkpoint.items()):
        path = ledger_path(directory, int(client))
        if not path.exists():
            raise LedgerError(f"{path}: the checkpoint knows {count} entries of client {client}, the ledger is missing")
        heads = load(path, int(client))[1].heads
        if len(heads) <= count:
            raise LedgerError(f"{path}: {max(len(heads) - 1, 0)} entries, fewer than the checkpoint's {count}")
        if heads[count] != head:
            raise LedgerError(f"{path}: its first {count} entries are not those that the checkpoint saw")


def _events(entries: Iterable[Entry]) -> tuple[Event, ...]:
    counts: dict[tuple[float, float], int] = {}
    for entry in entries:
        if entry.mechanism == "dp":
            setting = (entry.sample_rate, entry.noise_multiplier)
            counts[setting] = counts.get(setting, 0) + entry.steps
    return tuple(Event(sample_rate=q, noise_multiplier=sigma, steps=n) for (q, sigma), n in sorted(counts.items()))
