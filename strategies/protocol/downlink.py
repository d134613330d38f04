"""The downlink: records of the model for clients, and the simplest kind, the whole model.

weights  the whole model; for a client with a replica only if that is smaller, or its replica was
         lost
replica  version of the announced weights, version that the steps start from, SHA-256 of the
         weights
steps    the updates from one version to the other (``fedlsg.state.Step``); none if they are equal
state    with the whole model: the state that a replica continues from; without it the client has no
         replica afterwards
basis    the carriers of a probe, for clients that were not there at the refresh and cannot derive
         them: one flat float32 array, L, R and both energies of every carried weight
         (``fedlsg.carriers.probe.flatten``)
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fedlsg.carriers.probe import Basis, flatten
from fedlsg.frame import Frame
from fedlsg.state import ServerState, Step, StepError
from fedlsg.state.server_update import read_steps
from fedlsg.strategies.protocol.wire import (
    array_bytes,
    config_in,
    flat_record,
    frame_record,
    kept_record,
    raw_array,
    read_array,
)

NOWHERE = -1
"""The base in a message with weights alone, after which the client has no replica."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The announced weights.

    version: steps since the initial model.
    base: version that the steps of the message start from, or NOWHERE.
    digest: SHA-256 of the weights.
    """

    version: int
    base: int
    digest: bytes


Records = dict[str, ArrayRecord | ConfigRecord]
"""By name, see the header of the file."""


def digest_of(weights: Tensor) -> bytes:
    """SHA-256 of flat float32 weights, encoded as in a message."""
    return hashlib.sha256(weights.detach().cpu().numpy().tobytes()).digest()


def catch_up(reference: Reference, steps: Sequence[bytes]) -> Records:
    """Records that bring a replica from ``reference.base`` to the announced version."""
    records: Records = {"replica": ConfigRecord(asdict(reference))}
    if steps:
        joined = np.frombuffer(b"".join(steps), np.uint8)
        records["steps"] = ArrayRecord({"updates": raw_array(joined)})
    return records


def whole(reference: Reference, weights: ArrayRecord, state: Mapping[str, Tensor]) -> Records:
    """Records of the whole model; a replica continues if ``reference.base`` is the version."""
    records: Records = {"replica": ConfigRecord(asdict(reference)), "weights": weights}
    if state:
        records["state"] = ArrayRecord(
            {name: raw_array(vector.detach().cpu().numpy()) for name, vector in state.items()}
        )
    return records


def read_reference(content: RecordDict) -> Reference | None:
    """The reference of a message; None for a message with full weights and nothing else.

    Raises KeyError or ValueError for another record.
    """
    config = config_in(content, "replica")
    if config is None:
        return None
    version, base, digest = (config[field.name] for field in fields(Reference))
    if not (isinstance(version, int) and isinstance(base, int) and isinstance(digest, bytes)):
        raise ValueError(
            "the announced version of the model is not valid: expected two numbers and a digest"
        )
    return Reference(version=version, base=base, digest=digest)


def read_missed(content: RecordDict, reference: Reference) -> list[Step]:
    """The steps of a message from ``reference.base`` on. Raises StepError for another number."""
    steps = []
    if "steps" in content.array_records:
        steps = read_steps(content.array_records["steps"]["updates"].data)
    if len(steps) != reference.version - reference.base:
        raise StepError(f"{len(steps)} steps from version {reference.base} to {reference.version}")
    return steps


def read_state(content: RecordDict) -> dict[str, Tensor]:
    """The vectors of the ``state`` record; empty without one."""
    record: Mapping[str, Array] = content.array_records.get("state") or {}
    return {name: torch.from_numpy(read_array(array)) for name, array in record.items()}


Keep = Callable[[Basis], None]
"""Stores the basis of a refresh before any client needs it."""


def basis_record(basis: Basis) -> ArrayRecord:
    """The ``basis`` record: all numbers of a basis in one array."""
    return flat_record(flatten(basis))


def read_basis(content: RecordDict) -> Tensor | None:
    """The flat basis of a message; None without one. KeyError or ValueError for another record."""
    record = content.array_records.get("basis")
    return None if record is None else torch.from_numpy(read_array(record["flat"]))


def keep_nowhere(basis: Basis) -> None:
    """Store nothing: every client derives the basis, or gets it in a message."""


class Holders:
    """Remembers which clients hold the basis of the current refresh.

    These are clients with a valid reply since then. At the refresh itself clients derive the basis;
    later a client without it gets it in a message.

    state: of the server.
    round: of the refresh.
    held: clients that hold its basis.
    """

    def __init__(self, state: ServerState, keep: Keep = keep_nowhere) -> None:
        self.state, self._keep, self._kept = state, keep, 0
        self.round, self.held = 0, set[int]()

    def records(
        self, selected: Collection[int], framed: Collection[int] = ()
    ) -> Mapping[int, Records]:
        """The ``basis`` record for clients that need it; ``framed``: clients with another basis."""
        basis = self.state.basis
        if basis is None:
            return {}
        if basis.round != self._kept:
            self._keep(basis)
            self._kept = basis.round
        if basis.round != self.round:
            self.round, self.held = basis.round, set()
        with_another = set(framed) & set(selected)
        self.held -= with_another
        needy = with_another if self.refreshes else set(selected) - self.held
        if not needy:
            return {}
        record = basis_record(basis)
        return {client: {"basis": record} for client in needy}

    @property
    def refreshes(self) -> bool:
        """Whether the round that is announced is a refresh."""
        return self.state.basis is not None and self.state.basis.round == self.state.next_round

    @property
    def missed_numbers(self) -> int:
        """Numbers in the basis if clients without it get it in this round's message, else 0."""
        basis = self.state.basis
        return 0 if basis is None or self.refreshes else len(flatten(basis))

    def confirm(self, partitions: Collection[int]) -> None:
        """Note that these clients hold the basis, which their replies show."""
        if self.state.basis is not None:
            self.held |= set(partitions)

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint; empty for a method without probes."""
        if self.state.public.source is None:
            return {}
        return {"basis": {"round": self.round, "held": sorted(self.held)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``."""
        basis = state.get("basis", {"round": 0, "held": []})
        self.round, self.held = basis["round"], set(basis["held"])


