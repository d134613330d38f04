"""Rounds of several processes, one after the other: a process waits before each round until it is let through.

process   gate = Gate.from_environment(); gate.wait(n) before round n
driver    Held(folder).round(n): let round n through, and return when the process stands before the next one
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

FOLDER = "FEDLSG_BENCHMARK_GATE"
POLL_SECONDS = 0.002
PATIENCE_SECONDS = 900.0


@dataclass(frozen=True)
class Gate:
    """Two kinds of empty files in a folder: ``before-n`` by the process, ``go-n`` by the driver."""

    folder: Path

    @classmethod
    def from_environment(cls) -> "Gate":
        """The gate of this process, whose folder the driver put into its environment."""
        return cls(Path(os.environ[FOLDER]))

    def wait(self, round: int) -> None:
        """Say that round ``round`` comes next, and wait. TimeoutError where the driver has gone without a word."""
        (self.folder / f"before-{round}").touch()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (self.folder / f"go-{round}").exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody let round {round} through")
            time.sleep(POLL_SECONDS)

    def arrived(self, round: int) -> bool:
        """Whether the process stands before ``round``."""
        return (self.folder / f"before-{round}").exists()

    def let_through(self, round: int) -> None:
        """Start ``round``."""
        (self.folder / f"go-{round}").touch()
