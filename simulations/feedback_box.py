"""A client's memory of error feedback, in one file with the payload that it belongs to: both change, or neither.

    clients/client-000003/feedback-000012.bin      JSON header, newline, payload of round 12, memory after it (float64)

What is in it is SECRET: un-noised sums of the client's gradients. It lies in the client's own folder, only this module
reads it, and only the payload part is ever handed out to be sent.

A crash before the file is in place leaves round 11: the client trains again, from the memory of round 11. A crash after
it leaves the payload: asked again, the client sends it again and the memory stays. There is no moment in between, which
two files would have. The file of the round before is kept, for a server that asks the same round anew in other words
(carriers of another processor): the new payload then starts from the memory that the old one started from.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from simulations.outbox import write_atomically

KEPT = 2
KEYS = {"client", "round", "question", "payload", "first", "sha256"}


@dataclass(frozen=True)
class Stored:
    """One file: the payload of ``round``, and the memory after it. ``first``: there was no memory before."""

    round: int
    question: str
    first: bool
    payload: bytes
    memory: Float[Tensor, " size"]


@dataclass(frozen=True)
class FeedbackBox:
    """The folder of one client. Raises ValueError, naming the file, where what is looked for is damaged."""

    folder: Path
    client: int

    def find(self, question: str) -> bytes | None:
        """The stored payload that answers exactly this question."""
        for round, path in self._files():
            with path.open("rb") as file:
                if json.dumps(question).encode() not in file.readline():
                    continue
            stored = self._read(round, path)
            if stored.question == question:
                return stored.payload
        return None

    def last(self) -> bytes | None:
        """The last stored payload, whatever it answers."""
        return next((self._read(*file).payload for file in self._files()), None)

    def memory(self, round: int, size: int) -> Float[Tensor, " size"]:
        """The memory that the payload of ``round`` starts from: float64, zeros for a client that has sent nothing.

        Raises ValueError where the server has gone back beyond the rounds that are kept, or the model has other
        coordinates.
        """
        files = self._files()
        earlier = [file for file in files if file[0] < round]
        if not earlier:
            if files and not self._read(*files[-1]).first:
                raise ValueError(
                    f"{self.folder} remembers round {files[-1][0]} and later ones, and round {round} is asked: the "
                    "server went back; restore the folder to that round, or remove it to begin without memory"
                )
            return torch.zeros(size, dtype=torch.float64)
        before = self._read(*earlier[0])
        if len(before.memory) != size:
            raise ValueError(f"{self._path(before.round)} remembers {len(before.memory)} values, expected {size}")
        return before.memory

    def store(self, question: str, payload: bytes, memory: Float[Tensor, " size"], *, round: int) -> None:
        """Write payload and memory as one, atomically and durably; drop what is older than the round before, or newer.

        Raises ValueError for a memory that is not finite.
        """
        if not bool(memory.isfinite().all()):
            raise ValueError("error feedback: the memory would not be finite; choose a smaller learning rate")
        first = not any(number < round for number, _ in self._files())
        body = payload + memory.detach().cpu().numpy().astype("<f8").tobytes()
        head = {"client": self.client, "round": round, "question": question, "payload": len(payload), "first": first}
        head["sha256"] = _digest(head, body)
        write_atomically(self._path(round), json.dumps(head).encode() + b"\n", body)
        files = self._files()
        newer = [path for number, path in files if number > round]
        older = [path for number, path in files if number <= round][KEPT:]
        for path in newer + older:
            path.unlink()

    def _path(self, round: int) -> Path:
        return self.folder / f"feedback-{round:06d}.bin"

    def _files(self) -> list[tuple[int, Path]]:
        """Rounds and files, the last first."""
        found = [(int(path.stem.rpartition("-")[2]), path) for path in self.folder.glob("feedback-*.bin")]
        return sorted(found, reverse=True)

    def _read(self, round: int, path: Path) -> Stored:
        try:
            line, body = path.read_bytes().split(b"\n", 1)
            head = json.loads(line)
            if head.keys() != KEYS or (head["client"], head["round"]) != (self.client, round):
                raise ValueError
            if head["sha256"] != _digest({key: head[key] for key in head if key != "sha256"}, body):
                raise ValueError
            cut = head["payload"]
            memory = torch.from_numpy(np.frombuffer(body[cut:], "<f8").astype(np.float64))
        except (ValueError, AttributeError, TypeError):
            raise ValueError(
                f"{path} is damaged, or another client's: restore it, or remove it to begin without its memory"
            ) from None
        return Stored(head["round"], head["question"], head["first"], body[:cut], memory)


def _digest(head: dict[str, Any], body: bytes) -> str:
    return hashlib.sha256(json.dumps(head, sort_keys=True).encode() + b"\n" + body).hexdigest()
