"""Lists of digests that fedlsg keeps for its user, over all processes: of code that he ran, of
weights that he trained.

They are in his own configuration folder, for his eyes only. Where no such file can be kept, or
others could have written it, nothing is known.
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
    """name: of the file; kept: entries that it has at most, the oldest are forgotten; lost: what it
    means that no file can be written, in words.
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
        """Whether this digest was remembered, of this."""
        return bool(digest) and _line(digest, of) in self._lines()

    def entries(self) -> list[tuple[str, str]]:
        """Digests, each with what it is of, the oldest first."""
        return [_parsed(line) for line in self._lines()]

    def _lines(self) -> list[bytes]:
        with suppress(OSError, RuntimeError):
            return _read(self.place)
        return []

    def remember(
        self, digests: Iterable[tuple[str, str]], *, instead_of: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Keep digests, each with what it is of; those that they are ``instead_of`` are forgotten.
        A home that cannot be written keeps nothing, and one line says so.
        """
        new = [_line(digest, of) for digest, of in digests if digest]
        old = {_line(digest, of) for digest, of in instead_of} - set(new)
        try:
            file = self.place
            if not old and (not new or set(new) <= set(_read(file)[-self.kept // 2 :])):
                return
            make_folder(file.parent)
            with locked(file.parent):
                gone = old.union(new)
                lines = [line for line in _read(file) if line not in gone]
                lasting = [*lines, *new][-self.kept :]
                write_atomically(file, b"".join(line + b"\n" for line in lasting), private=True)
        except (OSError, RuntimeError) as error:
            print(f"fedlsg: {self.lost} ({error})", file=sys.stderr)


def _line(digest: str, of: str) -> bytes:
    """In the form of the program ``sha256sum``; a name may hold any byte but the end of the
    line.
    """
    return f"{digest}  ".encode() + os.fsencode(of).replace(b"\n", b"\\n")


def _parsed(line: bytes) -> tuple[str, str]:
    digest, _, of = line.partition(b"  ")
    return digest.decode(), os.fsdecode(of)


def _read(file: Path) -> list[bytes]:
    """The lines; none of a file, or in a folder, that others own or could have written."""
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return []
    with open(descriptor, "rb") as opened:
        if os.name == "posix" and not (
            _is_own(os.fstat(descriptor)) and _is_own(file.parent.stat())
        ):
            return []
        return opened.read().split(b"\n")[:-1]


def _is_own(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
