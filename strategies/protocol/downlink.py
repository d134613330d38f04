"""What is sent down to clients: what the strategy calls for it, the records, and the simplest kind,
the whole model.

weights  the whole model; for a client with a replica only if that is smaller, or its replica was
         lost
replica  version of the announced weights, version that the message starts from, SHA-256 of the
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
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
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
"""The base of a message whose weights no replica continues from."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """``version`` counts the steps since the initial model; ``base`` is the version that the
    message starts from.
    """

    version: int
    base: int
    digest: bytes


Records = dict[str, ArrayRecord | ConfigRecord]


def digest_of(weights: Tensor) -> bytes:
    """SHA-256 of flat float32 weights, encoded as in a message."""
    return hashlib.sha256(weights.detach().cpu().numpy().tobytes()).digest()


def catch_up(reference: Reference, steps: Sequence[bytes]) -> Records:
    """Records for a replica at ``reference.base``."""
    records: Records = {"replica": ConfigRecord(asdict(reference))}
    if steps:
        joined = np.frombuffer(b"".join(steps), np.uint8)
        records["steps"] = ArrayRecord({"updates": raw_array(joined)})
    return records


def whole(reference: Reference, weights: ArrayRecord, state: Mapping[str, Tensor]) -> Records:
    """Records of the whole model; if ``reference.base`` is its version, a replica continues from
    it.
    """
    records: Records = {"replica": ConfigRecord(asdict(reference)), "weights": weights}
    if state:
        records["state"] = ArrayRecord(
            {name: raw_array(v.detach().cpu().numpy()) for name, v in state.items()}
        )
    return records


def read_reference(content: RecordDict) -> Reference | None:
    """Which weights are announced; None for a message with full weights and nothing else.

    Raises KeyError or ValueError for a record that is not one.
    """
    config = config_in(content, "replica")
    if config is None:
        return None
    version, base, digest = (config[f.name] for f in fields(Reference))
    if not (isinstance(version, int) and isinstance(base, int) and isinstance(digest, bytes)):
        raise ValueError(
            "the announced version of the model is not valid: expected two numbers and a digest"
        )
    return Reference(version=version, base=base, digest=digest)


def read_missed(content: RecordDict, reference: Reference) -> list[Step]:
    """The steps of a message that starts from ``reference.base``. Raises StepError for anything
    else.
    """
    steps = []
    if "steps" in content.array_records:
        steps = read_steps(content.array_records["steps"]["updates"].data)
    if len(steps) != reference.version - reference.base:
        raise StepError(f"{len(steps)} steps from version {reference.base} to {reference.version}")
    return steps


def read_state(content: RecordDict) -> dict[str, Tensor]:
    """The vectors of the ``state`` record, if any."""
    record = content.array_records.get("state")
    return (
        {}
        if record is None
        else {name: torch.from_numpy(read_array(record[name])) for name in record}
    )


Keep = Callable[[Basis], None]
"""Called with the basis of a refresh before any client is asked for it."""


def basis_record(basis: Basis) -> ArrayRecord:
    """All numbers of a basis."""
    return flat_record(flatten(basis))


def read_basis(content: RecordDict) -> Tensor | None:
    """The flat basis of a message, or None. KeyError or ValueError for another record."""
    record = content.array_records.get("basis")
    return None if record is None else torch.from_numpy(read_array(record["flat"]))


def keep_nowhere(basis: Basis) -> None:
    """Nothing: every client has to derive the basis, or to be sent it."""


class Holders:
    """Which clients hold the basis of the current refresh: those whose reply in a round since then
    was valid.

    At the refresh itself clients derive the basis; after it, one that does not hold it is sent it.
    """

    def __init__(self, state: ServerState, keep: Keep = keep_nowhere) -> None:
        self.state, self._keep, self._kept = state, keep, 0
        self.round, self.held = 0, set[int]()

    def records(
        self, selected: Collection[int], framed: Collection[int] = ()
    ) -> Mapping[int, Records]:
        """The ``basis`` record for those of the clients that need it; ``framed`` derive another
        one.
        """
        basis = self.state.basis
        if basis is None:
            return {}
        if basis.round != self._kept:
            self._keep(basis)
            self._kept = basis.round
        if basis.round != self.round:
            self.round, self.held = basis.round, set()
        differ = set(framed) & set(selected)
        self.held -= differ
        needed = differ if self.refreshes else set(selected) - self.held
        record = basis_record(basis) if needed else None
        return {client: {"basis": record} for client in needed if record is not None}

    @property
    def refreshes(self) -> bool:
        """Whether the round that is announced is a refresh."""
        return self.state.basis is not None and self.state.basis.round == self.state.next_round

    @property
    def missed_numbers(self) -> int:
        """Numbers in the basis if a client without it has to be sent it now, else 0."""
        basis = self.state.basis
        return 0 if basis is None or self.refreshes else len(flatten(basis))

    def confirm(self, partitions: Collection[int]) -> None:
        """The replies of these clients show that they hold the basis."""
        if self.state.basis is not None:
            self.held |= set(partitions)

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint; none where nothing is probed."""
        return (
            {}
            if self.state.public.source is None
            else {"basis": {"round": self.round, "held": sorted(self.held)}}
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``."""
        basis = state.get("basis", {"round": 0, "held": []})
        self.round, self.held = basis["round"], set(basis["held"])


NOTHING = {"attempts": 0, "messages": 0, "bytes": 0}
"""Rounds that were interrupted, and the messages and payload bytes that they sent down."""


class Notes(Protocol):
    """Keeps a note of what is sent in the current round."""

    def write_sent(self, note: Mapping[str, Any], /) -> None: ...

    def read_sent(self) -> dict[str, Any]: ...


class Downlink:
    """The dense weights to every client, in every round; and what every kind has.

    The strategy calls, in this order: records for the selected clients, confirmation, the round's
    update. Messages are counted before they are sent, so that an interrupted round is counted, too:
    what it had sent is in a note.
    Guarantee: when a process ends at any point, its successor counts each message that may have
    left exactly once: with a finished round or with the interrupted rounds. (Not synced: a machine
    that crashes may lose the last note.)
    """

    def __init__(
        self, state: ServerState, keep: Keep = keep_nowhere, notes: Notes | None = None
    ) -> None:
        self.state, self.holders, self.notes = state, Holders(state, keep), notes
        self.repairs: Counter[int] = Counter()
        """Whole models that were sent to each client because it had lost its replica."""
        self.interrupted = dict(NOTHING)
        self._attempt = 0  # rounds begun, by this process and those before it
        self._current: dict[str, int] | None = None

    def records(
        self,
        selected: Sequence[int],
        frame: Frame,
        *,
        framed: Collection[int] = (),
        lost: Collection[int] = (),
    ) -> Mapping[int, Records]:
        """Records of each selected client's message; ``framed`` get the frame whole, ``lost`` the
        model.
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
        """The replies of these clients show that they hold what was announced."""
        self.holders.confirm(partitions)

    def abandon_round(self) -> None:
        """No reply arrived: the records of this round will be needed once more, and count as an
        interrupted round's.
        """
        self.interrupted, self._current = self._if_interrupted(), None

    def finish_round(self, frame: Frame, updates: Sequence[Tensor], noise_std: float) -> None:
        """Apply the clients' values, see ``ServerState.finish_round``; the next records are another
        round's.
        """
        self._apply(frame, updates, noise_std)
        self._current = None

    def prune(self, frame: Frame, updates: Sequence[Tensor], *, num_examples: int) -> None:
        """Prune by the clients' values, see ``ServerState.prune``; the next records are another
        round's.
        """
        self.state.prune(frame, updates, num_examples=num_examples)
        self._current = None

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs of it, in plain values."""
        return {
            **self.holders.state_dict(),
            "attempt": self._attempt,
            "interrupted": self.interrupted,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``; a noted round that the state does not know was
        interrupted.
        """
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
        """The same weights for all; with the kept positions where the server's memory chose them,
        and with the basis of the last refresh for those that were not there.
        """
        common: Records = {"weights": flat_record(self.state.weights)}
        if has_ranked_mask(self.state):
            common["kept"] = kept_record(frame)
        bases = self.holders.records(selected, framed)
        whole = framed_records(self.state, frame, framed)
        return {p: common | (whole if p in framed else {}) | bases.get(p, {}) for p in selected}

    def _apply(self, frame: Frame, updates: Sequence[Tensor], noise_std: float) -> None:
        self.state.finish_round(frame, updates, noise_std=noise_std)

    def _if_interrupted(self) -> dict[str, int]:
        """What interrupted rounds sent if the current round is one of them."""
        return {
            name: before + (self._current or NOTHING)[name]
            for name, before in self.interrupted.items()
        }


def framed_records(state: ServerState, frame: Frame, framed: Collection[int]) -> Records:
    """The frame for clients that derive another one; of probed carriers the positions, since the
    basis is sent, too.
    """
    if not framed:
        return {}
    if state.basis is None:
        return {"frame": frame_record(frame)}
    return {} if frame.kept == frame.size else {"frame": frame_record(frame, carriers=False)}


def has_ranked_mask(state: ServerState) -> bool:
    """Whether the mask depends on the server's memory, so that clients cannot derive it from the
    weights.
    """
    return state.memory is not None
