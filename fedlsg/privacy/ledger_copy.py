"""Copies of a ledger on another machine: which lines a copy lacks, and how they are checked and appended.

A deployed client keeps its ledger on its own disk. Each reply carries the lines since the last one that the server
holds; the copy is the same lines, byte for byte, so that it has the same hashes and reads as a ledger does.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from fedlsg.privacy.ledger_file import (
    GENESIS,
    LedgerError,
    appendable,
    load,
    locked,
    parse,
    sha256,
    sync_directory,
    write_all,
)


def head_of(path: str | os.PathLike[str], client: int) -> str:
    """Hash of the last line of a ledger file; ``GENESIS`` where there is none."""
    return (GENESIS, *load(Path(path), client)[1].heads)[-1]


def lines_since(path: str | os.PathLike[str], client: int, head: str = GENESIS) -> bytes:
    """The lines of a ledger that follow the one with hash ``head``, each with its line feed; from ``GENESIS``, all.

    Lines that a crash tore are left out: they are not part of the chain.
    Raises LedgerError where no line has that hash: the copy is one of another ledger.
    """
    path = Path(path)
    heads = (GENESIS, *load(path, client)[1].heads)
    if head not in heads:
        raise LedgerError(f"{path}: the server holds an entry that this ledger lacks; restore the ledger from a copy")
    if head == heads[-1]:
        return b""
    wanted = set(heads[heads.index(head) + 1 :])
    return b"".join(line + b"\n" for line, digest in _digests(path.read_bytes()) if digest in wanted)


def extend(path: str | os.PathLike[str], client: int, lines: bytes, head: str) -> None:
    """Append to a copy the lines that it lacks; when this returns, they are on disk.

    ``lines`` may begin before the end of the copy; ``head`` is the hash that the copy ends with afterwards.
    Guarantee: the copy grows by whole lines of one unbroken chain, or not at all.
    Raises LedgerError where the lines do not continue the copy, are another client's, or do not end with ``head``.
    """
    path = Path(path)
    state = load(path, client)[1]
    here = (GENESIS, *state.heads)[-1]
    given = list(_digests(lines))
    digests = [digest for _, digest in given]
    new = given[digests.index(here) + 1 :] if here in digests else given
    more = b"".join(line + b"\n" for line, _ in new)
    before = path.read_bytes() if state.heads else b""
    joint = before + (b"\n" if state.torn else b"") + more
    try:
        after = parse(path, client, joint)
    except LedgerError as error:
        raise LedgerError(f"the ledger that client {client} sent does not continue the copy here: {error}") from error
    if (GENESIS, *after.heads)[-1] != head or len(after.heads) != len(state.heads) + len(new):
        raise LedgerError(
            f"the ledger that client {client} sent does not end where it says, or lacks entries of {path}"
        )
    if new:
        with appendable(path) as descriptor, locked(descriptor):
            write_all(descriptor, joint[len(before) :])
            os.fsync(descriptor)
        sync_directory(path.parent)


def _digests(content: bytes) -> Iterator[tuple[bytes, str]]:
    """The lines that may be entries, without their line feed, and the hash of each."""
    for line in content.split(b"\n"):
        if b"}" in line:
            yield line, sha256(line)
