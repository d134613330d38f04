"""What is done when this process has ended, however it did, also by SIGKILL: a folder is removed, a
last word is said.

Each is done by a small process, this module as a script, that waits for the end of a pipe which
only this process holds. It has a session of its own, so the terminal's Ctrl-C and a signal to the
group do not reach it. If both are killed at once, nothing is done. As a script it has the standard
library alone.
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
"""How long processes that use the folder are ended before it is removed."""
SAID = b"\0"
"""Ends what is sent to the small process if it need not be printed."""


class RayLostError(RuntimeError):
    """Ray is gone, and this process can still say so."""


@contextmanager
def _watcher(*arguments: str, stderr: int | None = None) -> Iterator[IO[bytes]]:
    """The pipe to a small process; it is waited for at the end."""
    command = [sys.executable, "-I", "-S", __file__, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=stderr, start_new_session=True
    ) as process:
        assert process.stdin is not None
        yield process.stdin


@contextmanager
def scratch(base: str | None = None) -> Iterator[Path]:
    """A new temporary folder, in ``base``, that only its owner can read: it may hold clients'
    batches.

    At the end every other process that still has a file of it open is ended (on Linux), and it is
    removed.
    """
    folder = Path(tempfile.mkdtemp(prefix="fedlsg-", dir=base))
    with _watcher(str(folder)):
        yield folder


@contextmanager
def last_word(words: str, console: "Console") -> Iterator[None]:
    """If this process is killed inside, ``words`` are printed where ``console`` prints.

    Ray can end its driver without a word, and without Python, when the raylet of the driver's
    machine is gone.
    """
    from fedlsg.simulations.engines import signals  # not by the script that this file is, too

    if console.quiet:
        yield
        return
    stderr = None  # ours, for a console without a file of the system
    with suppress(OSError, ValueError, AttributeError):
        stderr = console.file.fileno()
    with _watcher(stderr=stderr) as pipe:
        pipe.write(words.encode())
        pipe.flush()

        def not_needed() -> str:
            with suppress(BrokenPipeError):
                pipe.write(SAID)
                pipe.flush()
            return ""

        try:
            with signals.with_words(not_needed):  # a command that gives up has words of its own
                yield
        finally:
            not_needed()


def users(folder: Path) -> set[int]:
    """Processes but this one and its parent that have a file in a folder open; empty where there is
    no /proc.
    """
    numbers = set()
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(entry).startswith(f"{folder}{os.sep}"):
                numbers.add(int(entry.parts[2]))
    return numbers - {os.getpid(), os.getppid()}


def remove(folder: Path) -> None:
    """End who uses a folder, and remove it."""
    deadline = time.monotonic() + END_SECONDS
    while folder.exists() and (left := users(folder)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sent = sys.stdin.buffer.read()
    if sys.argv[1:]:
        remove(Path(sys.argv[1]))
    elif not sent.endswith(SAID):
        sys.stderr.buffer.write(sent + b"\n")
