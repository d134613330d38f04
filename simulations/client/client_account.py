"""Accounts, to which a client's training is charged: its ledger, budget and folder of the run.

SimulatedAccount   a simulated client as its driver sees it; or in Flower's own simulation, where it
                   keeps its own ledger
GivenAccount       a simulated client on our engines: the driver has charged it
NodeAccount        a deployed client: one ledger of its own over all runs (``deployed``)

On our engines the charge comes with the message, in the state of the client's Flower Context:

    driver -> client   the ledger entry of this attempt, which is on the driver's disk already; the
                       last payload, the memory of error feedback, and the key of shuffled batches,
                       where the client needs them
    client -> driver   whether the attempt was used; the rows of its batches, if they are recorded;
                       its new memory

So a client writes no file, draws nothing without an entry of the driver, and draws once for each.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord
from jaxtyping import Float
from torch import Tensor

from fedlsg.privacy import Entry, Ledger, LedgerError, ShuffledBatches
from fedlsg.privacy.ledger_entry import decode_entry, encode_entry
from fedlsg.privacy.run_ledger import ClientCharges
from fedlsg.randomness import SecretStream, reproducible_stream
from fedlsg.simulations.client.batch_key import batch_key
from fedlsg.simulations.client.node.refusals import OverBudgetError
from fedlsg.simulations.client.replica import History
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.settings.any_run import Resolved
from fedlsg.simulations.settings.own_epsilons import budget_of
from fedlsg.simulations.settings.settings import Settings
from fedlsg.simulations.storage.feedback_box import FeedbackBox
from fedlsg.simulations.storage.last_payload import LastPayload
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.state import RoundPlan

RECORD = "account"
"""The record in a client's state with the charge of the driver."""


class ClientAccount:
    """The account of one client. Its methods do nothing where subclasses do not define them.

    A refused entry raises before it is charged.

    name: of the run, in the ledger.
    run: the directory of the run, or the files of it that the driver has sent.
    """

    name: str = ""
    run: Any

    @property
    def client(self) -> int:
        """The client's partition."""
        raise NotImplementedError

    @property
    def path(self) -> Path | str:
        """The place of the ledger, for messages."""
        return "the run's ledger"

    def of_round(self, round: int) -> tuple[Entry, ...]:
        """The entries of a round of this run."""
        return ()

    def next_attempt(self, round: int) -> int:
        """The number of the next attempt at a round."""
        return 0

    def next_batch(self, entry: Entry) -> Entry:
        """The entry with the shuffled batches that it takes: see ``Ledger.next_batch``."""
        return entry

    def batch_key(self, entry: Entry) -> bytes:
        """The key of the orders of shuffled batches: see the function ``batch_key``."""
        raise NotImplementedError

    def check(self, entry: Entry) -> None:
        """Raise OverBudgetError if the entry would pass the budget, before anything is computed."""

    def charge(self, entry: Entry) -> None:
        """Charge the entry; when this returns, it is on disk."""

    def box(self, *, memory: bool) -> "Box":
        """The box of the last payload; with ``memory``, of the client's memory, too."""
        if memory:
            return FeedbackBox(self.run.own(self.client), self.client)
        return LastPayload(self.run.last_payload(self.client))

    def keep_truth(self, round: int, rows: Sequence[Tensor]) -> None:
        """Record the rows of the batches, if the settings keep them for evaluating attacks."""


@dataclass(frozen=True)
class SimulatedAccount(ClientAccount):
    """A simulated client in the directory of the run, under the run's own budget.

    ``ledger``: its part of the run's ledger, or a ledger of its own.
    """

    run: RunDir
    ledger: ClientCharges | Ledger
    settings: Resolved

    @property
    def client(self) -> int:
        return self.ledger.client

    @property
    def path(self) -> Path:
        return self.ledger.path

    def of_round(self, round: int) -> tuple[Entry, ...]:
        return self.ledger.of_round(round)

    def next_attempt(self, round: int) -> int:
        return self.ledger.next_attempt(round)

    def next_batch(self, entry: Entry) -> Entry:
        return self.ledger.next_batch(entry, repeat=self.settings.reproducible)

    def batch_key(self, entry: Entry) -> bytes:
        """The key, without a digest of the rows: a resumed run has the same rows."""
        return batch_key(self.run.own(self.client), entry, batch_size=self.settings.batch_size or 0)

    def check(self, entry: Entry) -> None:
        epsilon, delta = budget_of(self.settings, self.client)
        if not entry.private or epsilon is None or self.settings.reproducible:
            return
        assert delta is not None, "a private mechanism has a delta"
        if self.ledger.would_exceed(entry, epsilon, delta):
            raise OverBudgetError(
                f"round {entry.round} would pass the privacy budget epsilon={epsilon} of this "
                "client, which does not train in it: interrupted attempts are charged, too"
            )

    def charge(self, entry: Entry) -> None:
        if not self.is_charged(entry):
            self.ledger.charge(entry)

    def is_charged(self, entry: Entry) -> bool:
        """Whether an attempt needs no charge: it repeats an earlier one of a reproducible run."""
        return self.settings.reproducible and any(
            replace(earlier, attempt=entry.attempt) == entry
            for earlier in self.of_round(entry.round)
        )

    def keep_truth(self, round: int, rows: Sequence[Tensor]) -> None:
        if self.settings.record_updates:
            self.run.save_truth(round, self.client, torch.cat(list(rows)))


