"""A second user of the machine, who does what he can to the files and ports of the first. Needs
root, to become him.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0, reason="needs root, to become another user"
)


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that everybody can read, as a run is under the usual umask."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    folder.chmod(0o755)
    before = os.umask(0o022)
    try:
        yield folder
    finally:
        os.umask(before)
        shutil.rmtree(folder)


@contextmanager
def nobody(act: Callable[[], object]) -> Iterator[str]:
    """What ``act`` returns to the second user, as text; his process lives to the end of the block,
    and with it what he has locked.
    """
    (answer, said), (wait, end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        with suppress(BaseException):
            os.close(end)
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            kept = act()
            os.write(said, repr(kept).encode())
            os.close(said)
            os.read(wait, 1)
            status = 0
        os._exit(status)
    os.close(said)
    os.close(wait)
    try:
        with open(answer) as text:
            yield text.read()
    finally:
        os.close(end)
        os.waitpid(child, 0)


def lock_all(folder: Path) -> list[str]:
    """Lock every file and folder that this process can open; their names. They stay locked while
    the process lives.
    """
    names = []
    for path in (folder, *sorted(folder.rglob("*"))):
        with suppress(OSError):
            fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
            names.append(path.name)
    return names
