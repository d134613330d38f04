"""Sums over the rounds of a run, which its summary reports and a resumed run continues."""

from collections.abc import Mapping
from typing import Any

from simulations.rundir.tables import BYTES, SUMS, Times
from strategies.federation.report import RoundReport

CLIENTS = ("asked", "answered", "rejected", "dropped", "late")
"""What a report says of clients."""


class Totals:
    """``sums`` of bytes are those of all rounds; of messages, those of training rounds.

    ``times``: seconds by what they went into. ``pruning``: of the pruning round. ``clients``: selections of training
    rounds by what became of them; those who answered, and those who were late, have trained.
    """

    def __init__(self) -> None:
        self.sums = dict.fromkeys(SUMS, 0)
        self.clients = dict.fromkeys(CLIENTS, 0)
        self.pruning: dict[str, Any] = {}
        self.times: dict[str, float] = {}
        self._started = False

    def note_start(self, seconds: float) -> None:
        """Count how long this process took until its first round."""
        if not self._started:
            self.times["start"] = self.times.get("start", 0.0) + seconds
        self._started = True

    def add(self, report: RoundReport, times: Times) -> None:
        """Count a training round."""
        for name, seconds in vars(times).items():
            phase = name.removesuffix("_seconds")
            self.times[phase] = self.times.get(phase, 0.0) + seconds
        for name in SUMS:
            self.sums[name] += getattr(report, name)
        for name in CLIENTS:
            self.clients[name] += len(getattr(report, name))

    def add_pruning(self, report: RoundReport, *, noise_multiplier: float) -> None:
        """Count an attempt of the pruning round.

        Its messages are not in ``sums``: the bytes of dense training are computed from the training messages.
        """
        before = self.pruning
        self.pruning = {
            **{name: before.get(name, 0) + getattr(report, name) for name in BYTES},
            "messages": before.get("messages", 0) + len(report.sent),
            "noise_multiplier": noise_multiplier,
            "answered": list(report.answered),
            "rejected": {str(client): why for client, why in report.rejected.items()},
        }
        for name in BYTES:
            self.sums[name] += getattr(report, name)

    def state_dict(self) -> dict[str, Any]:
        """All of it, in plain values."""
        return {"totals": self.sums, "pruning": self.pruning, "clients": self.clients, "times": self.times}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``."""
        self.sums, self.pruning = saved["totals"], saved["pruning"]
        self.clients = saved.get("clients", dict.fromkeys(CLIENTS, 0))
        self.times = dict(saved.get("times", {}))
