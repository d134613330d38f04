"""Files and folders that are created with their mode, so that others can never read a secret.

A file or folder that is created inside a folder which only its owner can read is for its owner
only, too. So one closed folder closes everything that any process writes into it later. Other files
follow the umask.
"""

import os
import stat
from pathlib import Path

FILE_MODE, FOLDER_MODE = 0o600, 0o700
"""Modes for the owner only."""
OTHERS_BITS = 0o077
"""Bits of a mode for all but the owner."""


def is_closed(folder: Path) -> bool:
    """Whether a folder is there and only its owner can use it; False on systems without POSIX
    modes.
    """
    try:
        return os.name == "posix" and not folder.stat().st_mode & OTHERS_BITS
    except OSError:
        return False


def open_file(path: str | Path, flags: int, *, private: bool = False) -> int:
    """``os.open``, with the mode of a new file by its folder, or for its owner only if
    ``private``.
    """
    return os.open(path, flags, FILE_MODE if private or is_closed(Path(path).parent) else 0o666)


def open_private(path: str | Path, flags: int) -> int:
    """``open_file`` for a secret, as an ``opener``."""
    return open_file(path, flags, private=True)


def make_parents(folder: Path, *, private: bool = False) -> None:
    """Make a folder and its missing parents; existing ones keep their mode. ``private``: as
    ``open_file``.
    """
    if folder.is_dir():
        return
    make_parents(folder.parent, private=private)
    folder.mkdir(mode=FOLDER_MODE if private or is_closed(folder.parent) else 0o777, exist_ok=True)


def make_file(path: Path) -> None:
    """Make an empty file for its owner only, unless there is one; an own file that others could
    read is closed.
    """
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    close_to_others(path, FILE_MODE)


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents for their owner only; an own folder that others could
    read is closed.
    """
    make_parents(path, private=True)
    close_to_others(path, FOLDER_MODE)


def close_to_others(path: Path, mode: int) -> None:
    """Give this mode to an own file or folder that others can use; not to a device (/dev/null)."""
    if os.name == "posix":
        status = path.stat()
        plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
        if plain and status.st_uid == os.geteuid() and status.st_mode & OTHERS_BITS:
            path.chmod(mode)
