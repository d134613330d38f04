"""What goes down to each client: the whole model, or the updates that a client's replica of it has missed.

Everybody starts from version 0, the initial model: it is a function of the settings and is never sent. A version is one
step further (server_update.py). The server remembers which version each client is known to hold, and the steps back to
where the whole model would be smaller. Nobody is trusted with it: each announcement carries the digest of the weights,
and a client that holds others says so and gets the whole model in the same round.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from logging import WARNING
from typing import Any, Protocol

from flwr.common.logger import log
from torch import Tensor

from fedlsg.frame import Frame
from fedlsg.gradients import trainable
from fedlsg.masks import prunable
from fedlsg.method import aggregate
from fedlsg.payload import PayloadError
from fedlsg.state import Coding, ServerState, Step, beside_weights, encode_pruning, encode_update
from fedlsg.state.server_update import received
from strategies.federation.replica_wire import NOWHERE, Records, Reference, catch_up, digest_of, whole
from strategies.federation.wire import flat_record, frame_record, kept_record

REPAIRS_ALLOWED = 2
"""Whole models after which a client whose replica differs once more (another kind of machine) gets weights alone."""

WHOLE = -2
"""The start of a message with the whole model and all that a replica goes on from."""


class Downlink(Protocol):
    """What the strategy asks of it, in this order: records for the asked, confirmation, then the round's update."""

    def records(
        self, asked: Sequence[int], frame: Frame, *, framed: Collection[int] = (), lost: Collection[int] = ()
    ) -> Mapping[int, Records]:
        """Records of each selected client's message; ``framed`` get the frame whole, ``lost`` the model."""

    def confirm(self, partitions: Collection[int]) -> None:
        """These clients have shown that they took what was announced."""

    def abandon_round(self) -> None:
        """Nobody's answer came through: the records of this round are asked for once more."""

    def finish_round(self, frame: Frame, updates: Sequence[Tensor], noise_std: float) -> None:
        """Apply the clients' values, see ``ServerState.finish_round``."""

    def prune(self, frame: Frame, updates: Sequence[Tensor], *, num_examples: int) -> None:
        """Prune by the clients' values, see ``ServerState.prune``."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs of it, in plain values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``."""