NOTHING = {"attempts": 0, "messages": 0, "bytes": 0}
"""Counts of interrupted rounds: rounds, and the messages and payload bytes that they sent down."""


class Notes(Protocol):
    """Keeps a note of the messages of the current round, for the next process of the run."""

    def write_sent(self, note: Mapping[str, Any], /) -> None:
        """Replace the note."""

    def read_sent(self) -> dict[str, Any]:
        """The last note."""


class Downlink:
    """Sends the dense weights to every client in every round; other kinds are derived from it.

    The strategy calls ``records`` for the selected clients, ``confirm``, then ``finish_round``.
    Messages are counted before they are sent, in a note, so that an interrupted round is counted.
    Guarantee: when a process ends at any point, its successor counts each message that may have
    left exactly once: with a finished round or with the interrupted rounds. (Not synced: a machine
    that crashes may lose the last note.)

    state: of the server.
    holders: clients with the basis of a probe.
    notes: of messages; None in a run that is not continued.
    repairs: by client, whole models that it got because it had lost its replica.
    interrupted: counts as in NOTHING.
    """

    def __init__(
        self, state: ServerState, keep: Keep = keep_nowhere, notes: Notes | None = None
    ) -> None:
        self.state, self.holders, self.notes = state, Holders(state, keep), notes
        self.repairs: Counter[int] = Counter()
        self.interrupted = dict(NOTHING)
        self._attempt = 0  # rounds that this process and those before it have begun
        self._current: dict[str, int] | None = None

    def records(
        self,
        selected: Sequence[int],
        frame: Frame,
        *,
        framed: Collection[int] = (),
        lost: Collection[int] = (),
    ) -> Mapping[int, Records]:
        """The records of each selected client's message, which are counted.

        framed: clients that get the whole frame.
        lost: clients that get the whole model.
        """
        made = self._records(selected, frame, framed, lost)
        if self._current is None:
            self._attempt += 1
            self._current = {**NOTHING, "attempts": 1}
        self._current["messages"] += len(made)
        self._current["bytes"] += sum(array_bytes(records.values()) for records in made.values())
        if self.notes is not None:
            note = {
                "attempt": self._attempt,
                "interrupted": self._if_interrupted(),
                "repairs": self.repairs,
            }
            self.notes.write_sent(note)
        return made

    def confirm(self, partitions: Collection[int]) -> None:
        """Note that these clients hold the announced model, which their replies show."""
        self.holders.confirm(partitions)

    def abandon_round(self) -> None:
        """Count this round, in which no reply arrived, as interrupted; its records follow again."""
        self.interrupted, self._current = self._if_interrupted(), None

    def finish_round(self, frame: Frame, updates: Sequence[Tensor], noise_std: float) -> None:
        """Apply the clients' values, see ``ServerState.finish_round``, and end the round."""
        self._apply(frame, updates, noise_std)
        self._current = None

    def prune(self, frame: Frame, updates: Sequence[Tensor], *, num_examples: int) -> None:
        """Prune by the clients' values, see ``ServerState.prune``, and end the round."""
        self.state.prune(frame, updates, num_examples=num_examples)
        self._current = None

    def state_dict(self) -> dict[str, Any]:
        """The state for a resumed run, in plain values."""
        return {
            **self.holders.state_dict(),
            "attempt": self._attempt,
            "interrupted": self.interrupted,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``; a noted round after the state was interrupted."""
        self._attempt, self.interrupted = state["attempt"], state["interrupted"]
        self.repairs, self._current = Counter(state.get("repairs", {})), None
        self.holders.load_state_dict(state)
        note: dict[str, Any] = {"attempt": 0} if self.notes is None else self.notes.read_sent()
        if note["attempt"] > self._attempt:
            self._attempt, self.interrupted = note["attempt"], note["interrupted"]
            self.repairs = Counter(
                {int(client): times for client, times in note["repairs"].items()}
            )

    def _records(
        self, selected: Sequence[int], frame: Frame, framed: Collection[int], lost: Collection[int]
    ) -> Mapping[int, Records]:
        """The same weights for all clients.

        Kept positions are added if the server's memory chose them, and the basis of the last
        refresh for clients that were not there.
        """
        common: Records = {"weights": flat_record(self.state.weights)}
        if has_ranked_mask(self.state):
            common["kept"] = kept_record(frame)
        bases = self.holders.records(selected, framed)
        whole = framed_records(self.state, frame, framed)
        return {
            client: common | (whole if client in framed else {}) | bases.get(client, {})
            for client in selected
        }

    def _apply(self, frame: Frame, updates: Sequence[Tensor], noise_std: float) -> None:
        self.state.finish_round(frame, updates, noise_std=noise_std)

    def _if_interrupted(self) -> dict[str, int]:
        """The counts of interrupted rounds if the current round becomes one of them."""
        return {
            name: before + (self._current or NOTHING)[name]
            for name, before in self.interrupted.items()
        }


def framed_records(state: ServerState, frame: Frame, framed: Collection[int]) -> Records:
    """The frame for clients that derive another one; of probed carriers the kept positions only.

    The basis of a probe is in a record of its own.
    """
    if not framed:
        return {}
    if state.basis is None:
        return {"frame": frame_record(frame)}
    return {} if frame.kept == frame.size else {"frame": frame_record(frame, carriers=False)}


def has_ranked_mask(state: ServerState) -> bool:
    """Whether the mask depends on the server's memory, so that clients cannot derive it."""
    return state.memory is not None
