"""The last payload of a client, kept until the next one: sending it again costs no privacy.

    checkpoint/outbox/client-000003.bin            JSON header, newline, payload

The header holds a digest of the request's id and the payload. In files the id is named "question".
A damaged file is not sent, and the client trains again. The digest is a CRC-32, which finds what a
crash tore: the payload has a SHA-256 of its own, which the server checks. ``feedback_box`` keeps
payloads whose client has a memory.
"""

import hashlib
import json
import os
import stat
import zlib
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path

from flwr.common.logger import log

from fedlsg import bounded
from fedlsg.privacy.ledger_file import write_all
from fedlsg.simulations.storage.atomic_files import Record, naming, write_atomically

LONGEST_HEAD = 2**20
"""Bytes of a header that are read at most."""


@dataclass(frozen=True)
class LastPayload:
    """A file with one payload and the request_id that it answers."""

    path: Path

    def find(self, request_id: str) -> bytes | None:
        """The stored payload if it answers exactly this request_id."""
        return self._read(request_id)

    def last(self) -> bytes | None:
        """The stored payload, whatever it answers."""
        return self._read()

    @property
    def damaged(self) -> bool:
        """Whether there is a file that is not what was stored."""
        return self.path.exists() and self._read(quiet=True) is None

    def _read(self, request_id: str | None = None, *, quiet: bool = False) -> bytes | None:
        """The stored payload; None if it is missing, damaged, or answers another ``request_id``.

        ``quiet``: do not log that it is damaged.
        """
        try:
            with self.path.open("rb") as file:
                head = bounded.parse_json(file.readline(LONGEST_HEAD))
                if request_id is not None and head["question"] != request_id:
                    return None
                payload = file.read()
            make_head = _first_head if "sha256" in head else _head
            if head != make_head(head["question"], payload):
                raise ValueError
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, AttributeError, KeyError):
            if not quiet:
                log(
                    WARNING,
                    "%s is damaged: its payload is made again, as another attempt",
                    self.path,
                )
            return None
        return payload

    def store(self, request_id: str, payload: bytes, *, alone: bool = False) -> None:
        """Replace the stored payload, atomically.

        Not synced: if a crash of the machine loses the file, the next attempt is charged; if it
        damages the file, the digest shows it.
        alone: no other process writes. The file is then overwritten in place, in a tenth of the
            time. A process that ends in between leaves a damaged file, which the digest shows.
        """
        head = json.dumps(_head(request_id, payload)).encode() + b"\n"
        if not (alone and is_own_file(self.path)):
            write_atomically(self.path, head, payload, durable=False)
            return
        with naming(self.path):
            descriptor = os.open(self.path, os.O_WRONLY | getattr(os, "O_BINARY", 0))
            try:
                write_all(descriptor, head)
                write_all(descriptor, payload)
                os.ftruncate(descriptor, len(head) + len(payload))
            finally:
                os.close(descriptor)


def is_own_file(path: Path) -> bool:
    """Whether it is a regular file with one name: overwriting a link would change other files."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _first_head(request_id: str, payload: bytes) -> Record:
    """The header that run directories of format 1 have: a SHA-256 in place of the CRC-32."""
    start = json.dumps(request_id).encode() + b"\n"
    digest = hashlib.sha256(start + payload).hexdigest()
    return {"question": request_id, "bytes": len(payload), "sha256": digest}


def _head(request_id: str, payload: bytes) -> Record:
    """The header: request, payload size, and the CRC-32 of both texts."""
    start = json.dumps(request_id).encode() + b"\n"
    digest = zlib.crc32(payload, zlib.crc32(start))
    return {"question": request_id, "bytes": len(payload), "crc32": digest}
