"""The ledger of a simulated run: the driver charges all clients of a round with one record, before
any of them draws.

It is one append-only file, which only the driver writes: a header, then records in a hash chain,
sealed as the lines of a ``Ledger`` are. A record holds charges (``encode_entries``), or the keys of
charges that were not used ("void"): the client reports that it drew nothing, or was never asked.
Every other charge counts, also after a crash. All records are synced: a checkpoint has their
number, and a run does not continue if one is lost. A line that a crash tore was not synced, so
nothing was drawn for it; the next append removes it. Other text than the beginning of a record is
damage.

The folder may also have ledgers of single clients (of a run on Flower's engine, or a deployment): a
client has the entries of both.
"""

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedlsg.bounded import MOST_CHARGES, parse_json
from fedlsg.privacy.ledger import Charges, Ledger
from fedlsg.privacy.ledger_entry import (
    ADJACENCY,
    GENESIS,
    SERVER,
    Entry,
    Key,
    LedgerError,
    check_line,
    decode_entries,
    decode_entry,
    encode_entries,
    encode_line,
    has_its_end,
    may_be_torn,
    sha256,
)
from fedlsg.privacy.ledger_file import (
    DAMAGED,
    appendable,
    check_extends,
    check_heads,
    ledger_path,
    stamp_of,
    sync_directory,
    write_all,
)
from fedlsg.privacy.totals import ByRound, Totals

RUN = "run"
"""Name of the run's ledger among the ledgers of a checkpoint, and of its file."""
JOURNAL = "journal.jsonl"
"""File of a form that is no longer read. A folder with it is refused, as its charges count."""
CLIENTS_REMEMBERED = 4096
"""Clients whose totals are kept; those of others are computed again from their entries."""
HEADER = {"schema": 3, "ledger": RUN, "adjacency": ADJACENCY}
"""The first record."""


class Records:
    """The records of a file.

    heads: the hash of each record.
    entries: the charges by client, in order, without void ones.
    keys: those of all these charges.
    voids: the number of void charges by client.
    size: bytes up to the end of the last whole record.
    line_ended: whether that record has its line feed.
    """

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.entries: dict[int, list[Entry]] = {}
        self.keys: set[Key] = set()
        self.voids: dict[int, int] = {}
        self.size, self.line_ended = 0, True

    @property
    def head(self) -> str:
        """The hash of the last record; ``GENESIS`` if there is none."""
        return self.heads[-1] if self.heads else GENESIS

    def read(self, path: Path, content: bytes) -> None:
        """Read bytes that follow the records so far. Raises LedgerError, with file and line, for
        damage.
        """
        whole, _, last = content.rpartition(b"\n")
        self.line_ended = not has_its_end(last)
        for line in [*whole.split(b"\n"), last]:
            try:
                if line is last and self.line_ended:
                    self._check_torn(line)
                elif line:
                    self.add(parse_json(line, MOST_CHARGES), line)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                number = len(self.heads) + 1
                raise LedgerError(
                    f"{path}, line {number}: {error}; restore the file, it is the authority"
                ) from error
        self.size += len(content) - (len(last) if self.line_ended else 0)

    def add(self, record: dict[str, Any], line: bytes) -> None:
        """Add the record of one line. Raises ValueError, TypeError or KeyError if it is no record,
        or out of order.
        """
        check_line(line, record, self.head)
        if "charged" in record:
            self.charge(_charged(line))
        elif "void" in record:
            self.void(
                [(client, run, round, attempt) for client, run, round, attempt in record["void"]]
            )
        elif self.heads or record != HEADER:
            raise LedgerError(f"expected charges, or the header {HEADER}, got {record}")
        self.heads.append(sha256(line))

    def _check_torn(self, line: bytes) -> None:
        """Raise LedgerError for a last line that no crash leaves."""
        header = encode_line(HEADER, GENESIS)
        records = (b'{"charged": ', b'{"void": ') if self.heads else (header,)
        if not may_be_torn(line, records, self.head):
            raise LedgerError(DAMAGED)

    def charge(self, entries: Sequence[Entry]) -> None:
        """Add charges. Raises LedgerError for a key that is there."""
        for entry in entries:
            if entry.key in self.keys:
                raise LedgerError(f"client, run, round, attempt = {entry.key} is charged already")
            self.keys.add(entry.key)
            self.entries.setdefault(entry.client, []).append(entry)

    def void(self, keys: Sequence[Key]) -> None:
        """Remove charges; keys that are not there are left out."""
        for key in keys:
            if key in self.keys:
                self.keys.remove(key)
                client = key[0]
                self.entries[client] = [entry for entry in self.entries[client] if entry.key != key]
                self.voids[client] = self.voids.get(client, 0) + 1


