"""The last payload of a client, kept until the next one: to send it again, byte for byte, costs no
privacy.

    checkpoint/outbox/client-000003.bin            JSON header, newline, payload
    clients/client-000003/feedback-000012.bin      JSON header, newline, payload of round 12, memory
                                                   after it (float64)

The header holds a digest of the request's id and the payload. In files the id is named "question".
A damaged file is not sent, and the client trains again. (Of a payload without memory the digest is
a CRC-32, which finds what a crash tore: the payload has a SHA-256 of its own, which the server
checks.)

Under error feedback a client's memory is in one file with its payload: both change, or neither. The
memory is SECRET: sums of the client's gradients without noise. It is in the client's own folder,
which only its owner can read. Only ``FeedbackBox`` reads it, and it returns only the payload for
sending. (The driver of engine ray gives the memory to the worker that simulates this client, and
stores what comes back.)

If the process ends before the file is in place, the client trains again, from the memory of round
11. If it ends later, the client sends the stored payload again and the memory stays. Two files
would leave a moment in between.
The file of the round before is kept: the server may announce the same round once more with another
frame (carriers of another processor). The new payload then starts from the memory that the old one
started from.

Two processes may reply for one client: a late one with the message of an earlier round, or a second
one with the same message. The file that is stored first stays: neither a memory of a later round
nor the reply to the same request is replaced. The folder is locked from that check to the end of
the store (POSIX).
"""

import hashlib
import json
import os
import secrets
import stat
import zlib
from dataclasses import dataclass
from logging import WARNING
from pathlib import Path

import numpy as np
import torch
from flwr.common.logger import log
from jaxtyping import Float
from torch import Tensor

from fedlsg import bounded
from fedlsg.locks import locked
from fedlsg.owner_only import make_folder
from fedlsg.privacy import Entry, LedgerError
from fedlsg.privacy.ledger_file import write_all
from fedlsg.simulations.storage.atomic_files import Record, naming, write_atomically


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
        """The stored payload; it is not read if it answers something else than ``request_id``."""
        try:
            with self.path.open("rb") as file:
                known = bounded.parse_json(file.readline(LONGEST_HEAD))
                if request_id is not None and known["question"] != request_id:
                    return None
                payload = file.read()
            head_of = _first_head if "sha256" in known else _head
            if known != head_of(known["question"], payload):
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
    """Whether the file is there, and has no other name: to overwrite a link changes other files."""
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
    start = json.dumps(request_id).encode() + b"\n"
    digest = zlib.crc32(payload, zlib.crc32(start))
    return {"question": request_id, "bytes": len(payload), "crc32": digest}


KEPT_FILES = 2
LONGEST_HEAD = 2**20
"""Bytes of a header."""
MEMORY_KEYS = {"client", "round", "question", "payload", "first", "sha256"}


@dataclass(frozen=True)
class Stored:
    """One file: the payload of ``round``, and the memory after it.

    started_without_memory: it is the client's first payload ("first" in the file).
    """

    round: int
    request_id: str
    started_without_memory: bool
    payload: bytes
    memory: Float[Tensor, " size"]


