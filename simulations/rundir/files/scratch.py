"""A temporary folder that is removed however this process ends, also by SIGKILL: it may hold clients' batches."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WATCHER = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"


@contextmanager
def scratch(base: str | None = None) -> Iterator[Path]:
    """A new folder, in ``base``, that only its owner can read; it is removed at the end.

    A small process waits for the end of a pipe that only this process holds, then removes the folder. It has a session
    of its own, so the terminal's Ctrl-C and a signal to the group do not reach it. If both are killed at once, the
    folder stays.
    """
    folder = Path(tempfile.mkdtemp(prefix="fedlsg-", dir=base))
    command = [sys.executable, "-I", "-S", "-c", WATCHER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):  # its pipe is closed at the end
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
