"""Code that this user ran himself: digests and names in a file of his own configuration folder, for his eyes only.

A run that names the same function of the same code at the same path goes on unasked, as after a requeue; of another
function of that file nobody knows that he ever called it. Where no such file can be kept, or
others could have written it, nothing is known, and commands ask. Parallel runs lose no entry of each other.
"""

import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fedlsg.owner_only import make_folder
from simulations.rundir.files.atomic import write_atomically

KEPT = 1000
"""Entries; the oldest are forgotten."""


def place() -> Path:
    """The file: known-code in $XDG_CONFIG_HOME/fedlsg or ~/.config/fedlsg. Raises RuntimeError without a home."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".config") / "fedlsg" / "known-code"


def is_known(digest: str, name: str) -> bool:
    """Whether this user ran code of this digest under this name, FILE.py:NAME with an absolute path."""
    with suppress(OSError, RuntimeError):
        return bool(digest) and _entry(digest, name) in _read(place())
    return False


def remember(code: Iterable[tuple[str, str]]) -> None:
    """Keep digests and names of code that the user named himself. A home that cannot be written keeps nothing, and one
    line says so: the run asks for its code when it is resumed."""
    from simulations.rundir.lock import locked_folder  # imports torch, which a look at the list must not

    new = [_entry(digest, name) for digest, name in code if digest]
    try:
        file = place()
        if not new or set(new) <= set(_read(file)[-KEPT // 2 :]):
            return
        make_folder(file.parent)
        with locked_folder(file.parent):
            kept = [line for line in _read(file) if line not in new]
            write_atomically(file, b"".join(line + b"\n" for line in [*kept, *new][-KEPT:]), private=True)
    except (OSError, RuntimeError) as error:
        print(f"fedlsg: this code is not kept as known, so resume will ask for it ({error})", file=sys.stderr)


def _entry(digest: str, name: str) -> bytes:
    """In the form of the program ``sha256sum``; a name may hold any byte but the end of the line."""
    return f"{digest}  ".encode() + os.fsencode(name).replace(b"\n", b"\\n")


def _read(file: Path) -> list[bytes]:
    """The entries; none of a file, or in a folder, that others own or could have written."""
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return []
    with open(descriptor, "rb") as opened:
        if os.name == "posix" and not (_is_own(os.fstat(descriptor)) and _is_own(file.parent.stat())):
            return []
        return opened.read().split(b"\n")[:-1]


def _is_own(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
