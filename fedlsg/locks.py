"""Locks between the processes of one user: no other user can take one, and none is waited for
without end.

Everybody who can open a file can lock it, also a reader. So a file that others may read, such as a
ledger, is never locked itself: the lock is a file of its own, or a folder, that only its owner can
open.
"""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedlsg.owner_only import FILE_MODE, FOLDER_MODE, close_to_others

try:
    import fcntl
except ImportError:  # Windows has no fcntl: the caller must not start two processes for one folder
    fcntl = None  # type: ignore[assignment]

ABSENT = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
"""What a disk without locks answers."""
LOCK_SECONDS = 60.0
"""Seconds to wait for a lock: what is done under one takes milliseconds."""
PAUSE_SECONDS = 0.05
"""Seconds between two tries, at most."""
KERNEL = Path("/proc/locks")
"""Linux lists there who holds which lock, for everybody to read."""


class NoLocksError(OSError):
    """A lock on a disk that has none."""


class LockedError(TimeoutError):
    """A lock that was not free in time. ``holder``: who has it, in words; ``way_out``: what else
    its owner can do.
    """

    def __init__(self, path: Path, holder: str, *, own: bool) -> None:
        self.holder = holder
        self.way_out = "" if own else f"; if no process of yours uses it, remove {path}"
        super().__init__(
            f"{path} is locked by {holder}: wait for its end, or stop it{self.way_out}"
        )


@contextmanager
def locked(path: Path, *, seconds: float | None = None) -> Iterator[int | None]:
    """Hold the lock ``path``: a file, which is made and stays, or a folder; gives its descriptor,
    None on a system without such locks.

    Guarantee: no process that asks for the same path is inside meanwhile (POSIX). The lock ends
    with its process. Raises LockedError after ``seconds`` (LOCK_SECONDS), at once for a lock of
    another user; NoLocksError, and OSError for a path that cannot be opened.
    """
    if fcntl is None:
        yield None
        return
    deadline = time.monotonic() + (LOCK_SECONDS if seconds is None else seconds)
    descriptor, pause = _open(path), PAUSE_SECONDS / 32
    try:
        while not _take(descriptor, path):
            if not _is_named(descriptor, path):  # its last holder removed the file
                os.close(descriptor)
                descriptor = _open(path)
                continue
            if time.monotonic() >= deadline or not _is_own(os.fstat(descriptor)):
                raise _error(path, descriptor)
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS)
        yield descriptor
    finally:
        with suppress(OSError):  # a process that was forked meanwhile has the descriptor, too
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock. Changes nothing; what is not there is not locked."""
    if fcntl is None:
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:  # another user's
        return bool(_holders(path.stat()))
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks here
        return False
    finally:
        os.close(descriptor)
    return False


def _open(path: Path) -> int:
    """A descriptor of the lock, which is closed to others first."""
    if path.is_dir():
        close_to_others(path, FOLDER_MODE)
        return os.open(path, os.O_RDONLY)
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags, FILE_MODE)
    with suppress(OSError):  # where only the mode cannot be changed, the deadline is left
        close_to_others(path, FILE_MODE)
    return descriptor


def _take(descriptor: int, path: Path) -> bool:
    """Whether the lock is taken now, of the file that has the name now."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in ABSENT:
            raise
        raise NoLocksError(
            f"the disk of {path} has no locks ({error.strerror}), and two processes could spend "
            "one privacy budget there: choose a folder on another disk, or let who mounts this one "
            "allow flock"
        ) from None
    return _is_named(descriptor, path)


def _is_named(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _is_own(found: os.stat_result) -> bool:
    return os.name != "posix" or found.st_uid == os.geteuid()


def _error(path: Path, descriptor: int) -> LockedError:
    """Names who holds a lock, as the system says now: a number in the file may be of a process that
    ended long ago.
    """
    lock = os.fstat(descriptor)
    for pid in _holders(lock):
        with suppress(OSError):
            owner = os.stat(f"/proc/{pid}").st_uid
            if owner == os.geteuid():
                return LockedError(path, f"process {pid}", own=True)
            return LockedError(path, f"process {pid} of another user ({owner})", own=False)
    if _is_own(lock):
        return LockedError(path, "another process", own=True)
    return LockedError(path, f"another user ({lock.st_uid})", own=False)


def _holders(lock: os.stat_result) -> list[int]:
    """The processes that hold a lock; none where the system does not say."""
    device = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
    try:
        lines = KERNEL.read_text().splitlines()
    except OSError:
        return []
    fields = [line.split() for line in lines]
    return [int(words[4]) for words in fields if words[1] == "FLOCK" and words[5] == device]
