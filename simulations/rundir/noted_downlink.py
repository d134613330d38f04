"""What goes down is noted before it leaves, so that a round that is interrupted is counted, too.

A round enters rounds.csv, bytes.csv and the checkpoint when it is over. What an interrupted one had sent stands in
``checkpoint/sent.json``: ``fedlsg resume``, which runs that round again, adds it to ``downlink.interrupted`` of the
summary, and whole models sent as repairs to ``downlink.repairs``. What clients answered in it is not known here.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from torch import Tensor

from fedlsg.frame import Frame
from simulations.rundir.files.atomic import write_atomically
from simulations.rundir.files.sealed import seal, unseal
from strategies.federation.downlink import Downlink, SparseDownlink
from strategies.federation.replica_wire import Records

NOTHING = {"attempts": 0, "messages": 0, "bytes": 0}
"""Rounds that were interrupted, and the messages and payload bytes that they sent down."""


class NotedDownlink:
    """A downlink, and a note of what it sends in the round that is going on.

    Guarantee: when a process ends at any point, its successor counts each message that may have left exactly once: with
    a finished round or with the interrupted. (Not synced: a machine that crashes may lose the last note.)
    """

    def __init__(self, inner: Downlink, note: Path) -> None:
        self.inner, self.note = inner, note
        self.interrupted = dict(NOTHING)
        self._attempt = 0  # rounds begun, by this process and those before it
        self._going_on: dict[str, int] | None = None

    def records(
        self, asked: Sequence[int], frame: Frame, *, framed: Collection[int] = (), lost: Collection[int] = ()
    ) -> Mapping[int, Records]:
        """Those of the inner downlink, noted."""
        made = self.inner.records(asked, frame, framed=framed, lost=lost)
        if self._going_on is None:
            self._attempt += 1
            self._going_on = {**NOTHING, "attempts": 1}
        self._going_on["messages"] += len(made)
        self._going_on["bytes"] += sum(map(_size, made.values()))
        broken = self._broken()
        repairs = self.inner.repairs if isinstance(self.inner, SparseDownlink) else {}
        note = {"attempt": self._attempt, "interrupted": broken, "repairs": repairs}
        write_atomically(self.note, seal(note), durable=False)
        return made

    def confirm(self, partitions: Collection[int]) -> None:
        """As the inner downlink."""
        self.inner.confirm(partitions)

    def abandon_round(self) -> None:
        """What was sent down in vain counts as an interrupted round's."""
        self.interrupted, self._going_on = self._broken(), None
        self.inner.abandon_round()

    def _broken(self) -> dict[str, int]:
        """What interrupted rounds sent, were the one that is going on one of them."""
        return {name: before + (self._going_on or NOTHING)[name] for name, before in self.interrupted.items()}

    def finish_round(self, frame: Frame, updates: Sequence[Tensor], noise_std: float) -> None:
        """As the inner downlink; what is noted next is another round's."""
        self.inner.finish_round(frame, updates, noise_std)
        self._going_on = None

    def prune(self, frame: Frame, updates: Sequence[Tensor], *, num_examples: int) -> None:
        """As the inner downlink; what is noted next is another round's."""
        self.inner.prune(frame, updates, num_examples=num_examples)
        self._going_on = None

    def state_dict(self) -> dict[str, Any]:
        """The inner downlink's, which rounds are over, and what interrupted ones sent."""
        return {**self.inner.state_dict(), "attempt": self._attempt, "interrupted": self.interrupted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue; a note of a round that the state does not know was interrupted."""
        rest = dict(state)
        self._attempt, self.interrupted = rest.pop("attempt", 0), rest.pop("interrupted", dict(NOTHING))
        note = read_note(self.note)
        if note["attempt"] > self._attempt:
            self._attempt, self.interrupted = note["attempt"], note["interrupted"]
            rest["repairs"] = {int(client): times for client, times in note["repairs"].items()}
        self._going_on = None
        self.inner.load_state_dict(rest)


def read_note(path: Path) -> dict[str, Any]:
    """What was noted, attempt 0 where nothing was. Raises DamagedError."""
    try:
        return unseal(path, otherwise="remove it to go on; what an interrupted round sent down is then not counted")
    except FileNotFoundError:
        return {"attempt": 0}


def _size(records: Records) -> int:
    """Payload bytes of a message, as strategies/federation/wire.py counts them."""
    arrays = [record for record in records.values() if isinstance(record, ArrayRecord)]
    return sum(len(array.data) for record in arrays for array in record.values())
