"""The ledgers of all clients of one run: their paths, their entries in one file, and their heads in a checkpoint."""

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedlsg.privacy.ledger_entry import ADJACENCY, Entry, LedgerError, encode_entry
from fedlsg.privacy.ledger_file import load, sync_directory


def ledger_path(directory: str | os.PathLike[str], client: int) -> Path:
    """Path of a client's ledger in the ledger directory of a run."""
    return Path(directory) / f"client-{client:06d}.jsonl"


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
                os.chmod(file.name, 0o644)  # temporary files are private, but readers need this one
                os.replace(file.name, out)
            except BaseException:
                os.unlink(file.name)
                raise
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
        path = ledger_path(directory, int(client))
        if not path.exists():
            raise LedgerError(f"{path}: the checkpoint knows {count} entries of client {client}, the ledger is missing")
        heads = load(path, int(client))[1].heads
        if len(heads) <= count:
            raise LedgerError(f"{path}: {max(len(heads) - 1, 0)} entries, fewer than the checkpoint's {count}")
        if heads[count] != head:
            raise LedgerError(f"{path}: its first {count} entries are not those that the checkpoint saw")
