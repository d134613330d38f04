"""How files are written: atomically, with their mode from their creation on, named by the error of a full disk."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlsg.owner_only import make_parents, open_file, open_private

FULL = {errno.ENOSPC, errno.EDQUOT}
ANOTHER = "choose another --out"


class DiskFullError(OSError):
    """A run that stopped because a file could not be written."""


def write_atomically(path: Path, *content: bytes, durable: bool = True, private: bool = False) -> None:
    """Write a file so that a crash of the process leaves either the old content or the new one, never a part.

    ``durable``: so does a crash of the machine. ``private``: only the owner can read the file, and the folders that are
    made for it; without it the folder decides (``owner_only``). Raises OSError with the name of the file, also where
    the disk is full.
    """
    with naming(path):
        make_parents(path.parent, private=private)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(temporary, "wb", opener=open_private if private else open_file) as file:
                file.writelines(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


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
