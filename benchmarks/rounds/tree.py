"""CPU seconds of a process and all its descendants, including Ray's and Flower's servers (Linux)."""

import time
from contextlib import suppress

from benchmarks.flower.flower_processes import Process, living, of_run


class Tree:
    """The descendants of a process, also those whose parent is gone; remembered from one look to the next."""

    def __init__(self, root: int) -> None:
        self.root = root
        self._known: set[Process] = set()
        self._seconds: dict[Process, float] = {}

    def cpu_seconds(self) -> float:
        """User and system seconds of all of them so far; of one that has ended, as they were at the last look."""
        alive = of_run(living(), {self.root}, self._known)
        self._known |= alive
        for process in alive:
            with suppress(OSError):
                self._seconds[process] = time.clock_gettime(_clock_of(process.pid))
        return sum(self._seconds.values())


def _clock_of(pid: int) -> int:
    """The CPU clock of a process, as clock_getcpuclockid(3) makes it: to the nanosecond, where /proc counts ticks."""
    return (~pid << 3) | 2
