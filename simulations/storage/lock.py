"""Making a run directory, and its lock: only one process writes it at a time."""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from fedlsg.locks import LockedError, is_locked, locked
from fedlsg.owner_only import FOLDER_MODE
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.storage.atomic_files import writing_to
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.user_code import short

LOCK = ".lock"
"""The lock's file in a run directory."""
LOCK_SECONDS = 0.2
"""Time to wait for the lock: ``is_locked`` of another process holds it for a moment."""


def create(out: str | None, settings: Settings, *, private: bool = False) -> RunDir:
    """Make an empty run directory: ``out``, or ``runs/<time>-<workload>-<method>``.

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
                    f"out={out}: the folder is not empty; choose another "
                    f"out{again if is_run else ''}"
                )
            probe = path / ".writable"
            probe.touch()
            probe.unlink()
            return RunDir(path)
        name = f"{datetime.now():%Y%m%d-%H%M%S}-{short(settings.workload)}-{short(settings.method)}"
        return RunDir(_fresh(name, private=private))


def _make(path: Path, *, private: bool, there: bool) -> None:
    """Make a folder with its mode; ``there``: it may exist.

    Its parents keep the default mode: other runs will be in them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=FOLDER_MODE if private else 0o777, exist_ok=there)


def _fresh(name: str, *, private: bool) -> Path:
    """Make ``runs/NAME`` in the working directory, or the first free one of NAME-2, NAME-3, ..."""
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


@contextmanager
def exclusive(directory: RunDir) -> Iterator[None]:
    """Hold the lock of a run directory in the block; it ends with its process, too.

    Raises ValueError if another process holds it, or the directory cannot be written.
    """
    with ExitStack() as stack:
        try:
            descriptor = stack.enter_context(locked(directory.path / LOCK, seconds=LOCK_SECONDS))
            if descriptor is not None:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
        except LockedError as error:
            raise ValueError(
                f"{directory.path} is in use by {error.holder}: wait for its end, or stop it"
                f"{error.way_out}"
            ) from None
        except OSError as error:
            if error.errno not in {errno.EROFS, errno.EACCES, errno.EPERM}:
                raise
            raise ValueError(
                f"cannot write to {directory.path}: {error.strerror}; make it writable, or "
                "continue a copy of it"
            ) from None
        yield


def is_held(directory: RunDir) -> bool:
    """Whether a process holds the lock of a run directory. Changes nothing there."""
    return is_locked(directory.path / LOCK)
