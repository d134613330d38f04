"""The payloads of one client under error feedback, each in one file with the memory after it.

    clients/client-000003/feedback-000012.bin      JSON header, newline, payload of round 12, memory
                                                   after it (float64)

Both change, or neither: two files would leave a moment in between. If the process ends before the
file is in place, the client trains again, from the memory of round 11. If it ends later, the client
sends the stored payload again and the memory stays.

The memory is SECRET: sums of the client's gradients without noise. It is in the client's own
folder, which only its owner can read. Only ``FeedbackBox`` reads it, and it returns only the
payload for sending. (The driver of engine ray gives the memory to the worker that simulates this
client, and stores what comes back.)

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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg import bounded
from fedlsg.locks import locked
from fedlsg.owner_only import make_folder
from fedlsg.simulations.storage.atomic_files import Record, write_atomically
from fedlsg.simulations.storage.last_payload import LONGEST_HEAD

KEPT_FILES = 2
"""Files of a client: the last round's and the one before it."""
HEAD_KEYS = {"client", "round", "question", "payload", "first"}
"""Entries of a header, next to its digest "sha256"; "payload" is the payload size in bytes."""


@dataclass(frozen=True)
class Stored:
    """The content of one file.

    round: the round of the payload.
    request_id: of the request that it answers ("question" in the file).
    started_without_memory: whether it is the client's first payload ("first" in the file).
    payload: as it was sent.
    memory: after this payload; float64.
    """

    round: int
    request_id: str
    started_without_memory: bool
    payload: bytes
    memory: Float[Tensor, " size"]


@dataclass(frozen=True)
class FeedbackBox:
    """The folder of one client's payloads and memories.

    Raises ValueError, naming the file, if a file that is needed is damaged.

    folder: ``clients/client-000003``, made by ``store``.
    client: its number.
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
        self._check_round(round, files)
        earlier = [file for file in files if file[0] < round]
        if not earlier:
            self._check_first(round, files)
            return torch.zeros(size, dtype=torch.float64)
        before = self._read(*earlier[0])  # the last round comes first
        if len(before.memory) != size:
            raise ValueError(
                f"{self._path(before.round)} remembers {len(before.memory)} values, expected {size}"
            )
        return before.memory

    def newest(self, round: int, size: int) -> Float[Tensor, " size"]:
        """The memory after the last payload up to ``round``; zeros for a client that has sent
        nothing.
        """
        for stored_round, path in self._files():
            if stored_round <= round:
                return self._read(stored_round, path).memory
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
                "expected a finite memory of this client, got NaN or infinite values; choose a "
                "smaller learning rate"
            )
        make_folder(self.folder)
        with locked(self.folder):
            files = self._files()
            self._check_round(round, files)
            if (stored := self.find(request_id)) is not None:
                return stored
            started_without_memory = not any(stored_round < round for stored_round, _ in files)
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
        for stored_round, path in self._files():
            if stored_round > round:
                path.unlink()

    def _check_round(self, round: int, files: list[tuple[int, Path]]) -> None:
        """Raise ValueError if a later round is stored."""
        if files and files[0][0] > round:
            raise ValueError(self._went_back(round, files[0][0]))

    def _check_first(self, round: int, files: list[tuple[int, Path]]) -> None:
        """Raise ValueError if the oldest stored payload is not the client's first.

        The memory that it started from was deleted, and so was that of all rounds before.
        """
        if files and not self._read(*files[-1]).started_without_memory:
            raise ValueError(self._went_back(round, files[-1][0]))

    def _went_back(self, round: int, remembered: int) -> str:
        """The message for a round whose memory is no longer stored."""
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
            digest = head.pop("sha256")
            if head.keys() != HEAD_KEYS or digest != _digest(head, body):
                raise ValueError
            if (head["client"], head["round"]) != (self.client, round):
                raise ValueError
            payload_bytes = head["payload"]
            memory = torch.from_numpy(np.frombuffer(body[payload_bytes:], "<f8").astype(np.float64))
        except (ValueError, AttributeError, TypeError, KeyError):
            raise ValueError(
                f"{path} is damaged, or another client's: restore it, or remove it to begin "
                "without its memory"
            ) from None
        return Stored(round, head["question"], head["first"], body[:payload_bytes], memory)


def _digest(head: Record, body: bytes) -> str:
    return hashlib.sha256(json.dumps(head, sort_keys=True).encode() + b"\n" + body).hexdigest()
