"""Watchers: small processes that act when this process has ended, even by SIGKILL.

One removes a folder, the other prints a last message. A watcher is this module as a script; it
waits for the end of a pipe that only this process holds. It has its own session, so that the
terminal's Ctrl-C and a signal to the group do not reach it. If both processes are killed at once,
nothing is done. As a script it uses only the standard library.
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
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

END_SECONDS = 10.0
"""Time in which processes that use the folder are ended, before it is removed."""
NOT_NEEDED = b"\0"
"""Sent to a watcher at last if it need not print the message."""


class RayLostError(RuntimeError):
    """Ray is gone, and this process can still report it."""


@contextmanager
def _watcher(*arguments: str, stderr: int | None = None) -> Iterator[IO[bytes]]:
    """Start a watcher and give the pipe to it; after the block, wait until it has ended."""
    command = [sys.executable, "-I", "-S", __file__, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=stderr, start_new_session=True
    ) as process:
        assert process.stdin is not None
        yield process.stdin


@contextmanager
def scratch(base: str | None = None) -> Iterator[Path]:
    """A new temporary folder in ``base``, for its owner only: it may hold clients' batches.

    At the end other processes that have a file of it open are killed (on Linux), and it is removed.
    """
    folder = Path(tempfile.mkdtemp(prefix="fedlsg-", dir=base))
    with _watcher(str(folder)):
        yield folder


@contextmanager
def last_word(words: str, console: "Console") -> Iterator[None]:
    """Print ``words`` on the ``console`` if this process is killed in the block.

    Ray can end its driver without a message when the raylet of the driver's machine is gone.
    """
    from fedlsg.simulations.engines import signals  # here: the script has no fedlsg

    if console.quiet:
        yield
        return
    stderr = None  # this process's, if the console has no file of the system
    with suppress(OSError, ValueError, AttributeError):
        stderr = console.file.fileno()
    with _watcher(stderr=stderr) as pipe:
        pipe.write(words.encode())
        pipe.flush()

        def not_needed() -> str:
            with suppress(BrokenPipeError):
                pipe.write(NOT_NEEDED)
                pipe.flush()
            return ""

        try:
            with signals.with_words(not_needed):  # a command that gives up prints its own message
                yield
        finally:
            not_needed()


def users(folder: Path) -> set[int]:
    """Other processes (without the parent) with an open file in a folder; none without /proc."""
    numbers = set()
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(entry).startswith(f"{folder}{os.sep}"):
                numbers.add(int(entry.parts[2]))
    return numbers - {os.getpid(), os.getppid()}


def remove(folder: Path) -> None:
    """Kill the processes that use a folder, and remove it."""
    deadline = time.monotonic() + END_SECONDS
    while folder.exists() and (pids := users(folder)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sent = sys.stdin.buffer.read()
    if sys.argv[1:]:
        remove(Path(sys.argv[1]))
    elif not sent.endswith(NOT_NEEDED):
        sys.stderr.buffer.write(sent + b"\n")