class FullDownlink:
    """The dense weights to everybody, in every round."""

    def __init__(self, state: ServerState) -> None:
        self.state = state

    def records(
        self, asked: Sequence[int], frame: Frame, *, framed: Collection[int] = (), lost: Collection[int] = ()
    ) -> Mapping[int, Records]:
        """The same arrays for all; kept positions with them where the server's memory chose them."""
        common: Records = {"weights": flat_record(self.state.weights)}
        if ranked(self.state):
            common["kept"] = kept_record(frame)
        return {p: common | ({"frame": frame_record(frame)} if p in framed else {}) for p in asked}

    def confirm(self, partitions: Collection[int]) -> None:
        """Nothing is remembered."""

    def abandon_round(self) -> None:
        """Nothing is remembered."""

    def finish_round(self, frame: Frame, updates: Sequence[Tensor], noise_std: float) -> None:
        """As ``ServerState.finish_round``."""
        self.state.finish_round(frame, updates, noise_std=noise_std)

    def prune(self, frame: Frame, updates: Sequence[Tensor], *, num_examples: int) -> None:
        """As ``ServerState.prune``."""
        self.state.prune(frame, updates, num_examples=num_examples)

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing."""


class StepStore(Protocol):
    """Where steps lie between two processes of a run, by the version that they lead to."""

    def save(self, version: int, step: bytes) -> None:
        """Keep a step."""

    def load(self, version: int) -> bytes:
        """A step that was kept. Raises OSError or ValueError where it is missing or damaged."""

    def cut(self, version: int) -> None:
        """Forget what leads beyond a version."""


class InMemory(dict[int, bytes]):
    """A store for one process."""

    def save(self, version: int, step: bytes) -> None:
        """Keep a step."""
        self[version] = step

    def load(self, version: int) -> bytes:
        """A step that was kept. Raises ValueError where it is missing."""
        if version not in self:
            raise ValueError(f"no step leads to version {version}")
        return self[version]

    def cut(self, version: int) -> None:
        """Forget what leads beyond a version."""
        for later in [v for v in self if v > version]:
            del self[later]


class SparseDownlink:
    """The updates that each client's replica has missed, or the whole model where that is smaller.

    ``clients`` in all, ``clients_per_round`` of them asked: how soon a replica is of use again.
    Guarantee: the server's own model takes exactly the values that it sends, as it decodes them.
    """

    def __init__(
        self,
        state: ServerState,
        coding: Coding,
        *,
        clients: int,
        clients_per_round: int,
        store: StepStore | None = None,
    ) -> None:
        self.state, self.coding = state, coding
        self.gap = clients / clients_per_round
        self.store: StepStore = InMemory() if store is None else store
        self.version = 0
        self.steps: deque[bytes] = deque()
        self.held: dict[int, int] = dict.fromkeys(range(clients), 0)
        self.repairs: Counter[int] = Counter()
        self.typical = 0
        self._leaves: dict[int, int | None] = {}
        self._digest: tuple[int, bytes] | None = None

    @property
    def first(self) -> int:
        """The version that the remembered steps start from."""
        return self.version - len(self.steps)

    def records(
        self, asked: Sequence[int], frame: Frame, *, framed: Collection[int] = (), lost: Collection[int] = ()
    ) -> Mapping[int, Records]:
        """Clients at the same version share their records."""
        for client in lost:
            self.held.pop(client, None)
            self.repairs[client] += 1
        pays = self._pays(frame)
        starts = {client: self._start(client, frame, pays) for client in asked}
        made = {start: self._from(start, frame) for start in set(starts.values())}
        for client, start in starts.items():
            self._leaves[client] = None if start == NOWHERE else self.version
        extra: Records = {"frame": frame_record(frame)} if framed else {}
        return {client: made[start] | (extra if client in framed else {}) for client, start in starts.items()}

    def confirm(self, partitions: Collection[int]) -> None:
        """What these clients were sent is what they hold."""
        for client in partitions:
            version = self._leaves.get(client)
            if version is not None:
                self.held[client] = version

    def abandon_round(self) -> None:
        """Nobody is known to hold more than before."""

    def finish_round(self, frame: Frame, updates: Sequence[Tensor], noise_std: float) -> None:
        """Encode the sum, decode it, apply that; remember the step.

        Values that no codec can hold (a client without a clip sent them) are applied as they are, and every replica is
        given up.
        """
        if updates:
            total = aggregate(updates)
            step: Step | None
            try:
                step = encode_update(self.state, frame, total, noise_std=noise_std, coding=self.coding)
                total, noise_std = received(self.state, frame, step, self.coding)
            except PayloadError as error:
                log(WARNING, "round %d: the update goes down as whole models: %s", self.state.round + 1, error)
                step = None
            self.state.step(total, frame, noise_std=noise_std)
            self._append(step, frame)
        self.state.finish_round(frame, [])

    def prune(self, frame: Frame, updates: Sequence[Tensor], *, num_examples: int) -> None:
        """Prune, and remember which weights were kept: a bit each."""
        before = prunable(trainable(self.state.model))
        self.state.prune(frame, updates, num_examples=num_examples)
        self._append(encode_pruning(before, self.state), frame)

    def state_dict(self) -> dict[str, Any]:
        """Versions and the table; the steps lie in the store."""
        return {
            "version": self.version,
            "first": self.first,
            "typical": self.typical,
            "held": dict(self.held),
            "repairs": dict(self.repairs),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue; of steps that the store has lost, and those before, the whole model takes the place."""
        self.version, self.typical = state["version"], state["typical"]
        self.held, self.repairs, self._digest = dict(state["held"]), Counter(state["repairs"]), None
        self.store.cut(self.version)
        self.steps.clear()
        for version in range(self.version, state["first"], -1):
            try:
                self.steps.appendleft(self.store.load(version))
            except (OSError, ValueError):
                break

    def _append(self, step: Step | None, frame: Frame) -> None:
        self.version += 1
        if step is None:
            self.steps.clear()
            return
        self.steps.append(step.to_bytes())
        self.typical = len(self.steps[-1])
        self.store.save(self.version, self.steps[-1])
        while self._missed_bytes(self.first) > self._whole_bytes(frame):
            self.steps.popleft()

    def _start(self, client: int, frame: Frame, pays: bool) -> int:
        """The version that a client's message starts from: its own, the newest (whole model), or NOWHERE."""
        base = self.held.get(client, NOWHERE)
        if base >= self.first and self._missed_bytes(base) <= self._whole_bytes(frame):
            return base
        return WHOLE if pays and self.repairs[client] <= REPAIRS_ALLOWED else NOWHERE

    def _from(self, start: int, frame: Frame) -> Records:
        if start >= 0:
            return catch_up(self._reference(start), list(self.steps)[start - self.first :])
        weights = flat_record(self.state.weights)
        if start == WHOLE:
            return whole(self._reference(self.version), weights, beside_weights(self.state))
        records = whole(self._reference(NOWHERE), weights, {})
        return records | ({"kept": kept_record(frame)} if ranked(self.state) else {})

    def _reference(self, base: int) -> Reference:
        if self._digest is None or self._digest[0] != self.version:
            self._digest = (self.version, digest_of(self.state.weights))
        return Reference(version=self.version, base=base, digest=self._digest[1])

    def _missed_bytes(self, base: int) -> int:
        return sum(len(step) for step in list(self.steps)[base - self.first :])

    def _whole_bytes(self, frame: Frame) -> int:
        """Bytes of the model for one round: what full downlink sends."""
        return 4 * frame.dense_size + (-(-frame.size // 8) if ranked(self.state) else 0)

    def _pays(self, frame: Frame) -> bool:
        """Whether a whole model had better carry what a replica goes on from: later updates repay it before the end."""
        beside = sum(v.numel() * v.element_size() for v in beside_weights(self.state).values())
        once = self._whole_bytes(frame)
        later = (self.state.schedule.rounds - self.state.round - 1) / self.gap
        return 4 * frame.dense_size + beside <= once or later * (once - self.gap * self.typical) > beside


def ranked(state: ServerState) -> bool:
    """Whether the mask is the server's own choice (ranking.py), which weights do not tell."""
    return state.memory is not None
