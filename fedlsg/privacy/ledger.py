"""Charges, the entries of one client and their epsilon, and Ledger, the file that a client keeps.

Each charge is on disk before the values that it pays for are released. A ``Ledger`` is one
append-only file, and the authority for the privacy of a client that keeps its own; in a simulation
the driver's ``RunLedger`` has all clients. A hash chain cannot show that the file was cut off at
the end of a line. Checkpoints therefore store a ``snapshot``, and ``verify_extends`` refuses a
ledger that is shorter than that of its checkpoint.
"""

import contextlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fedlsg.accounting import (
    AccountingError,
    EpsilonBound,
    Event,
    compose,
    max_steps,
    population,
    surely_within,
)
from fedlsg.accounting.checks import checked_delta
from fedlsg.accounting.events import grid_down, grid_up
from fedlsg.privacy.ledger_entry import (
    SERVER,
    BudgetError,
    Entry,
    LedgerError,
    encode_entry,
    encode_header,
    encode_line,
    sha256,
)
from fedlsg.privacy.ledger_file import (
    State,
    appendable,
    load,
    stamp_of,
    sync_directory,
    write_all,
)
from fedlsg.privacy.limits import check_limits
from fedlsg.privacy.totals import STRONGEST_READER, ByRound, Reader, Totals, order_of

__all__ = ["Charges", "Entry", "Ledger", "LedgerError"]

MANY_SEARCHES = 16
"""Searches of ``max_steps`` in this process from which a grid of settings is tried first."""
GRID = 8
"""Points an octave of this grid."""


class Charges(ABC):
    """The entries of one client, wherever they are kept, and the epsilon of all of them.

    path: the file, for messages.
    client: the client's number.
    """

    path: Path
    client: int

    def __init__(self) -> None:
        self._so_far, self._rounds = Totals(), ByRound()

    @property
    @abstractmethod
    def entries(self) -> Sequence[Entry]:
        """All entries, in the order in which they were charged. Raises LedgerError for a damaged
        file.
        """

    def of_round(self, round: int, run: str = "") -> tuple[Entry, ...]:
        """The entries of a round of a run."""
        self._totals()  # counts the new entries
        return tuple(self._rounds.of(run, round))

    def next_attempt(self, round: int, run: str = "") -> int:
        """The lowest attempt number of a round that is above all charged ones."""
        return max((entry.attempt + 1 for entry in self.of_round(round, run)), default=0)

    def next_batch(self, entry: Entry, *, repeat: bool = False) -> Entry:
        """An entry of shuffled batches with its ``first_batch``, after all charged ones; others as
        they are.

        A failed attempt has used its batches up, so that no example is in two batches of an epoch.
        ``repeat``: take the batches of the first attempt at the round, if there was one. With
        reproducible noise, and only then, this is the same release again.
        """
        if not entry.batches:
            return entry
        order = order_of(entry)
        if repeat:
            for earlier in self.of_round(entry.round, entry.run):
                if order_of(earlier) == order:
                    return replace(entry, first_batch=earlier.first_batch)
        return replace(entry, first_batch=self._totals().taken.get(order, 0))

    def events(self, reader: Reader = STRONGEST_READER) -> tuple[Event, ...]:
        """The private entries as events for a reader, merged by (q, sigma): see ``Totals.events``.

        Other entries are left out; ``epsilon`` is infinite with them.
        """
        return self._totals().events(reader)

    def epsilon(
        self, delta: float, accountants: Sequence[str] = ("prv", "pld")
    ) -> EpsilonBound | float:
        """Epsilon spent so far, for the strongest reader; ``math.inf`` unless ``has_epsilon``."""
        if not self.has_epsilon:
            return math.inf
        return compose(self.events(), delta=delta, accountants=accountants)

    @property
    def reproducible(self) -> bool:
        """Whether any noise came from a known seed."""
        return not self._totals().secret

    @property
    def has_epsilon(self) -> bool:
        """Whether all entries together have a finite epsilon (``Entry.has_epsilon``)."""
        totals = self._totals()
        return totals.private and totals.secret

    def would_exceed(
        self, entry: Entry, epsilon_budget: float, delta: float, *, run: str | None = None
    ) -> bool:
        """Whether charging ``entry`` would exceed the budget. With ``run``, only the entries of
        that run count.

        Entries with reproducible noise count as if it were secret, although ``epsilon`` is infinite
        with them. A loss that no accountant certifies exceeds it. Lambda of the entries
        (``Entry.log_ratio``) is part of all three steps:
        1. Far from the budget a bound in closed form decides.
        2. Near it, one cached ``max_steps`` gives the number of steps that are allowed at the (q,
           sigma) of ``entry``, next to at most one other setting (a pruning round). Each charge is
           then one integer comparison.
        3. Otherwise ``compose`` decides, also above that number: upper bounds need not be monotone
           to the last step.
        """
        before = self._totals()
        if run is not None:
            before = Totals().extended([e for e in self.entries if e.run == run])
        if not entry.private or not before.private:
            return True
        setting = (entry.sample_rate, entry.noise_multiplier)
        events = before.with_next(entry).events()
        if surely_within(events, epsilon=epsilon_budget, delta=checked_delta(delta)):
            return False
        same = next((e for e in events if (e.sample_rate, e.noise_multiplier) == setting), None)
        if same is not None and len(events) <= 2:
            besides = tuple(e for e in events if e is not same)
            if any(same.steps <= most for most in _allowed(same, besides, epsilon_budget, delta)):
                return False
        try:
            return compose(events, delta=delta).upper > epsilon_budget
        except AccountingError:
            return True

    def check_within(self, entry: Entry, within: tuple[float, float] | None) -> None:
        """Raise BudgetError if ``entry`` and all others would exceed the budget (epsilon, delta).

        ``within``: the budget; None for no limit.
        """
        if within is not None and self.would_exceed(entry, *within):
            raise BudgetError(
                f"this step would pass the privacy budget epsilon={within[0]:g} at "
                f"delta={within[1]:g}, with the {len(self.entries)} entries of {self.path}: no "
                "batch was drawn"
            )

    def check_new(self, entry: Entry) -> None:
        """Raise LedgerError for an entry that is charged already, or of another unit than the
        others.
        """
        if self._other_unit(entry):
            raise LedgerError(
                f"{self.path}: its entries protect one {self.entries[0].unit}, and "
                f"unit={entry.unit} is another: keep a ledger of its own for each unit"
            )
        if self._has(entry):
            raise LedgerError(
                f"{self.path}: client, run, round, attempt = {entry.key} is charged already; every "
                "attempt that adds noise takes the next attempt number"
            )

    def _other_unit(self, entry: Entry) -> bool:
        """Whether any entry has another unit: a file may come from elsewhere."""
        return any(charged.unit != entry.unit for charged in self.entries)

    def _has(self, entry: Entry) -> bool:
        """Whether the key of an entry is charged already."""
        return any(charged.key == entry.key for charged in self.of_round(entry.round, entry.run))

    def _totals(self) -> Totals:
        """The totals of all entries now, of which the new ones are counted first."""
        entries = self.entries
        self._so_far = self._so_far.extended(entries)
        self._rounds.extend(entries)
        return self._so_far


