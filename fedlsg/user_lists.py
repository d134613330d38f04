"""Lists of digests that fedlsg keeps for its user across processes, such as those of trained
weights.

They are in the user's configuration folder, for this user only. If a file cannot be kept, or others
could have written it, the list is empty.
"""

import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedlsg.atomic_write import write_atomically
from fedlsg.locks import locked
from fedlsg.owner_only import make_folder


@dataclass(frozen=True, kw_only=True)
class UserList:
    """A list of digests in a file.

    name: of the file.
    kept: most entries; the oldest are removed.
    lost: the message if the file cannot be written.
    """

    name: str
    kept: int
    lost: str

    @property
    def place(self) -> Path:
        """The file in $XDG_CONFIG_HOME/fedlsg or ~/.config/fedlsg. Raises RuntimeError without a
        home.
        """
        base = os.environ.get("XDG_CONFIG_HOME", "")
        folder = Path(base) if os.path.isabs(base) else Path.home() / ".config"
        return folder / "fedlsg" / self.name

    def has(self, digest: str, of: str) -> bool:
        """Whether the list has this digest with the name ``of``."""
        return bool(digest) and _line(digest, of) in self._lines()

    def entries(self) -> list[tuple[str, str]]:
        """(digest, name of its object) of all entries, the oldest first."""
        return [_parse(line) for line in self._lines()]

    def _lines(self) -> list[bytes]:
        """The lines of the file; an empty list if it cannot be read."""
        with suppress(OSError, RuntimeError):
            return _read(self.place)
        return []

    def remember(
        self, digests: Iterable[tuple[str, str]], *, instead_of: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Add (digest, name) entries, and remove those of ``instead_of``.

        A file that cannot be written keeps nothing, and ``lost`` is printed.
        """
        new = [_line(digest, of) for digest, of in digests if digest]
        old = {_line(digest, of) for digest, of in instead_of} - set(new)
        try:
            file = self.place
            if not old and (not new or set(new) <= set(_read(file)[-self.kept // 2 :])):
                return
            make_folder(file.parent)
            with locked(file.parent):
                replaced = old.union(new)
                others = [line for line in _read(file) if line not in replaced]
                lines = [*others, *new][-self.kept :]
                write_atomically(file, b"".join(line + b"\n" for line in lines), private=True)
        except (OSError, RuntimeError) as error:
            print(f"fedlsg: {self.lost} ({error})", file=sys.stderr)


def _line(digest: str, of: str) -> bytes:
    """An entry in the form of the program ``sha256sum``; a line feed in its name is escaped."""
    return f"{digest}  ".encode() + os.fsencode(of).replace(b"\n", b"\\n")


def _parse(line: bytes) -> tuple[str, str]:
    """(digest, name) of a line."""
    digest, _, of = line.partition(b"  ")
    return digest.decode(), os.fsdecode(of)


def _read(file: Path) -> list[bytes]:
    """The lines of a file; none if others own or could have written it, or its folder."""
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return []
    with open(descriptor, "rb") as stream:
        if os.name == "posix" and not (
            _is_own(os.fstat(descriptor)) and _is_own(file.parent.stat())
        ):
            return []
        return stream.read().split(b"\n")[:-1]


def _is_own(status: os.stat_result) -> bool:
    """Whether a file or folder is this user's, and nobody else can write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
