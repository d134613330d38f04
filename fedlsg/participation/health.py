"""Health of clients: after failures, a round first asks the clients that replied last time, and
others pause.

A client fails if its reply does not arrive, for any reason: its worker or node may be lost. This,
and how often a client was asked, are public. No epsilon depends on who is asked: a client is
charged for each round that it trains in, and refuses one that would exceed its budget. Under a
secret draw of clients by a trusted server, whose epsilon does depend on it, none of this is used.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

LONGEST_PAUSE = 16
"""Most rounds for which a client is left out before it is asked again."""


@dataclass(kw_only=True)
class Health:
    """Failures and pauses of clients, by client.

    since: the first round in which a client failed; 0 if none has.
    failures: failures in a row, of clients whose last training round failed.
    due: the first round after a client's pause.
    asked: training rounds that asked a client, from ``since`` on (before it, the public draw alone
        says who was asked).
    left_out: why a client is in no secure sum.
    """

    since: int = 0
    failures: dict[int, int] = field(default_factory=dict)
    due: dict[int, int] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)

    def count(self, round: int, asked: Iterable[int], failed: Collection[int]) -> None:
        """Enter a training round.

        The pause after the n-th failure in a row is 2^(n-1) rounds, at most LONGEST_PAUSE.
        """
        asked = list(asked)
        if not self.since and not set(asked) & set(failed):
            return
        self.since = self.since or round
        for client in asked:
            self.asked[client] = self.asked.get(client, 0) + 1
            if client in failed:
                failures = self.failures.get(client, 0) + 1
                pause = min(2 ** (failures - 1), LONGEST_PAUSE)
                self.failures[client], self.due[client] = failures, round + 1 + pause
            else:
                self.forgive(client)

    def forgive(self, client: int) -> None:
        """Forget the failures of a client that has replied, or whose node is back."""
        self.failures.pop(client, None)
        self.due.pop(client, None)

    def waiting(self, round: int, asked: Collection[int]) -> dict[int, str]:
        """In words, how long each client with several failures that a round does not ask is left
        out.
        """
        return {
            client: f"left out until round {due}, or until it is back ({self.failures[client]} "
            "failures in a row)"
            for client, due in sorted(self.due.items())
            if due > round and client not in asked and self.failures[client] > 1
        }

    def choose(
        self, candidates: Iterable[int], number: int, *, round: int, least: int = 1
    ) -> list[int]:
        """At most ``number`` clients for a round, ascending.

        The first candidates without a pause come first, then those that failed once. A client that
        failed twice or more in a row waits until its pause is over, unless there are fewer than
        ``least`` others, or none. ``candidates``: in the order of the public draw; no more are read
        than needed.
        Guarantee: while nobody fails, the first ``number`` candidates.
        """
        ready: list[int] = []
        paused: list[int] = []
        for client in candidates:
            (ready if self.due.get(client, 0) <= round else paused).append(client)
            if len(ready) == number:
                break
        once = [client for client in paused if self.failures[client] == 1]
        chosen = (ready + once)[:number]
        needed = min(least, number) if chosen else number
        missing = max(needed - len(chosen), 0)
        others = sorted(
            (client for client in paused if self.failures[client] > 1),
            key=self.failures.__getitem__,
        )
        return sorted(chosen + others[:missing])

    def state_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from a ``state_dict``; an empty one is that of a new run."""
        self.since = saved.get("since", 0)
        for name in ("failures", "due", "asked", "left_out"):
            setattr(self, name, dict(saved.get(name, {})))
