"""The account of a simulated client on our engines: the driver has charged it, and the charge comes with the message.

In the state of the client's Flower Context:

    driver -> client   the ledger entry of this attempt, which is on the driver's disk already; the last payload, the
                       memory of error feedback, and the key of shuffled batches, where the client needs them
    client -> driver   whether the attempt was used; the rows of its batches, if they are recorded; its new memory

So a client writes no file, draws nothing without an entry of the driver, and draws once for each.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from jaxtyping import Float, Int64
from torch import Tensor

from fedlsg.privacy import Entry, LedgerError
from fedlsg.privacy.ledger_entry import decode_entry, encode_entry
from simulations.client.replica import History
from simulations.rundir.files.sealed import parse_checkpoint
from simulations.rundir.updates import FAR
from strategies.federation.serial import config_in

RECORD = "account"


@dataclass(frozen=True)
class GivenAccount:
    """Reads and writes the record of a client's state. Methods as in ``SimulatedAccount``, and those of its box."""

    record: ConfigRecord
    run: History
    record_updates: bool
    name: str = ""

    @property
    def path(self) -> str:
        """Where the ledger is, for messages."""
        return "the run's ledger"

    @property
    def client(self) -> int:
        """The partition."""
        return self._entry.client

    @cached_property
    def _entry(self) -> Entry:
        return decode_entry(json.loads(str(self.record["entry"])))

    def of_round(self, round: int) -> tuple[Entry, ...]:
        """Nothing: a stored payload is sent again by the driver itself."""
        return ()

    def next_attempt(self, round: int) -> int:
        """The attempt that the driver has charged."""
        return self._entry.attempt

    def next_batch(self, entry: Entry) -> Entry:
        """The entry with the shuffled batches that the driver has charged."""
        first = self._entry.first_batch
        return entry if entry.first_batch == first else replace(entry, first_batch=first)

    def batch_key(self, entry: Entry) -> bytes:
        """The key of the orders of shuffled batches, which the driver has sent."""
        return _bytes(self.record["batches"])

    def check(self, entry: Entry) -> None:
        """Nothing: the driver has checked the budget."""

    def charge(self, entry: Entry) -> None:
        """Use the charge that is on the driver's disk. Raises LedgerError if this is another one, or was used."""
        if entry != self._entry:
            raise LedgerError(f"the driver has charged {self._entry}, and this client would be charged {entry}")
        if self.record["charged"]:
            raise LedgerError(f"attempt {entry.attempt} of round {entry.round} was used: a second draw is not charged")
        self.record["charged"] = True

    def keep_truth(self, round: int, rows: Sequence[Tensor]) -> None:
        """Return the rows of the batches, if the settings keep them for evaluating attacks."""
        if self.record_updates:
            self.record["rows"] = torch.cat(list(rows)).cpu().numpy().astype("<i8").tobytes()

    def box(self, *, memory: bool) -> "GivenAccount":
        """What keeps the payload and the memory: the driver."""
        return self

    def find(self, question: str) -> bytes | None:
        """Nothing: see ``of_round``."""
        return None

    def last(self) -> bytes | None:
        """The payload of the client's last message."""
        found = self.record.get("last")
        return found if isinstance(found, bytes) else None

    def memory(self, round: int, size: int) -> Float[Tensor, " size"]:
        """The memory of error feedback that this round starts from."""
        return torch.from_numpy(np.frombuffer(_bytes(self.record["memory"]), "<f8").astype(np.float64))

    def store(self, question: str, payload: bytes, memory: Float[Tensor, " size"], *, round: int) -> bytes:
        """Return the new memory; the driver stores it with the payload."""
        self.record["memory"] = memory.detach().cpu().numpy().astype("<f8").tobytes()
        return payload


def give(
    entry: Entry,
    *,
    last: bytes | None,
    memory: Float[Tensor, " size"] | None,
    batches: bytes | None = None,
    here: bool = False,
) -> RecordDict:
    """The state of a client's Context, as the driver sends it. ``here``: client and driver are one process."""
    record = ConfigRecord({"entry": json.dumps(encode_entry(entry)), "charged": False, "here": here})
    if last is not None:
        record["last"] = last
    if batches is not None:
        record["batches"] = batches
    if memory is not None:
        record["memory"] = memory.numpy().astype("<f8").tobytes()
    return RecordDict({RECORD: record})


@dataclass(frozen=True, kw_only=True)
class Returned:
    """What the state says when it is back; ``charged``: the attempt was used, or nobody knows.

    ``rows`` and ``memory`` are secrets of the client.
    """

    charged: bool
    rows: Int64[Tensor, " n"] | None
    memory: Float[Tensor, " size"] | None


def read_returned(state: RecordDict) -> Returned:
    """The driver's reading of a state."""
    record = config_in(state, RECORD)
    if record is None:
        return Returned(charged=True, rows=None, memory=None)
    rows = _array(record, "rows", "<i8")
    memory = _array(record, "memory", "<f8")
    return Returned(charged=record["charged"] is not False, rows=rows, memory=memory)


def _array(record: ConfigRecord, name: str, dtype: str) -> Any:
    if name not in record:
        return None
    return torch.from_numpy(np.frombuffer(_bytes(record[name]), dtype).astype(dtype[1:]))


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value


class SentHistory:
    """What the driver has sent to this process: steps of a sparse downlink, or a checkpoint in place of early ones, and
    the carriers of the last probe.
    """

    def __init__(self) -> None:
        self.steps: dict[int, bytes] = {}
        self.bases: dict[int, bytes] = {}
        self.checkpoint: bytes | None = None

    def add(self, sent: Sequence[tuple[int, bytes]], bases: Sequence[tuple[int, bytes]] = ()) -> None:
        """What the driver has sent: steps by version, and a checkpoint as version -1; the last probe by its round."""
        self.bases = dict(bases) or self.bases
        for version, content in sent:
            if version < 0:
                self.checkpoint = content
            else:
                self.steps[version] = content
        for version in sorted(self.steps)[:-FAR]:
            del self.steps[version]

    def forget(self) -> None:
        """Another run begins."""
        self.steps, self.bases, self.checkpoint = {}, {}, None

    def step(self, version: int) -> bytes:
        """The step to a version. Raises FileNotFoundError where it was not sent."""
        if version not in self.steps:
            raise FileNotFoundError(f"step {version} was not sent")
        return self.steps[version]

    def load_checkpoint(self) -> dict[str, Any]:
        """The checkpoint that was sent. Raises ValueError if none was."""
        if self.checkpoint is None:
            raise ValueError("no checkpoint was sent")
        return parse_checkpoint(self.checkpoint, Path("checkpoint of the driver"))

    def basis(self, round: int) -> bytes:
        """The carriers that the server probed in a round. Raises FileNotFoundError where they were not sent."""
        if round not in self.bases:
            raise FileNotFoundError(f"the carriers of round {round} were not sent")
        return self.bases[round]

    def own_basis(self, client: int) -> Path:
        """Nowhere, as ``replica``."""
        raise LookupError(f"client {client} has no basis of its own")

    def replica(self, client: int) -> Path:
        """Nowhere: all clients of this process share one replica, which no file has."""
        raise LookupError(f"client {client} has no replica of its own")


HISTORY = SentHistory()
"""Of this process; another run begins with an empty one."""