class RunLedger:
    """The ledgers in the folder of a run. Every method first reads the bytes that are new.

    Raises LedgerError, naming file and line, for a damaged file, and if records that it has seen
    are gone.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.path = self.folder / f"{RUN}.jsonl"
        self._records = Records()
        self._stamp: tuple[int, int, int] | None = None
        self._folder_synced = False
        self._seen = (0, GENESIS)
        self._clients: OrderedDict[int, ClientCharges] = OrderedDict()
        if (self.folder / JOURNAL).exists():
            raise LedgerError(
                f"{self.folder / JOURNAL}: charges that count, in a form that commit 293cb648 of "
                "November 2026 reads, and no later one"
            )
        self.read()

    def of(self, client: int) -> "ClientCharges":
        """The charges of a client; of ``SERVER``, those of all clients if the server adds the
        noise.
        """
        charges = self._clients.pop(client, None) or ClientCharges(self, client)
        self._clients[client] = charges  # the newest is last
        if len(self._clients) > CLIENTS_REMEMBERED:
            self._clients.popitem(last=False)
        return charges

    def clients(self) -> list[int]:
        """Every client with a charge or a ledger of its own; without the server."""
        names = (path.stem.removeprefix("client-") for path in self.folder.glob("client-*.jsonl"))
        with_ledger = {int(name) for name in names if name.isdecimal()}
        charged = {client for client, entries in self.read().entries.items() if entries}
        return sorted((with_ledger | charged) - {SERVER})

    def charge(self, entries: Sequence[Entry]) -> None:
        """Append entries as one record; when this returns, they are on disk.

        Raises LedgerError, and then nobody may train.
        """
        for entry in entries:
            self.of(entry.client).check_new(entry)
        if len({entry.key for entry in entries}) < len(entries):
            raise LedgerError(f"{self.path}: a client is charged twice in one record")
        if entries:
            self._append(entries, ())

    def void(self, entries: Sequence[Entry]) -> None:
        """Append that nothing was drawn for these entries; those that are not charged here are left
        out.
        """
        keys = [entry.key for entry in entries if entry.key in self.read().keys]
        if keys:
            self._append((), keys)

    def snapshot(self) -> tuple[int, str]:
        """(number of records, hash of the last one), which a checkpoint stores.

        ``verify_extends`` compares it.
        """
        records = self.read()
        return max(len(records.heads) - 1, 0), records.head

    def read(self) -> Records:
        """The records of the file now."""
        stamp, before, known = stamp_of(self.path), self._stamp, self._records
        if stamp == before:
            return known
        records = Records()
        if stamp is not None and before is not None:
            same_file, grown = stamp[0] == before[0], stamp[1] >= known.size
            if same_file and grown:
                records = known  # and the new bytes are added to them
        self._stamp, self._records = None, Records()  # after an error, everything is read again
        if stamp is not None:
            records.read(self.path, _content(self.path, records.size))
        count, head = self._seen
        if count and records.heads[count - 1 : count] != [head]:
            raise LedgerError(
                f"{self.path}: records seen earlier are gone; restore the file before you continue"
            )
        self._keep(records, stamp)
        return records

    def _keep(self, records: Records, stamp: tuple[int, int, int] | None) -> None:
        """Keep the records of a file with this stamp, and their last hash."""
        self._records, self._stamp, self._seen = records, stamp, (len(records.heads), records.head)

    def _append(self, entries: Sequence[Entry], void: Sequence[Key]) -> None:
        """Write one record of charges, or of void ones.

        After an interruption the file is read again: the record counts if it is whole.
        """
        record = {"charged": encode_entries(entries)} if entries else {"void": void}
        try:
            with appendable(self.path) as descriptor:
                records = self.read()
                self._stamp = None
                before = b"" if records.line_ended else b"\n"
                header = [] if records.heads else [encode_line(HEADER, GENESIS)]
                line = encode_line(record, sha256(header[0]) if header else records.head)
                text = before + b"\n".join([*header, line, b""])
                if os.fstat(descriptor).st_size > records.size:
                    os.truncate(self.path, records.size)  # torn by a crash
                try:
                    write_all(descriptor, text)
                    os.fsync(descriptor)
                except OSError:
                    os.truncate(self.path, records.size)
                    raise
                after = os.fstat(descriptor)
            if not self._folder_synced:  # the file may be one that a killed process left
                sync_directory(self.folder)
                self._folder_synced = True
        except OSError as error:
            raise LedgerError(
                f"{self.path}: cannot write the privacy ledger ({error}); nobody may train"
            ) from error
        records.charge(entries)
        records.void(void)
        records.heads += map(sha256, [*header, line])
        records.size, records.line_ended = records.size + len(text), True
        self._keep(records, (after.st_ino, after.st_size, after.st_mtime_ns))


class ClientCharges(Charges):
    """The entries of one client in the files of a run: of its own ledger, then of the run's."""

    def __init__(self, ledger: RunLedger, client: int) -> None:
        super().__init__()
        self._ledger, self.client = ledger, client
        self.path, self._own_path = ledger.path, os.fspath(ledger_path(ledger.folder, client))
        self._own: Ledger | None = None
        self._counted = (0, 0)

    @property
    def own(self) -> Ledger | None:
        """The client's own ledger, if there is one by now."""
        if self._own is None and os.path.exists(self._own_path):
            self._own = Ledger(self._own_path, client=self.client)
        return self._own

    @property
    def entries(self) -> Sequence[Entry]:
        here = self._ledger.read().entries.get(self.client, [])
        before = self._before()
        return [*before, *here] if before and here else before or here

    def charge(self, entry: Entry, *, within: tuple[float, float] | None = None) -> None:
        """Charge one entry in the run's ledger, as ``Ledger.charge`` does."""
        self.check_within(entry, within)
        self._ledger.charge([entry])

    def _other_unit(self, entry: Entry) -> bool:
        # the first entry is enough: all later ones have its unit
        here = self._ledger.read().entries.get(self.client, [])[:1]
        return any(known.unit != entry.unit for known in (*self._before(), *here))

    def _has(self, entry: Entry) -> bool:
        return entry.key in self._ledger.read().keys or any(
            known.key == entry.key for known in self._before()
        )

    def _before(self) -> Sequence[Entry]:
        """Entries that are not in the run's ledger."""
        return () if self.own is None else self.own.entries

    def _totals(self) -> Totals:
        counted = len(self._before()), self._ledger.read().voids.get(self.client, 0)
        if counted != self._counted:
            self._counted, self._so_far, self._rounds = counted, Totals(), ByRound()
        return super()._totals()


def verify_extends(checkpoint: Mapping[str, Sequence[Any]], folder: str | os.PathLike[str]) -> None:
    """Check that the ledgers in a folder begin with the entries of a checkpoint; they may have
    more.

    ``checkpoint``: the snapshots of ledgers, by client; that of the run's ledger is ``RUN``.
    Raises LedgerError naming the ledger that is missing, shorter, or different.
    """
    for name, (count, head) in sorted(checkpoint.items()):
        if name == RUN:
            ledger = RunLedger(folder)
            check_heads(ledger.path, ledger.read().heads, count, head)
        else:
            check_extends(ledger_path(folder, int(name)), int(name), count, head)


@lru_cache(maxsize=1024)  # by its arguments alone: never stale; a resume reads a file several times
def _charged(line: bytes) -> tuple[Entry, ...]:
    """The entries of a line that was checked."""
    entries = parse_json(line, MOST_CHARGES)["charged"]
    return tuple(
        map(decode_entry, entries) if isinstance(entries, list) else decode_entries(entries)
    )


def _content(path: Path, start: int) -> bytes:
    """The bytes of a file from ``start`` on. Raises LedgerError if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read()
    except OSError as error:
        raise LedgerError(f"{path}: cannot read the privacy ledger ({error})") from error