class Ledger(Charges):
    """The ledger of one client at a path; every method reads the file again if it has changed.

        ledger = fedlsg.Ledger("client-1.jsonl")
        ledger.client, ledger.epsilon(1e-5).upper

    ``entries`` are the charges in their order, ``epsilon(delta)`` the bounds of what all of them
    spend together (``.upper`` is the one to report), or ``math.inf``.
    client: whose it is, the partition id; without it the client that the file names.

    Raises LedgerError if the file is damaged (with its line), of another schema or another client,
    or, without ``client``, if there is no file or it names none.
    """

    def __init__(self, path: str | os.PathLike[str], client: int | None = None) -> None:
        super().__init__()
        self.path = Path(path)
        self.client = client = _owner_of(self.path) if client is None else client
        if type(client) is not int or client < SERVER:
            raise ValueError(
                f"expected {client=} to be an integer >= 0: the partition id (or {SERVER}: the "
                "server)"
            )
        self._state = State()
        self._stamp: tuple[int, int, int] | None = None
        self._read()

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self._read().entries

    def begin(self) -> None:
        """Write the header, if there is none. Raises LedgerError if it cannot be written."""
        with self._appendable() as descriptor:
            self._begin(descriptor)

    def charge(self, entry: Entry, *, within: tuple[float, float] | None = None) -> None:
        """Append one entry; when this returns, it is on disk (file and, if new, directory synced).

        The lock is exclusive and the file is read again under it, so if two processes charge the
        same key, one is refused. Earlier entries stay valid after a crash at any moment.

        ``within``: (epsilon, delta) that all entries together may spend, checked under the same
        lock. Raises BudgetError, and charges nothing, if the entry would exceed it
        (``would_exceed``), or the limits of ``fedlsg.privacy.limits``.
        Raises LedgerError for another client's entry, a key already charged, or a path that cannot
        be written.
        """
        if entry.client != self.client:
            raise LedgerError(
                f"{self.path}: expected an entry of client {self.client}, got one of client "
                f"{entry.client}"
            )
        with self._appendable() as descriptor:
            check_limits(entry, self.would_exceed, self.path)
            self.check_within(entry, within)
            self._append(descriptor, entry)

    def snapshot(self) -> tuple[int, str]:
        """(number of entries, hash of the last line), which a checkpoint stores.

        ``verify_extends`` compares it.
        """
        state = self._read()
        return len(state.entries), state.head

    def has(self, head: str) -> bool:
        """Whether one of its lines has this hash: then it has all entries up to that line."""
        return head in self._read().heads

    def _read(self) -> State:
        """The state of the file, parsed again only if the file's identity, size or modification
        time changed.

        Entries that this object has seen must still be there: a deleted, cut or replaced file is
        refused.
        """
        stamp = stamp_of(self.path)
        if stamp is None or stamp != self._stamp:
            state, seen = load(self.path, self.client)[1], self._state.heads
            if state.heads[: len(seen)] != seen:
                raise LedgerError(
                    f"{self.path}: entries seen earlier are gone; restore the file before you "
                    "continue"
                )
            self._state, self._stamp = state, stamp
        return self._state

    @contextlib.contextmanager
    def _appendable(self) -> Iterator[int]:
        """A descriptor that appends to the file, under the lock."""
        try:
            with appendable(self.path) as descriptor:
                yield descriptor
        except OSError as error:
            raise LedgerError(
                f"{self.path}: cannot write the privacy ledger ({error}); nothing may be released"
            ) from error

    def _append(self, descriptor: int, entry: Entry) -> None:
        """Write an entry, after the header if there is none."""
        self.check_new(entry)
        self._begin(descriptor)
        state = self._read()
        line = encode_line(encode_entry(entry), state.head)
        self._write(descriptor, replace(state, entries=(*state.entries, entry)), line)

    def _begin(self, descriptor: int) -> None:
        """Write the header, if there is none.

        It is on disk before any charge: nothing was drawn for a file whose header is torn.
        """
        state = self._read()
        if not state.heads:
            self._write(descriptor, state, encode_header(self.client))

    def _write(self, descriptor: int, state: State, line: bytes) -> None:
        """Append a line to the file, which then has the entries of ``state``.

        Text that a crash left after the last whole line is removed first; a last line that lacks
        only its line feed gets it.
        """
        line_feed = b""
        if os.fstat(descriptor).st_size > state.size:
            os.ftruncate(descriptor, state.size)
        elif state.torn:
            line_feed = b"\n"
        write_all(descriptor, line_feed + line + b"\n")
        os.fsync(descriptor)
        if len(state.entries) < 2:  # the header or the first entry: the file may be new
            sync_directory(self.path.parent)
        status = os.fstat(descriptor)
        self._state = State(state.entries, (*state.heads, sha256(line)), status.st_size)
        self._stamp = (status.st_ino, status.st_size, status.st_mtime_ns)


