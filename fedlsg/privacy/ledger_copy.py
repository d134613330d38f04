"""Copies of a ledger on another machine: find the lines that a copy lacks, check them, append them.

A deployed client keeps its ledger on its own disk. Each reply has the lines after the last one that the server has.
The copy has the same lines, byte for byte, so it has the same hashes and is read as a ledger.
"""

import os
from pathlib import Path

from fedlsg.privacy.ledger_entry import GENESIS, LedgerError, lines_with_hashes, parse
from fedlsg.privacy.ledger_file import appendable, load, locked, sync_directory, write_all


def head_of(path: str | os.PathLike[str], client: int) -> str:
    """Hash of the last line of a ledger file; ``GENESIS`` if there is none."""
    return load(Path(path), client)[1].head


def lines_since(path: str | os.PathLike[str], client: int, head: str = GENESIS) -> bytes:
    """The lines of a ledger that follow the one with hash ``head``, each with its line feed; from ``GENESIS``, all.

    Lines that a crash tore are left out: they are not part of the chain.
    Raises LedgerError if no line has that hash: the copy is of another ledger.
    """
    path = Path(path)
    heads = (GENESIS, *load(path, client)[1].heads)
    if head not in heads:
        raise LedgerError(f"{path}: the server holds an entry that this ledger lacks; restore the ledger from a copy")
    if head == heads[-1]:
        return b""
    wanted = set(heads[heads.index(head) + 1 :])
    return b"".join(line + b"\n" for line, digest in lines_with_hashes(path.read_bytes()) if digest in wanted)


def extend(path: str | os.PathLike[str], client: int, lines: bytes, head: str) -> None:
    """Append to a copy the lines that it lacks; when this returns, they are on disk.

    ``lines`` may begin before the end of the copy; ``head`` is the hash that the copy ends with afterwards.
    Guarantee: the copy grows by whole lines of one unbroken chain, or not at all.
    Raises LedgerError if the lines do not continue the copy, are another client's, or do not end with ``head``.
    """
    path = Path(path)
    state = load(path, client)[1]
    here = state.head
    given = list(lines_with_hashes(lines))
    digests = [digest for _, digest in given]
    new = given[digests.index(here) + 1 :] if here in digests else given
    more = b"".join(line + b"\n" for line, _ in new)
    before = path.read_bytes() if state.heads else b""
    joint = before + (b"\n" if state.torn else b"") + more
    try:
        after = parse(path, client, joint)
    except LedgerError as error:
        raise LedgerError(f"the ledger that client {client} sent does not continue the copy here: {error}") from error
    if after.head != head or len(after.heads) != len(state.heads) + len(new):
        raise LedgerError(
            f"the ledger that client {client} sent does not end where it says, or lacks entries of {path}"
        )
    if new:
        with appendable(path) as descriptor, locked(descriptor):
            write_all(descriptor, joint[len(before) :])
            os.fsync(descriptor)
        sync_directory(path.parent)