@dataclass(frozen=True)
class GivenAccount(ClientAccount):
    """A client that the driver has charged. It is its own box: the driver keeps the files.

    record: the record in the client's state, which it reads and writes.
    run: the steps and carriers of the run that the driver has sent.
    record_updates: whether to return the rows of the batches.
    """

    record: ConfigRecord
    run: History
    record_updates: bool

    @property
    def client(self) -> int:
        return self._entry.client

    @cached_property  # its record never changes
    def _entry(self) -> Entry:
        return _decode(str(self.record["entry"]))

    def next_attempt(self, round: int) -> int:
        return self._entry.attempt

    def next_batch(self, entry: Entry) -> Entry:
        first = self._entry.first_batch
        return entry if entry.first_batch == first else replace(entry, first_batch=first)

    def batch_key(self, entry: Entry) -> bytes:
        return _bytes(self.record["batches"])

    def charge(self, entry: Entry) -> None:
        """Use the charge of the driver. Raises LedgerError if it is another one, or was used."""
        if entry != self._entry:
            other = self._entry.difference(asdict(entry))
            raise LedgerError(f"the driver has charged {other}, which this client computes")
        if self.record["charged"]:
            raise LedgerError(
                f"attempt {entry.attempt} of round {entry.round} was used: a second draw is not "
                "charged"
            )
        self.record["charged"] = True

    def keep_truth(self, round: int, rows: Sequence[Tensor]) -> None:
        """Return the rows to the driver."""
        if self.record_updates:
            self.record["rows"] = bytes_of(torch.cat(list(rows)), "<i8")

    def box(self, *, memory: bool) -> "GivenAccount":
        return self

    def find(self, request_id: str) -> bytes | None:
        """None: the driver itself sends a stored payload again."""
        return None

    def last(self) -> bytes | None:
        """The payload of the client's last message."""
        payload = self.record.get("last")
        return payload if isinstance(payload, bytes) else None

    def memory(self, round: int, size: int) -> Float[Tensor, " size"]:
        """The memory of error feedback that this round starts from."""
        memory: Tensor = array_in(self.record, "memory", "<f8")
        return memory

    def store(
        self, request_id: str, payload: bytes, memory: Float[Tensor, " size"], *, round: int
    ) -> bytes:
        """Give the new memory to the driver, which stores it with the payload."""
        self.record["memory"] = bytes_of(memory, "<f8")
        return payload


_ENCODED: dict[str, Entry] = {}
"""Entries that this process has charged as the driver, by their JSON text.

Its own clients need not parse them. Another round forgets them (``forget_encoded``)."""


def encode(entry: Entry) -> str:
    """An entry as the JSON text in the state of a client."""
    text = json.dumps(encode_entry(entry))
    _ENCODED[text] = entry
    return text


def forget_encoded() -> None:
    """Empty the cache of ``encode``: another round begins."""
    _ENCODED.clear()


def _decode(text: str) -> Entry:
    return _ENCODED[text] if text in _ENCODED else decode_entry(json.loads(text))


Box = LastPayload | FeedbackBox | GivenAccount
"""A keeper of a client's last payload."""


def array_in(record: ConfigRecord, name: str, dtype: str) -> Any:
    """The numbers in an entry of a record as a tensor; None without the entry."""
    if name not in record:
        return None
    return torch.from_numpy(np.frombuffer(_bytes(record[name]), dtype).astype(dtype[1:]))


def bytes_of(values: Tensor, dtype: str) -> bytes:
    """A tensor as the bytes of an entry in a record."""
    return values.detach().cpu().numpy().astype(dtype).tobytes()


def _bytes(value: object) -> bytes:
    """Narrows a value of a record to bytes."""
    assert isinstance(value, bytes)
    return value


def entry_of(
    account: ClientAccount, plan: RoundPlan, num_examples: int, *, reproducible: bool
) -> Entry:
    """The next entry of a client in a round; ``plan``: with the client's own rate and noise."""
    entry = Entry(
        client=account.client,
        round=plan.round,
        attempt=account.next_attempt(plan.round),
        reproducible=reproducible,
        run=account.name,
        **plan.charge(num_examples),
    )
    return account.next_batch(entry)


def takes_part_in_secret(base: Base) -> bool:
    """Whether no file may tell that a client took part: only the server's ledger is charged."""
    return base.unit.at_server


_DIRECTORIES: dict[Settings, str] = {}
"""The run directory by settings: the first one that this process was told, for as long as it runs.
"""


def own_directory(settings: Settings, announced: str) -> RunDir:
    """The run directory with a simulated client's ledger: of its settings, or as first announced.

    Raises ValueError if the server names another directory later: the client would get its budget
    once more.
    """
    own = _DIRECTORIES.setdefault(settings, settings.run_dir or announced)
    path = _resolve(own, os.getcwd())
    if path != _resolve(announced, os.getcwd()):
        raise ValueError(
            f"the server names the run directory {announced}, this client's ledger is in {own}"
        )
    return RunDir(path)


def _resolve(path: str, working_directory: str) -> Path:
    return Path(working_directory, path).resolve()


def batches_of(base: Base, entry: Entry, key: bytes | None) -> ShuffledBatches:
    """The shuffled batches that an entry pays for; without a ``key``, those of the run's seed."""

    def order(epoch: int) -> SecretStream:
        if key is None:
            return reproducible_stream(
                base.settings.seed, *base.stream, "batches", entry.client, epoch
            )
        return SecretStream(hashlib.sha256(key + b"\x1fepoch\x1f%d" % epoch).digest())

    return ShuffledBatches(
        num_examples=entry.num_examples,
        batch_size=base.local.shuffled,
        first=entry.first_batch,
        order=order,
    )
