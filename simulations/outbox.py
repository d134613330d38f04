"""The last payload of a client, kept until the next one: sent again byte for byte, it costs no privacy."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from simulations.disk_space import naming
from simulations.private_files import make_folder, opener_for


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

    def _read(self, question: str | None = None) -> tuple[str, bytes] | None:
        """What is stored; of one that answers something else than ``question`` the payload is not even read."""
        try:
            with self.path.open("rb") as file:
                known = json.loads(file.readline())
                if not isinstance(known, dict) or known.keys() != {"question", "bytes"}:
                    return None
                if question is not None and known["question"] != question:
                    return None
                payload = file.read()
        except (FileNotFoundError, ValueError):
            return None
        return (known["question"], payload) if known["bytes"] == len(payload) else None

    def store(self, question: str, payload: bytes) -> None:
        """Replace the stored payload, atomically.

        Not synced: a machine that loses it asks for a new attempt, which the ledger charges, and what it damages the
        payload's own checksum tells.
        """
        head = json.dumps({"question": question, "bytes": len(payload)}).encode()
        write_atomically(self.path, head + b"\n", payload, durable=False)


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