@dataclass(frozen=True)
class FeedbackBox:
    """The folder of one client. Raises ValueError, naming the file, if a file that is needed is
    damaged.
    """

    folder: Path
    client: int

    def find(self, request_id: str) -> bytes | None:
        """The stored payload that answers exactly this request_id."""
        for round, path in self._files():
            with path.open("rb") as file:
                if json.dumps(request_id).encode() not in file.readline(LONGEST_HEAD):
                    continue
            stored = self._read(round, path)
            if stored.request_id == request_id:
                return stored.payload
        return None

    def last(self) -> bytes | None:
        """The last stored payload, whatever it answers."""
        return next((self._read(*file).payload for file in self._files()), None)

    def memory(self, round: int, size: int) -> Float[Tensor, " size"]:
        """The memory that the payload of ``round`` starts from: float64, zeros for a client that
        has sent nothing.

        Raises ValueError if a later round is stored, if the memory before ``round`` is deleted, or
        if the model has other coordinates.
        """
        files = self._files()
        self._refuse_older(round, files)
        earlier = [file for file in files if file[0] < round]
        if not earlier:
            self._refuse_deleted(round, files)
            return torch.zeros(size, dtype=torch.float64)
        before = self._read(*earlier[0])
        if len(before.memory) != size:
            raise ValueError(
                f"{self._path(before.round)} remembers {len(before.memory)} values, expected {size}"
            )
        return before.memory

    def newest(self, round: int, size: int) -> Float[Tensor, " size"]:
        """The memory after the last payload up to ``round``; zeros for a client that has sent
        nothing.
        """
        for number, path in self._files():
            if number <= round:
                return self._read(number, path).memory
        return torch.zeros(size, dtype=torch.float64)

    def store(
        self, request_id: str, payload: bytes, memory: Float[Tensor, " size"], *, round: int
    ) -> bytes:
        """Write payload and memory as one, atomically and durably; delete files older than the
        round before.

        Returns the payload to send: this one, or the one that another process has stored for the
        same request_id.
        Raises ValueError for a memory that is not finite, or if the memory of a later round is
        stored by now.
        """
        if not bool(memory.isfinite().all()):
            raise ValueError(
                "what this client keeps would not be finite; choose a smaller learning rate"
            )
        make_folder(self.folder)
        with locked(self.folder):
            files = self._files()
            self._refuse_older(round, files)
            if (stored := self.find(request_id)) is not None:
                return stored
            started_without_memory = not any(number < round for number, _ in files)
            body = payload + memory.detach().cpu().numpy().astype("<f8").tobytes()
            head = {
                "client": self.client,
                "round": round,
                "question": request_id,
                "payload": len(payload),
                "first": started_without_memory,
            }
            head["sha256"] = _digest(head, body)
            write_atomically(
                self._path(round), json.dumps(head).encode() + b"\n", body, private=True
            )
            for _, path in self._files()[KEPT_FILES:]:
                path.unlink()
        return payload

    def check(self) -> None:
        """Raise ValueError if a file is damaged."""
        for file in self._files():
            self._read(*file)

    def forget_after(self, round: int) -> None:
        """Delete the payloads of later rounds, and their memories: the server went back."""
        for _, path in [file for file in self._files() if file[0] > round]:
            path.unlink()

    def _refuse_older(self, round: int, files: list[tuple[int, Path]]) -> None:
        if files and files[0][0] > round:
            raise ValueError(self._went_back(round, files[0][0]))

    def _refuse_deleted(self, round: int, files: list[tuple[int, Path]]) -> None:
        """Raise ValueError if the oldest stored payload is not the client's first.

        The memory that it started from was deleted, and so was that of all rounds before.
        """
        if files and not self._read(*files[-1]).started_without_memory:
            raise ValueError(self._went_back(round, files[-1][0]))

    def _went_back(self, round: int, remembered: int) -> str:
        return (
            f"{self.folder} remembers round {remembered}, and the server announced round {round}: "
            "this client is too late, or the server went back; in that case restore the folder to "
            "that round, or remove it to begin without memory"
        )

    def _path(self, round: int) -> Path:
        return self.folder / f"feedback-{round:06d}.bin"

    def _files(self) -> list[tuple[int, Path]]:
        """Rounds and files, the last round first."""
        numbered = [
            (int(path.stem.rpartition("-")[2]), path) for path in self.folder.glob("feedback-*.bin")
        ]
        return sorted(numbered, reverse=True)

    def _read(self, round: int, path: Path) -> Stored:
        try:
            line, body = path.read_bytes().split(b"\n", 1)
            head = bounded.parse_json(line)
            if head.keys() != MEMORY_KEYS or (head["client"], head["round"]) != (
                self.client,
                round,
            ):
                raise ValueError
            if head["sha256"] != _digest({key: head[key] for key in head if key != "sha256"}, body):
                raise ValueError
            cut = head["payload"]
            memory = torch.from_numpy(np.frombuffer(body[cut:], "<f8").astype(np.float64))
        except (ValueError, AttributeError, TypeError):
            raise ValueError(
                f"{path} is damaged, or another client's: restore it, or remove it to begin "
                "without its memory"
            ) from None
        return Stored(head["round"], head["question"], head["first"], body[:cut], memory)


def _digest(head: Record, body: bytes) -> str:
    return hashlib.sha256(json.dumps(head, sort_keys=True).encode() + b"\n" + body).hexdigest()


KEY_BYTES = 32


def batch_key(folder: Path, entry: Entry, *, batch_size: int, rows: str = "") -> bytes:
    """The key of the orders in which a client shuffles its rows; its first charge makes the key.

    ``entry``: the charge that is made now.
    ``rows``: a digest of the client's rows in their order, where nothing else keeps them the same
    within a run.
    Raises LedgerError if the key is lost or damaged, or was made for another batch size or other
    rows: nobody knows then who took part in this epoch.
    """
    path = folder / "batches.key"
    made_for = hashlib.sha256(f"{entry.num_examples} {batch_size} {rows}".encode()).digest()
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        if entry.first_batch:
            raise LedgerError(
                f"{path} is missing: without it examples could be in two batches of an epoch, "
                "which the ledger does not count; restore the file from a copy, or start a new run"
            ) from None
        content = secrets.token_bytes(KEY_BYTES) + made_for
        write_atomically(path, content, private=True)
    if len(content) != KEY_BYTES + len(made_for):
        raise LedgerError(
            f"{path} is damaged: expected {KEY_BYTES + len(made_for)} bytes; restore it from a "
            "copy, or start a new run"
        )
    if content[KEY_BYTES:] != made_for:
        raise LedgerError(
            f"{path} is of another batch size than {batch_size}, or of other training rows: "
            "examples could be in two batches of an epoch, which the ledger does not count; "
            "restore them, or start a new run"
        )
    return content[:KEY_BYTES]
