"""Let several processes take rounds one after the other: a process waits before each round for
permission.

process   gate = Gate.from_environment(); gate.wait(n) before round n
driver    Held(folder).round(n): start round n, and return when the process waits before the next
          one
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
        """Announce round ``round``, and wait. Raises TimeoutError if the driver is gone."""
        (self.folder / f"before-{round}").touch()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (self.folder / f"go-{round}").exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody let round {round} through")
            time.sleep(POLL_SECONDS)

    def has_arrived(self, round: int) -> bool:
        """Whether the process waits before ``round``."""
        return (self.folder / f"before-{round}").exists()

    def let_through(self, round: int) -> None:
        """Start ``round``."""
        (self.folder / f"go-{round}").touch()
