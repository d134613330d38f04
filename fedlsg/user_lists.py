"""Lists of digests that fedlsg keeps for its user across processes, such as those of trained
weights.

They are in the user's configuration folder, for this user only. If a file cannot be kept, or others
could have written it, the list is empty. Entries that change often are in a file of their own
(``Draft``), so that other processes know them at once.
"""

import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedlsg.atomic_write import write_atomically
from fedlsg.locks import locked
from fedlsg.owner_only import make_folder, open_private

SECONDS_OF_DRAFTS = 86_400
"""From this age on, entries of a draft whose process was killed move into the list."""
_WHOLE = re.compile(rb"(?:[0-9a-f]{2})+  .+")
"""A line that was not read while it was written."""


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
        """Digests, each with what it is of, the oldest first; then those of drafts."""
        drafted = [entry for draft in self._drafts() for entry in _entries_of(draft)]
        return [*map(_parse, self._lines()), *drafted]

    @property
    def drafts(self) -> Path:
        """The folder of drafts."""
        return self.place.with_name(f"{self.name}-now")

    def _drafts(self) -> list[Path]:
        with suppress(OSError, RuntimeError):
            return sorted(path for path in self.drafts.iterdir() if path.is_file())
        return []

    def take_in_drafts(self) -> None:
        """Put the entries of old drafts into the list. A draft that is still used begins again."""
        for draft in self._drafts():
            with suppress(OSError):
                if time.time() - draft.stat().st_mtime > SECONDS_OF_DRAFTS:
                    self.remember(_entries_of(draft))
                    draft.unlink(missing_ok=True)

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


class Draft:
    """Entries of a list that change often, such as with each step: a write takes microseconds. They
    count until ``end``, and stay where the process is killed. A folder that cannot be written keeps
    none.
    """

    def __init__(self, of: UserList) -> None:
        self._list, self._path = of, Path()
        self._descriptor, self._process = -1, 0

    def write(self, entries: Iterable[tuple[str, str]]) -> None:
        """Let these be the entries."""
        content = b"".join(_line(digest, of) + b"\n" for digest, of in entries)
        with suppress(OSError, RuntimeError):
            if not self._is_open():
                self._open()
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, content)
            os.ftruncate(self._descriptor, len(content))

    def end(self) -> None:
        """The entries are in the list now, or count no more."""
        if self._is_open():
            os.close(self._descriptor)
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            self._descriptor = -1

    def _is_open(self) -> bool:
        """Whether the file is there, and this process's own: not that of one which forked it."""
        opened = self._descriptor >= 0 and self._process == os.getpid()
        return opened and os.fstat(self._descriptor).st_nlink > 0

    def _open(self) -> None:
        if self._descriptor >= 0 and self._process == os.getpid():
            os.close(self._descriptor)
        self._descriptor, self._process = -1, os.getpid()
        make_folder(self._list.drafts)
        self._path = self._list.drafts / f"{self._process}-{secrets.token_hex(8)}"
        self._descriptor = open_private(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL)


def _entries_of(draft: Path) -> list[tuple[str, str]]:
    with suppress(OSError):
        return [_parse(line) for line in _read(draft) if _WHOLE.fullmatch(line)]
    return []


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
