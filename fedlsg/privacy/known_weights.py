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
"""Before the path of a ledger that its owner keeps; other weights are of a run, or of a step whose
ledger ended with it.
"""
STEP = "a private step without ledger="
SECONDS = 60.0
"""Between two writes while steps are made, at least: a write takes some milliseconds."""


def learn_weights() -> None:
    """Let this process recognise what other ones have trained."""
    WEIGHTS.take_in_drafts()
    known = WEIGHTS.entries()
    for lasting in (False, True):
        trained_weights.learn(
            (bytes.fromhex(digest) for digest, of in known if of.startswith(LEDGER) == lasting),
            lasting=lasting,
        )


class WeightsRecord:
    """What a step writes, for later processes. ``ledger``: the path that its owner gave, if any."""

    def __init__(self, writer: Writer, ledger: object = None) -> None:
        self._writer = writer
        self._of = STEP if ledger is None else f"{LEDGER}{ledger}"
        self._pending: dict[bytes, None] = {}
        self._draft = Draft(WEIGHTS)
        self._last = time.monotonic()

    def add(self) -> None:
        """Keep what was written last for the next write of the list."""
        self._pending |= dict.fromkeys(self._writer.moved)
        self.draft()

    def draft(self) -> None:
        """Let other processes know what was written last, until more is written."""
        if moved := [*self._pending, *self._writer.moved]:
            self._draft.write((digest.hex(), self._of) for digest in dict.fromkeys(moved))

    def now_and_then(self) -> None:
        """``write``, if the last time is a while ago."""
        if time.monotonic() - self._last > SECONDS:
            self.write()

    def write(self) -> None:
        """Put into the list what was written last, and what was added."""
        self.add()
        WEIGHTS.remember((digest.hex(), self._of) for digest in self._pending)
        self._pending.clear()
        self._last = time.monotonic()

    def end(self) -> None:
        """``write``; nothing more is written."""
        self.write()
        self._draft.end()
