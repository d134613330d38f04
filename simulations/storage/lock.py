"""A new run directory; and only one process writes a run directory, or a client's folder, at a
time.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from time import sleep
from typing import IO

from fedlsg.owner_only import FOLDER, open_file
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.storage.atomic_files import writing_to
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.user_code import short


def create(out: str | None, settings: Settings, *, private: bool = False) -> RunDir:
    """A new, empty run directory: ``out``, or ``runs/<time>-<workload>-<method>`` under the working
    directory.

    ``private``: for its owner only, with all that will be in it. Raises ValueError if it exists and
    is not empty (nothing is overwritten), or cannot be written.
    """
    with writing_to(out or "runs/ in the working directory"):
        if out is not None:
            path = Path(out).expanduser().resolve()
            _make(path, private=private, there=True)
            if any(path.iterdir()):
                again = f", or continue it with fedlsg resume {out} (from Python: resume=True)"
                is_run = RunDir(path).config.exists()
                raise ValueError(
                    f"{out} is not empty; choose another --out{again if is_run else ''}"
                )
            probe = path / ".writable"
            probe.touch()
            probe.unlink()
            return RunDir(path)
        name = f"{datetime.now():%Y%m%d-%H%M%S}-{short(settings.workload)}-{short(settings.method)}"
        return RunDir(_fresh(name, private=private))


def _make(path: Path, *, private: bool, there: bool) -> None:
    """Make a folder with its mode; its parents are not closed: other runs will be in them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=FOLDER if private else 0o777, exist_ok=there)


def _fresh(name: str, *, private: bool) -> Path:
    parent = Path.cwd() / "runs"
    if parent.exists() and not parent.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "runs is a file", str(parent))
    for suffix in ["", *(f"-{i}" for i in range(2, 1000))]:
        path = parent / f"{name}{suffix}"
        try:
            _make(path, private=private, there=False)
            return path
        except FileExistsError:
            continue
    raise ValueError(f"cannot find a free name for {parent / name}")


try:
    import fcntl
except ImportError:  # Windows has no fcntl: the caller must not start two processes for one run
    fcntl = None  # type: ignore[assignment]


@contextmanager
def exclusive(directory: RunDir) -> Iterator[None]:
    """Hold the run directory; a second process that wants it gets a ValueError. The lock ends with
    its process.
    """
    if fcntl is None:
        yield
        return
    with _lock_file(directory) as file:
        try:
            _lock(file)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()  # empty before the holder writes its id
            who = f"process {holder}" if holder else "another process"
            raise ValueError(
                f"{directory.path} is in use by {who}: wait for its end, or stop it"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """No other process that asks for the same folder is inside meanwhile (POSIX). The lock ends
    with its process.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _lock(file: IO[str]) -> None:
    """Take the lock, if need be at the second try: ``is_held`` may have it for a moment."""
    with suppress(BlockingIOError):
        return fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    sleep(0.05)
    fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(directory: RunDir) -> bool:
    """Whether a process uses the run directory. Changes nothing there; a directory without a lock
    file is not used.
    """
    try:
        with open(directory.path / ".lock") as file:
            if fcntl is not None:
                fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _lock_file(directory: RunDir) -> IO[str]:
    try:
        return open(directory.path / ".lock", "a+", opener=open_file)
    except OSError as error:
        if error.errno not in {errno.EROFS, errno.EACCES, errno.EPERM}:
            raise
        raise ValueError(
            f"cannot write to {directory.path}: {error.strerror}; make it writable, or continue a "
            "copy of it"
        ) from None
