"""Digests of weights that this user's steps and runs have trained, for later processes:
they are known as trained on somebody's rows, in any file.

The list is one of its user's own (``user_lists``). ``trained_weights`` is the same within one
process, and has the digests. Weights of other users and machines are not recognised.
"""

import time

from fedlsg.privacy import trained_weights
from fedlsg.privacy.trained_weights import Writer
from fedlsg.user_lists import UserList

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
    """Let this process recognise what earlier ones have trained."""
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
        self._last = time.monotonic()

    def add(self) -> None:
        """Keep what was written last for the next write of the list."""
        self._pending |= dict.fromkeys(self._writer.moved)

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
