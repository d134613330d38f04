"""The last payload of a client, kept until the next one: sent again byte for byte, it costs no privacy.

    checkpoint/outbox/client-000003.bin      JSON header, newline, payload

The header holds a digest of question and payload: a damaged file answers nothing, and the client trains again.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.common.logger import log

from simulations.rundir.files.disk_space import naming
from simulations.rundir.files.private_files import make_folder, opener_for

KEYS = {"question", "bytes", "sha256"}


@dataclass(frozen=True)
class Outbox:
    """A file with one payload and the question that it answers."""

    path: Path

    def find(self, question: str) -> bytes | None:
        """The stored payload if it answers exactly this question."""
        stored = self._read(question)
        return None if stored is None else stored[1]

    def last(self) -> bytes | None:
        """The stored payload, whatever it answers."""
        stored = self._read()
        return None if stored is None else stored[1]

    @property
    def damaged(self) -> bool:
        """Whether there is a file that is not what was stored."""
        return self.path.exists() and self._read(quiet=True) is None

    def _read(self, question: str | None = None, *, quiet: bool = False) -> tuple[str, bytes] | None:
        """What is stored; of one that answers something else than ``question`` the payload is not even read."""
        try:
            with self.path.open("rb") as file:
                known = json.loads(file.readline())
                if not isinstance(known, dict) or known.keys() != KEYS:
                    raise ValueError
                if question is not None and known["question"] != question:
                    return None
                payload = file.read()
            if known != _head(known["question"], payload):
                raise ValueError
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, AttributeError):
            if not quiet:
                log(WARNING, "%s is damaged: its payload is made again, as another attempt", self.path)
            return None
        return known["question"], payload

    def store(self, question: str, payload: bytes) -> None:
        """Replace the stored payload, atomically.

        Not synced: a machine that loses it asks for a new attempt, which the ledger charges; what it damages, the
        digest finds.
        """
        head = json.dumps(_head(question, payload)).encode()
        write_atomically(self.path, head + b"\n", payload, durable=False)


def _head(question: str, payload: bytes) -> dict[str, Any]:
    sha = hashlib.sha256(json.dumps(question).encode() + b"\n")
    sha.update(payload)
    return {"question": question, "bytes": len(payload), "sha256": sha.hexdigest()}


def write_atomically(path: Path, *content: bytes, durable: bool = True, private: bool = False) -> None:
    """Write a file so that a crash of the process leaves either the old content or the new one, never a part.

    ``durable``: so does a crash of the machine. ``private``: the owner alone can read the file and its folder. Raises
    OSError with the name of the file, also where the disk is full.
    """
    with naming(path):
        make_folder(path.parent) if private else path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, content, durable=durable, private=private)


def _replace(path: Path, content: tuple[bytes, ...], *, durable: bool, private: bool) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb", opener=opener_for(private=private)) as file:
            file.writelines(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
