"""Locks between the processes of one user: no other user can take them, and waiting has an end.

Everybody who can open a file can lock it, also a reader. So a file that others may read, such as a
ledger, is never locked itself: the lock is another file, or a folder, that only its owner can open.
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
"""Error numbers of a disk without locks."""
LOCK_SECONDS = 60.0
"""Seconds to wait for a lock: the work under one takes milliseconds."""
PAUSE_SECONDS = 0.05
"""Most seconds between two tries."""
KERNEL = Path("/proc/locks")
"""Linux's list of all locks and the processes that hold them, which everybody can read."""


class NoLocksError(OSError):
    """A lock on a disk that has none."""


class LockedError(TimeoutError):
    """A lock that was not free in time.

    holder: the process that holds it, in words.
    way_out: what else the user can do; "" if the process is the user's own.
    """

    def __init__(self, path: Path, holder: str, *, own: bool) -> None:
        self.holder = holder
        self.way_out = "" if own else f"; if no process of yours uses it, remove {path}"
        super().__init__(
            f"{path} is locked by {holder}: wait for its end, or stop it{self.way_out}"
        )


@contextmanager
def locked(path: Path, *, seconds: float | None = None) -> Iterator[int | None]:
    """Hold the lock ``path``: a folder, or a file, which is created and stays.

    It gives the descriptor, None on a system without such locks.
    Guarantee: no other process holds the lock of the same path meanwhile (POSIX). The lock ends
    with its process. Raises LockedError after ``seconds`` (None: LOCK_SECONDS), at once for a lock
    of another user; NoLocksError, and OSError for a path that cannot be opened.
    """
    if fcntl is None:
        yield None
        return
    deadline = time.monotonic() + (LOCK_SECONDS if seconds is None else seconds)
    descriptor, pause = _open(path), PAUSE_SECONDS / 32
    try:
        while not _try_lock(descriptor, path):
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
    """Whether a process holds the lock; False without such a path. Changes nothing."""
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
    """A descriptor of the lock, which other users can no longer open."""
    if path.is_dir():
        close_to_others(path, FOLDER_MODE)
        return os.open(path, os.O_RDONLY)
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags, FILE_MODE)
    with suppress(OSError):  # if the mode cannot be changed, the deadline still holds
        close_to_others(path, FILE_MODE)
    return descriptor


def _try_lock(descriptor: int, path: Path) -> bool:
    """Lock a descriptor; False if another process holds the lock, or ``path`` is another file
    now.
    """
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
    """Whether ``path`` is the file of a descriptor."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _is_own(status: os.stat_result) -> bool:
    """Whether a file belongs to this user."""
    return os.name != "posix" or status.st_uid == os.geteuid()


def _error(path: Path, descriptor: int) -> LockedError:
    """The error for a lock, with the process that holds it according to the system."""
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
    """The processes that hold a lock; an empty list if the system does not list locks."""
    device = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
    try:
        lines = KERNEL.read_text().splitlines()
    except OSError:
        return []
    fields = [line.split() for line in lines]
    return [int(words[4]) for words in fields if words[1] == "FLOCK" and words[5] == device]
