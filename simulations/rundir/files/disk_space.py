"""Errors of a full disk name the file that could not be written, and the command that continues the run."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = {errno.ENOSPC, errno.EDQUOT}


class DiskFullError(OSError):
    """A run that stopped because a file could not be written."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an OSError of a write, which names no file, name ``path``."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


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
