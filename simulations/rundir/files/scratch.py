"""A temporary folder that is removed however this process ends, also by SIGKILL: it may hold clients' batches.

Run as a script, this module is the process that removes it.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SECONDS = 10.0
"""How long processes that use the folder are ended before it is removed."""


@contextmanager
def scratch(base: str | None = None) -> Iterator[Path]:
    """A new folder, in ``base``, that only its owner can read; it is removed at the end.

    A small process waits for the end of a pipe that only this process holds, ends every other process that still has a
    file of the folder open (on Linux), then removes the folder. It has a session of its own, so the terminal's Ctrl-C
    and a signal to the group do not reach it. If both are killed at once, the folder stays.
    """
    folder = Path(tempfile.mkdtemp(prefix="fedlsg-", dir=base))
    command = [sys.executable, "-I", "-S", __file__, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):  # at the end it gets its sign
        yield folder


def users(folder: Path) -> set[int]:
    """Processes but this one and its parent that have a file in a folder open; empty where there is no /proc."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(entry).startswith(f"{folder}{os.sep}"):
                found.add(int(entry.parts[2]))
    return found - {os.getpid(), os.getppid()}


def main(folder: Path) -> None:
    """Wait for the end of stdin, then end who uses the folder, and remove it."""
    sys.stdin.read()
    deadline = time.monotonic() + SECONDS
    while folder.exists() and (left := users(folder)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
