"""How files are written: atomically, for their owner only where they are SECRET, named by the error of a full disk.

SECRET is what a client never sends: batches, memories of error feedback, and the log, because a client's traceback may
quote a private value. Such files and folders are private from their creation on, with any umask.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE, FOLDER = 0o600, 0o700
FULL = {errno.ENOSPC, errno.EDQUOT}
ANOTHER = "choose another --out"


class DiskFullError(OSError):
    """A run that stopped because a file could not be written."""


def write_atomically(path: Path, *content: bytes, durable: bool = True, private: bool = False) -> None:
    """Write a file so that a crash of the process leaves either the old content or the new one, never a part.

    ``durable``: so does a crash of the machine. ``private``: only the owner can read the file and its folder. Raises
    OSError with the name of the file, also where the disk is full.
    """
    with naming(path):
        make_folder(path.parent) if private else path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(temporary, "wb", opener=_open_private if private else None) as file:
                file.writelines(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an OSError of a write, which names no file, name ``path``."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def check_writable(folder: Path) -> None:
    """Raise ValueError if no file can be written to a folder, which need not exist: before what is written is made."""
    place = next(p for p in (folder, *folder.parents) if p.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise ValueError(f"cannot write to {folder}: {place} is no folder that this user may write to; {ANOTHER}")


@contextmanager
def writing_to(folder: Path | str) -> Iterator[None]:
    """Raise ValueError that names a folder, and the way out, where a file cannot be written to it."""
    try:
        yield
    except OSError as error:
        room = "make room, or " if error.errno in FULL else ""
        raise ValueError(f"cannot write to {folder}: {error.strerror or error}; {room}{ANOTHER}") from None


def make_file(path: Path) -> None:
    """Make an empty file for its owner only, unless there is one; an own file that others could read is closed."""
    os.close(_open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    _close_to_others(path, FILE)


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents for their owner only; an own folder that others could read is closed."""
    try:
        path.mkdir(mode=FOLDER)
    except FileExistsError:
        _close_to_others(path, FOLDER)
    except FileNotFoundError:
        make_folder(path.parent)
        path.mkdir(mode=FOLDER, exist_ok=True)


@contextmanager
def resumable(run: Path) -> Iterator[None]:
    """If a disk is full, raise DiskFullError with the file and with the command that continues the run."""
    try:
        yield
    except Exception as error:
        full = cause_of(error)
        if full is None:
            raise
        raise DiskFullError(
            f"the disk is full: {full.filename or run} could not be written. Nothing that was finished is lost: make "
            f"room, then continue with: fedlsg resume {run}"
        ) from error


def cause_of(error: BaseException | None) -> OSError | None:
    """The error of a full disk that caused an error, None if there is none."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return error
        error = error.__cause__ or error.__context__
    return None


def _open_private(path: str | Path, flags: int) -> int:
    return os.open(path, flags, FILE)


def _close_to_others(path: Path, mode: int) -> None:
    """Close what an older version made readable; not another owner's file, nor a device (a log to /dev/null)."""
    if os.name == "posix":
        found = path.stat()
        plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
        if plain and found.st_uid == os.geteuid() and found.st_mode & 0o077:
            path.chmod(mode)
