"""A journal: a file of a run that only grows, with the digest of every byte.

A checkpoint keeps the ``mark`` of a journal: length and digest. Bytes after the mark were written
by a process that ended before its next checkpoint, and are cut. Bytes before it must have the
digest of the mark.
"""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedlsg.owner_only import open_file
from fedlsg.simulations.storage.atomic_files import DamagedError, naming

CHUNK = 2**20
"""Bytes that are read at a time."""
Mark = Mapping[str, Any]
"""A file as a checkpoint or a manifest keeps it: "bytes", its length, and "sha256" of these."""
Marks = Mapping[str, Any]
"""The marks of several files, by name; of TensorBoard's events only the length."""


class Journal:
    """A file that only grows, and the digest of every byte that the run has written to it."""

    def __init__(self, path: Path, header: str) -> None:
        """A journal without lines; ``cut`` continues a file. ``header``: its first line."""
        self.path, self.header = path, header
        self.size, self._sha = 0, hashlib.sha256()

    def append(self, text: str) -> None:
        """Add text in one write, together with the header if the file is new."""
        data = (text if self.size else self.header + text).encode()
        with (
            naming(self.path),
            open(self.path, "ab" if self.size else "wb", opener=open_file) as file,
        ):
            file.write(data)
        self._sha.update(data)
        self.size += len(data)

    def mark(self) -> Mark:
        """Length and digest of what was written so far."""
        return {"bytes": self.size, "sha256": self._sha.hexdigest()}

    def cut(self, mark: Mark) -> None:
        """Go back to a mark. Raises DamagedError if the file differs up to there."""
        sha = verify(self.path, mark)
        if mark["bytes"]:
            os.truncate(self.path, mark["bytes"])
        else:
            self.path.unlink(missing_ok=True)
        self.size, self._sha = mark["bytes"], sha


def verify(path: Path, mark: Mark) -> "hashlib._Hash":
    """Compare a file up to a mark; returns the state of the digest there.

    Raises DamagedError if the file is shorter, or differs.
    """
    sha = hashlib.sha256()
    missing = int(mark["bytes"])
    if missing:
        with suppress(FileNotFoundError), path.open("rb") as file:
            while missing and (data := file.read(min(CHUNK, missing))):
                sha.update(data)
                missing -= len(data)
    if missing or sha.hexdigest() != mark["sha256"]:
        why = "it lacks rounds of the checkpoint" if missing else "it is not what was written"
        raise DamagedError(f"{path} is damaged: {why}; restore it from a copy, or start a new run")
    return sha
