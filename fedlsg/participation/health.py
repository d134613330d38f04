"""Which clients a round asks after some have failed: those whose last replies came first, and
pauses for the others.

A client fails when nobody knows what became of its reply: none came, or its worker or node was
lost. This, and how often a client was asked, are public. No epsilon rests on who is asked: a client
is charged for each round that it trains in, and refuses one that would pass its budget. Where an
epsilon counts on the draw itself (a trusted server that draws clients in secret) nothing of this is
used.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

LONGEST_PAUSE = 16
"""Rounds that a client is left out at most before it is asked again."""


@dataclass(kw_only=True)
class Health:
    """By client: ``failures`` in a row, ``due``: the first round after its pause.

    ``since``: the first round in which a client failed, 0 if none has.
    ``asked``: training rounds of a client from that round on (before it, the public draw alone says
        who was asked).
    ``left_out``: why a client is in no secure sum.
    """

    since: int = 0
    failures: dict[int, int] = field(default_factory=dict)
    due: dict[int, int] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)

    def count(self, round: int, asked: Iterable[int], failed: Collection[int]) -> None:
        """Enter a training round. The pause after the n-th failure in a row is 2^(n-1) rounds."""
        asked = list(asked)
        self.since = self.since or (round if set(asked) & set(failed) else 0)
        for client in asked if self.since else ():
            self.asked[client] = self.asked.get(client, 0) + 1
            if client in failed:
                failures = self.failures.get(client, 0) + 1
                pause = min(2 ** (failures - 1), LONGEST_PAUSE)
                self.failures[client], self.due[client] = failures, round + 1 + pause
            else:
                self.forgive(client)

    def forgive(self, client: int) -> None:
        """The client has replied, or its node is back: it is as healthy as any other."""
        self.failures.pop(client, None)
        self.due.pop(client, None)

    def waiting(self, round: int, asked: Collection[int]) -> dict[int, str]:
        """Until when each client that a round does not ask is left out, in words."""
        return {
            client: f"left out until round {due}, or until it is back ({self.failures[client]} "
            "failures in a row)"
            for client, due in sorted(self.due.items())
            if due > round and client not in asked and self.failures[client] > 1
        }

    def choose(
        self, candidates: Iterable[int], number: int, *, round: int, least: int = 1
    ) -> list[int]:
        """The clients of a round, ascending; ``candidates``: in the order of the public draw, no
        more than are needed.

        The first ``number`` that are in no pause; then those that failed once. Who failed twice or
        more in a row waits until its pause is over, unless there are fewer than ``least`` others;
        if there is no other, it is asked.
        Guarantee: while nobody fails, the first of the draw.
        """
        ready, paused = list[int](), list[int]()
        for client in candidates:
            (ready if self.due.get(client, 0) <= round else paused).append(client)
            if len(ready) == number:
                break
        paused.sort(key=self.failures.__getitem__)
        once = [client for client in paused if self.failures[client] == 1]
        chosen = (ready + once)[:number]
        wanted = min(least, number) if chosen else number
        missing = max(wanted - len(chosen), 0)
        return sorted(chosen + paused[len(once) :][:missing])

    def state_dict(self) -> dict[str, Any]:
        """All of it, in plain values."""
        return asdict(self)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``; an empty one is that of a run in which nobody was asked."""
        self.since = saved.get("since", 0)
        for name in ("failures", "due", "asked", "left_out"):
            setattr(self, name, dict(saved.get(name, {})))
