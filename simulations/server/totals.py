"""Sums over all rounds of a run, and what its pruning round sent."""

from collections.abc import Mapping
from typing import Any

from simulations.rundir.messages import SUMS as BYTES
from strategies.federation.report import RoundReport

SUMS = (*BYTES, "uplink_messages", "downlink_messages")


class Totals:
    """``sums`` of bytes are those of all rounds; of messages, those of training rounds. ``pruning``: of round 0."""

    def __init__(self) -> None:
        self.sums = dict.fromkeys(SUMS, 0)
        self.pruning: dict[str, Any] = {}

    def add(self, report: RoundReport) -> None:
        """Count a training round."""
        for name in SUMS:
            self.sums[name] += getattr(report, name)

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
        """Both, in plain values."""
        return {"totals": self.sums, "pruning": self.pruning}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``."""
        self.sums, self.pruning = saved["totals"], saved["pruning"]