def _owner_of(path: Path) -> int:
    """The client that a ledger's file names. Raises LedgerError if it names none."""
    owner, state = load(path, None)
    if not state.heads:
        raise LedgerError(
            f"{path}: {'an empty file' if path.exists() else 'no such file'}, so no ledger of any "
            "client; to begin one, say whose it is: Ledger(path, client=0)"
        )
    return owner


def _allowed(
    event: Event, besides: tuple[Event, ...], budget: float, delta: float
) -> Iterator[int]:
    """Numbers of steps of ``event`` that a budget allows, with ``besides``: lower bounds.

    The last one is exact if the steps have no Lambda. After ``MANY_SEARCHES``, the first one is for
    a larger q and a smaller sigma, from a grid, which cost more: another setting may have searched
    for them. Lambda of a step is raised to the grid: sums of Lambdas differ in their last bits, and
    each new value would be a search.
    """
    q, sigma = event.sample_rate, event.noise_multiplier
    settings = [(q, sigma)]
    if max_steps.cache_info().currsize >= MANY_SEARCHES:
        on_grid = (min(grid_up(q, GRID), 1.0), grid_down(sigma, GRID))
        settings.insert(0, on_grid)
    ratio_of_step = 0.0
    if event.log_ratio:
        ratio = math.nextafter(event.log_ratio / event.steps, math.inf)
        ratio_of_step = population.ratio_up(ratio, GRID)
    for q, sigma in settings:
        yield max_steps(
            epsilon=budget,
            delta=delta,
            sample_rate=q,
            noise_multiplier=sigma,
            besides=besides,
            log_ratio=ratio_of_step,
        )
