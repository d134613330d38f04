"""Digests of weights that this user's steps and runs have trained, for other processes:
they are known as trained on somebody's rows, in any file.

The list is one of its user's own (``user_lists``). ``trained_weights`` is the same within one
process, and has the digests. What a step wrote last is in a draft of the list after each step, for
processes that begin before it ends. Weights of other users and machines are not recognised.
"""

import time

from fedlsg.privacy import trained_weights
from fedlsg.privacy.trained_weights import Writer
from fedlsg.user_lists import Draft, UserList

WEIGHTS = UserList(
    name="known-weights", kept=10_000, lost="later processes will not recognise these weights"
)
LEDGER = "ledger "
"""Before the head and the path of a ledger that its owner keeps; other weights are of a run, or of
a step whose ledger ended with it.
"""
STEP = "a private step without ledger="
SECONDS = 60.0
"""Between two writes while steps are made, at least: a write takes some milliseconds."""


def learn_weights() -> None:
    """Let this process recognise what other ones have trained."""
    WEIGHTS.take_in_drafts()
    by_writer: dict[str, list[bytes]] = {}
    for digest, of in WEIGHTS.entries():
        by_writer.setdefault(of, []).append(bytes.fromhex(digest))
    for of, digests in by_writer.items():
        head, _, path = (
            of.removeprefix(LEDGER).partition(" ") if of.startswith(LEDGER) else [""] * 3
        )
        trained_weights.learn(digests, path=path, head=head)


class WeightsRecord:
    """What a step writes, for later processes."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._pending: dict[bytes, str] = {}
        """What each digest is of: see ``LEDGER``."""
        self._draft = Draft(WEIGHTS)
        self._last = time.monotonic()

    def _written(self) -> dict[bytes, str]:
        """Digests of what was written last, each with what it is of."""
        path, head = self._writer.path, self._writer.head
        return dict.fromkeys(self._writer.moved, f"{LEDGER}{head} {path}" if path else STEP)

    def add(self) -> None:
        """Keep what was written last for the next write of the list."""
        self._pending |= self._written()
        self.draft()

    def draft(self) -> None:
        """Let other processes know what was written last, until more is written."""
        if written := self._pending | self._written():
            self._draft.write((digest.hex(), of) for digest, of in written.items())

    def now_and_then(self) -> None:
        """``write``, if the last time is a while ago."""
        if time.monotonic() - self._last > SECONDS:
            self.write()

    def write(self) -> None:
        """Put into the list what was written last, and what was added."""
        self.add()
        WEIGHTS.remember((digest.hex(), of) for digest, of in self._pending.items())
        self._pending.clear()
        self._last = time.monotonic()

    def end(self) -> None:
        """``write``; nothing more is written."""
        self.write()
        self._draft.end()
