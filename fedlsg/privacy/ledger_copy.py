"""Copies of a ledger on another machine: find the lines that a copy lacks, check them, append them.

A deployed client keeps its ledger on its own disk. Each reply has the lines after the last one that
the server has. The copy has the same lines, byte for byte, so it has the same hashes and is read as
a ledger.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from fedlsg.accounting.certified import SMALLEST_NOISE
from fedlsg.accounting.events import AccountingError, canonical, split_log_ratio
from fedlsg.privacy.ledger_entry import GENESIS, Entry, LedgerError, lines_with_hashes
from fedlsg.privacy.ledger_file import (
    State,
    appendable,
    load,
    parse,
    sync_directory,
    write_all,
)
from fedlsg.privacy.totals import Totals

LARGEST_BYTES = 2**23
"""Most bytes of a copy: 20,000 charges."""
LARGEST_RATIO = 1.0
"""Largest Lambda of all entries together; that of an honest ledger is far smaller."""
LARGEST_STEPS = 10**12
"""Most steps of all entries together."""
MOST_EPOCHS = 10**5
"""Most epochs of shuffled batches of all entries together."""


def head_of(path: str | os.PathLike[str], client: int) -> str:
    """Hash of the last line of a ledger file; ``GENESIS`` if there is none."""
    return load(Path(path), client)[1].head


def lines_since(path: str | os.PathLike[str], client: int, head: str = GENESIS) -> bytes:
    """The lines of a ledger after the one with hash ``head``, each with its line feed; all after
    ``GENESIS``.

    Lines that a crash tore are left out: they are not part of the chain.
    Raises LedgerError if no line has that hash: the copy is of another ledger.
    """
    path = Path(path)
    heads = (GENESIS, *load(path, client)[1].heads)
    if head not in heads:
        raise LedgerError(
            f"{path}: the server holds an entry that this ledger lacks; restore the ledger from a "
            "copy"
        )
    if head == heads[-1]:
        return b""
    wanted = set(heads[heads.index(head) + 1 :])
    return b"".join(
        line + b"\n" for line, digest in lines_with_hashes(path.read_bytes()) if digest in wanted
    )


def extend(path: str | os.PathLike[str], client: int, lines: bytes, head: str) -> None:
    """Append to a copy the lines that it lacks; when this returns, they are on disk.

    lines: they may begin before the end of the copy.
    head: the hash of the last line afterwards.
    Guarantee: the copy grows by whole lines of one unbroken chain, or not at all. The time to read
    and to compose it is bounded.
    Raises LedgerError if the lines do not continue the copy, are another client's, or do not end
    with ``head``, for a copy above ``LARGEST_BYTES``, and as ``check_bounded``.
    """
    path = Path(path)
    _check_size(client, lines)
    state = load(path, client)[1]
    received = list(lines_with_hashes(lines))
    digests = [digest for _, digest in received]
    new = received
    if state.head in digests:  # lines up to there are in the copy
        new = received[digests.index(state.head) + 1 :]
    more = b"".join(line + b"\n" for line, _ in new)
    before = path.read_bytes()[: state.size] if state.heads else b""
    separator = b"" if before.endswith(b"\n") or not before else b"\n"
    joint = before + separator + more
    _check_size(client, joint)
    try:
        after = parse(path, client, joint)
    except LedgerError as error:
        raise LedgerError(
            f"the ledger that client {client} sent does not continue the copy here: {error}"
        ) from error
    if after.head != head or len(after.heads) != len(state.heads) + len(new):
        raise LedgerError(
            f"the ledger that client {client} sent does not end where it says, or lacks entries of "
            f"{path}"
        )
    check_bounded(client, after.entries)
    if new:
        with appendable(path) as descriptor:
            os.ftruncate(descriptor, len(before))  # text that a crash left
            write_all(descriptor, joint[len(before) :])
            os.fsync(descriptor)
        sync_directory(path.parent)


def verify(client: int, lines: bytes, head: str) -> None:
    """Check a whole ledger as ``extend`` does for an empty copy, and write nothing. Raises
    LedgerError.
    """
    _check_size(client, lines)
    state: State = parse(Path(f"the ledger of client {client}"), client, lines)
    if state.head != head:
        raise LedgerError(f"the ledger that client {client} sent does not end where it says")
    check_bounded(client, state.entries)


def check_bounded(client: int, entries: Sequence[Entry]) -> None:
    """Raise LedgerError, with the reason, for entries without an epsilon that takes seconds.

    An honest client stops long before, as its ``epsilon-max`` is finite. One such ledger would make
    the epsilon of the run infinite.
    """
    whose = f"the ledger of client {client}"
    if not all(entry.private for entry in entries):
        raise LedgerError(f"{whose} has a release without privacy: no epsilon holds for its data")
    if sum(entry.steps for entry in entries) > LARGEST_STEPS:
        raise LedgerError(f"{whose} has more than {LARGEST_STEPS:,} steps")
    epochs = sum(entry.steps // entry.batches + 2 for entry in entries if entry.batches)
    if epochs > MOST_EPOCHS:
        raise LedgerError(
            f"{whose} has {epochs:,} epochs of shuffled batches, more than {MOST_EPOCHS:,}"
        )
    plain, log_ratio = split_log_ratio(Totals().extended(entries).events())
    if log_ratio > LARGEST_RATIO:
        raise LedgerError(
            f"{whose} has log_ratio={log_ratio:.3g} in all, above {LARGEST_RATIO:g}: no epsilon "
            "holds"
        )
    try:
        least = min((event.noise_multiplier for event in canonical(plain)), default=1.0)
    except AccountingError as error:
        raise LedgerError(f"{whose}: {error}") from None
    if least < SMALLEST_NOISE:
        raise LedgerError(
            f"{whose} has noise multipliers of {least:.3g} together, below {SMALLEST_NOISE:g}: no "
            "epsilon is certified"
        )


def _check_size(client: int, lines: bytes) -> None:
    if len(lines) > LARGEST_BYTES:
        raise LedgerError(
            f"the ledger of client {client} has {len(lines):,} bytes, more than {LARGEST_BYTES:,}"
        )
