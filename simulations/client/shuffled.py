"""A client's shuffled batches: its ledger says which ones come next, and a key of its own in which order rows are.

The order of an epoch has to last over rounds, and over a crash: with another one, an example could be in two batches of
the epoch, and only one is charged. The key is made before anything is charged, is on disk then, and never leaves the
client (in a simulation on Ray: nor the driver and its workers). No claim rests on its being secret.

The order gives places to rows, and the batch size cuts the places into batches. With another batch size, or with other
rows in the places, an example could be in a second batch of the same epoch. So the key is bound to both.
"""

import hashlib
import secrets
from pathlib import Path

from fedlsg.privacy import Entry, LedgerError, ShuffledBatches
from fedlsg.randomness import SecretStream, reproducible_stream
from simulations.plan.plan import Base
from simulations.rundir.files import write_atomically

KEY_BYTES = 32


def batch_key(folder: Path, entry: Entry, *, batch_size: int, rows: str = "") -> bytes:
    """The key of a client's orders, made with its first charge, which ``entry`` would be.

    ``rows``: a digest of the client's rows in their order, where nothing else keeps them the same within a run.
    Raises LedgerError if the key is lost or damaged, or was made for another batch size or other rows: nobody knows
    then who took part in this epoch.
    """
    path = folder / "batches.key"
    made_for = hashlib.sha256(f"{entry.num_examples} {batch_size} {rows}".encode()).digest()
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        if entry.first_batch:
            raise LedgerError(
                f"{path} is missing: without it examples could be in two batches of an epoch, which the ledger does "
                "not count; restore the file from a copy, or start a new run"
            ) from None
        content = secrets.token_bytes(KEY_BYTES) + made_for
        write_atomically(path, content, private=True)
    if len(content) != KEY_BYTES + len(made_for):
        raise LedgerError(
            f"{path} is damaged: expected {KEY_BYTES + len(made_for)} bytes; restore it from a copy, or start a new run"
        )
    if content[KEY_BYTES:] != made_for:
        raise LedgerError(
            f"{path} is of another batch size than {batch_size}, or of other training rows: examples could be in two "
            "batches of an epoch, which the ledger does not count; restore them, or start a new run"
        )
    return content[:KEY_BYTES]


def batches_of(base: Base, entry: Entry, key: bytes | None) -> ShuffledBatches:
    """The batches that an entry pays for. Without a key, those of a reproducible run, which follow from its seed."""

    def order(epoch: int) -> SecretStream:
        if key is None:
            return reproducible_stream(base.settings.seed, *base.stream, "batches", entry.client, epoch)
        return SecretStream(hashlib.sha256(key + b"\x1fepoch\x1f%d" % epoch).digest())

    return ShuffledBatches(
        num_examples=entry.num_examples, batch_size=base.local.shuffled, first=entry.first_batch, order=order
    )
