"""A table that only grows, and the digest of every byte that the run has written to it.

A checkpoint keeps the table's ``mark``: length and digest. Bytes after the mark were written by a process that ended
before its next checkpoint, and are cut. Bytes before it must have the digest of the mark.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulations.rundir.files.disk_space import naming
from simulations.rundir.files.sealed import DamagedError

CHUNK = 2**20


class Journal:
    """One file: a header line, then appended lines."""

    def __init__(self, path: Path, header: str) -> None:
        self.path, self.header = path, header
        self.size, self._sha = 0, hashlib.sha256()

    def append(self, text: str) -> None:
        """Add text in one write; the first text after the header."""
        data = (text if self.size else self.header + text).encode()
        with naming(self.path), self.path.open("ab" if self.size else "wb") as file:
            file.write(data)
        self._sha.update(data)
        self.size += len(data)

    def mark(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"bytes": self.size, "sha256": self._sha.hexdigest()}

    def cut(self, mark: Mapping[str, Any]) -> None:
        """Go back to a mark. Raises DamagedError if the file differs up to there."""
        sha = verified(self.path, mark)
        if mark["bytes"]:
            os.truncate(self.path, mark["bytes"])
        else:
            self.path.unlink(missing_ok=True)
        self.size, self._sha = mark["bytes"], sha


def verified(path: Path, mark: Mapping[str, Any]) -> "hashlib._Hash":
    """The digest's state at a mark. Raises DamagedError if the file differs up to there."""
    sha, left = hashlib.sha256(), int(mark["bytes"])
    if left:
        try:
            with path.open("rb") as file:
                while left and (data := file.read(min(CHUNK, left))):
                    sha.update(data)
                    left -= len(data)
        except FileNotFoundError:
            pass
    if left or sha.hexdigest() != mark["sha256"]:
        why = "it lacks rounds that the checkpoint holds" if left else "it is not what was written"
        raise DamagedError(f"{path} is damaged: {why}; restore it from a copy, or start a new run")
    return sha
