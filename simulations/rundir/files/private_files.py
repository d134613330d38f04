"""Files and folders that only their owner can read, from their creation on, with any umask.

For data that a client never sends: batches, memories of error feedback, and the log, because a client's traceback may
quote a private value.
"""

import os
import stat
from pathlib import Path

FILE, FOLDER = 0o600, 0o700


def opener(path: str, flags: int) -> int:
    """``open(..., opener=opener)`` makes a missing file readable for its owner only."""
    return os.open(path, flags, FILE)


def make_file(path: Path) -> None:
    """Make an empty file, unless there is one; an own file that others could read is closed to them."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE))
    _close_to_others(path, FILE)


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents; an own folder that others could read is closed to them."""
    try:
        path.mkdir(mode=FOLDER)
    except FileExistsError:
        _close_to_others(path, FOLDER)
    except FileNotFoundError:
        make_folder(path.parent)
        path.mkdir(mode=FOLDER, exist_ok=True)


def _close_to_others(path: Path, mode: int) -> None:
    """Close what an older version made readable; not another owner's file, nor a device (a log to /dev/null)."""
    if os.name == "posix":
        found = path.stat()
        plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
        if plain and found.st_uid == os.geteuid() and found.st_mode & 0o077:
            path.chmod(mode)
