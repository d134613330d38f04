"""How long a client may take for a message before it counts as lost: as given, or learnt from the others' times.

    pace_j     seconds for a unit of work, of client j's last reply to such a message
    limit_i    max(LEAST_SECONDS, FACTOR x work_i x max(pace_i, median of pace_j over j other than i))

Work is a public number (declared examples); times are those that everybody sees who waits for the reply.
"""

import math
from collections import deque
from statistics import median

FACTOR = 10.0
"""A client that takes so many times as long as the others hangs: another machine, or a busy one, is not that slow."""

LEAST_SECONDS = 60.0
"""No learnt limit is shorter: a first message may load data, compile, or wait for a machine that has much to do."""

RECENT = 32
"""Clients whose last times are compared."""


class ClientLimit:
    """``given``: seconds for each client and message, None to learn them. ``learns=False``: only what is given."""

    def __init__(self, given: float | None = None, *, learns: bool = True) -> None:
        self.given, self.learns = given, learns
        self._recent: dict[str, deque[tuple[int, float]]] = {}
        self._own: dict[tuple[str, int], float] = {}

    def took(self, client: int, seconds: float, *, work: float = 1.0, kind: str = "") -> None:
        """A client replied after so many seconds to a message of a kind."""
        pace = seconds / work
        self._own[kind, client] = pace
        self._recent.setdefault(kind, deque(maxlen=RECENT)).append((client, pace))

    def seconds(self, client: int, *, work: float = 1.0, kind: str = "") -> float:
        """The limit of a client; infinite as long as the time of no other client is known."""
        if self.given is not None or not self.learns:
            return math.inf if self.given is None else self.given
        others = [pace for other, pace in self._recent.get(kind, ()) if other != client]
        if not others:
            return math.inf
        return max(LEAST_SECONDS, FACTOR * work * max(self._own.get((kind, client), 0.0), median(others)))
