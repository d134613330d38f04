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
def scratch() -> Iterator[Path]:
    """A new folder, which its owner alone can read; on leaving it is gone.

    A small process waits for the end of a pipe that only this process holds. It has a session of its own, so the
    terminal's Ctrl-C and a signal to the group do not reach it. Should both be killed at once, the folder stays.
    """
    folder = Path(tempfile.mkdtemp(prefix="fedlsg-"))
    command = [sys.executable, "-I", "-S", "-c", WATCHER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):  # on leaving, its pipe is closed
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
