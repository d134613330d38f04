"""Charges of many clients, on disk with one sync before their work is given out; their ledgers follow when it is back.

A line is either charges that are about to be made, or the keys of those among them that were not made after all,
because the client did not train. The lines are chained and sealed as those of a ledger are.
"""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from fedlsg.privacy.ledger import Ledger
from fedlsg.privacy.ledger_entry import (
    GENESIS,
    Entry,
    Key,
    LedgerError,
    check_line,
    decode_entry,
    encode_entry,
    encode_line,
    sha256,
)
from fedlsg.privacy.ledger_file import appendable, sync_directory, sync_files, write_all


class ChargeJournal:
    """The journal at a path. One process writes it; whatever it holds when a process ends unseen, counts as charged."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._head: str | None = None

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size if self.path.exists() else 0

    def begin(self, entries: Sequence[Entry]) -> None:
        """Note charges; when this returns, they are on disk. Raises LedgerError if they cannot be."""
        self._append({"charged": [encode_entry(entry) for entry in entries]}, sync=True)

    def void(self, entries: Sequence[Entry]) -> None:
        """Note that these charges were not made. Not synced: a note that is lost leaves a charge too many."""
        self._append({"void": [entry.key for entry in entries]}, sync=False)

    def pending(self) -> list[Entry]:
        """Every charge that is not void, in order; none without a file. Raises LedgerError for a damaged line."""
        return list(self._read().values())

    def settle(self, ledger: Callable[[int], Ledger]) -> int:
        """Charge every pending entry that a client's ``ledger`` lacks; then the journal is gone.

        Returns how many were charged. When this returns, the ledgers are on disk.
        """
        missing: dict[int, list[Entry]] = {}
        for entry in self.pending():
            missing.setdefault(entry.client, []).append(entry)
        charged = 0
        for client, entries in missing.items():
            own = ledger(client)
            known = {entry.key for entry in own.entries}
            for entry in entries:
                if entry.key not in known:
                    own.charge(entry, sync=False)
                    charged += 1
        sync_files([ledger(client).path for client in missing])
        with suppress(FileNotFoundError):
            self.path.unlink()
        self._head = None
        return charged

    def _append(self, record: dict[str, object], *, sync: bool) -> None:
        try:
            if self._head is None:
                self._read()
            head, self._head = self._head or GENESIS, None  # an interruption from here on: it is read again
            line = encode_line(record, head)
            with appendable(self.path) as descriptor:
                before = os.fstat(descriptor).st_size
                try:
                    write_all(descriptor, line + b"\n")
                    if sync:
                        os.fsync(descriptor)
                except OSError:
                    os.truncate(self.path, before)
                    raise
            if sync and head == GENESIS:
                sync_directory(self.path.parent)
            self._head = sha256(line)
        except OSError as error:
            raise LedgerError(
                f"{self.path}: cannot write the journal of charges ({error}); nobody may train"
            ) from error

    def _read(self) -> dict[Key, Entry]:
        self._head = GENESIS
        found: dict[Key, Entry] = {}
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return found
        whole, _, _ = content.rpartition(b"\n")  # a crash may tear the last line: its work was not given out
        for number, line in enumerate(whole.split(b"\n") if whole else (), start=1):
            try:
                record = json.loads(line)
                check_line(line, record, self._head)
                for charged in record.get("charged", ()):
                    entry = decode_entry(charged)
                    found[entry.key] = entry
                for client, run, round, attempt in record.get("void", ()):
                    found.pop((client, run, round, attempt), None)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise LedgerError(
                    f"{self.path}, line {number}: {error}; restore the file, or its charges are lost"
                ) from error
            self._head = sha256(line)
        return found
