"""The last payload of a client, kept until the next one: to send it again, byte for byte, costs no privacy.

    checkpoint/outbox/client-000003.bin      JSON header, newline, payload

The header holds a digest of question and payload. A damaged file is not sent, and the client trains again.
"""

import hashlib
import json
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.common.logger import log

from simulations.rundir.files.atomic import write_atomically

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
        """What is stored; the payload is not read if it answers something else than ``question``."""
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

        Not synced: if a crash of the machine loses the file, the next attempt is charged; if it damages the file, the
        digest shows it.
        """
        head = json.dumps(_head(question, payload)).encode()
        write_atomically(self.path, head + b"\n", payload, durable=False)


def _head(question: str, payload: bytes) -> dict[str, Any]:
    sha = hashlib.sha256(json.dumps(question).encode() + b"\n")
    sha.update(payload)
    return {"question": question, "bytes": len(payload), "sha256": sha.hexdigest()}
