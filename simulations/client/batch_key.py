"""The secret key of the orders in which a client shuffles its rows, kept for the whole run.

    clients/client-000003/batches.key    32 random bytes, then the SHA-256 of what they are made for

With the same key, two processes draw the same batches of an epoch: no example is in two of them.
"""

import hashlib
import secrets
from pathlib import Path

from fedlsg.privacy import Entry, LedgerError
from fedlsg.simulations.storage.atomic_files import write_atomically

KEY_BYTES = 32


def batch_key(folder: Path, entry: Entry, *, batch_size: int, rows: str = "") -> bytes:
    """The key of a client in ``folder``; its first charge makes the key.

    ``entry``: the charge that is made now.
    ``rows``: a digest of the client's rows in their order, where nothing else keeps them the same
    within a run.
    Raises LedgerError if the key is lost or damaged, or was made for another batch size or other
    rows: nobody knows then who took part in this epoch.
    """
    path = folder / "batches.key"
    made_for = hashlib.sha256(f"{entry.num_examples} {batch_size} {rows}".encode()).digest()
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        if entry.first_batch:
            raise LedgerError(
                f"{path} is missing: without it examples could be in two batches of an epoch, "
                "which the ledger does not count; restore the file from a copy, or start a new run"
            ) from None
        content = secrets.token_bytes(KEY_BYTES) + made_for
        write_atomically(path, content, private=True)
    if len(content) != KEY_BYTES + len(made_for):
        raise LedgerError(
            f"{path} is damaged: expected {KEY_BYTES + len(made_for)} bytes; restore it from a "
            "copy, or start a new run"
        )
    if content[KEY_BYTES:] != made_for:
        raise LedgerError(
            f"{path} is of another batch size than {batch_size}, or of other training rows: "
            "examples could be in two batches of an epoch, which the ledger does not count; "
            "restore them, or start a new run"
        )
    return content[:KEY_BYTES]
