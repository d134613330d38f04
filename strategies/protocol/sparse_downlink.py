"""Send each client the updates that its replica of the model has missed, or the whole model where
that is smaller.

All replicas start from version 0, the initial model: it is a function of the settings and is never
sent. Each step of the server makes the next version. The server remembers which version each client
is known to hold, and the steps back to where the whole model would be smaller. It does not rely on
that: each announcement carries the digest of the weights, and a client with other weights replies
so and gets the whole model in the same round.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from logging import WARNING
from typing import Any, Protocol

from flwr.common.logger import log
from torch import Tensor

from fedlsg.frame import Frame
from fedlsg.gradients import trainable
from fedlsg.masks import prunable
from fedlsg.method import aggregate
from fedlsg.payload import Codec, PayloadError
from fedlsg.state import ServerState, Step, encode_pruning, encode_update, extra_vectors
from fedlsg.state.server_update import decode_update
from fedlsg.strategies.protocol.downlink import (
    NOWHERE,
    Downlink,
    Keep,
    Notes,
    Records,
    Reference,
    catch_up,
    digest_of,
    framed_records,
    has_ranked_mask,
    keep_nowhere,
    whole,
)
from fedlsg.strategies.protocol.wire import flat_record, kept_record

REPAIRS_ALLOWED = 2
"""Whole models after which a client whose replica differs once more (another kind of machine) gets
weights alone.
"""

WHOLE = -2
"""The start of a message with the whole model and the state that a replica continues from."""


class StepStore(Protocol):
    """Keeps steps from one process of a run to the next, by the version that they lead to."""

    def save(self, version: int, step: bytes) -> None:
        """Keep a step."""

    def load(self, version: int) -> bytes:
        """A step that was kept. Raises OSError or ValueError where it is missing or damaged."""

    def cut(self, version: int) -> None:
        """Forget steps beyond a version."""


class SparseDownlink(Downlink):
    """The updates that each client's replica has missed, or the whole model where that is smaller.

    ``clients_per_round`` of ``clients`` are selected in each round, so a replica is of use again
    after ``gap`` rounds.
    Guarantee: the server's own model takes exactly the values that it sends, as decoded.
    """

    def __init__(
        self,
        state: ServerState,
        codec: Codec,
        *,
        clients: int,
        clients_per_round: int,
        store: StepStore,
        keep: Keep = keep_nowhere,
        notes: Notes | None = None,
    ) -> None:
        super().__init__(state, keep, notes)
        self.codec = codec
        self.gap = clients / clients_per_round
        self.store = store
        self.version = 0
        self.steps: deque[bytes] = deque()
        self.held: dict[int, int] = {}
        """Of clients that do not hold version 0: the version, or NOWHERE."""
        self.typical = 0
        self._leaves: dict[int, int | None] = {}
        self._digest: tuple[int, bytes] | None = None

    @property
    def first(self) -> int:
        """The version that the remembered steps start from."""
        return self.version - len(self.steps)

    def _records(
        self, selected: Sequence[int], frame: Frame, framed: Collection[int], lost: Collection[int]
    ) -> Mapping[int, Records]:
        """Clients at the same version share their records."""
        for client in lost:
            self.held[client] = NOWHERE
            self.repairs[client] += 1
        pays = self._pays(frame)
        starts = {client: self._start(client, frame, pays) for client in selected}
        by_start = {start: self._from(start, frame) for start in set(starts.values())}
        for client, start in starts.items():
            self._leaves[client] = None if start == NOWHERE else self.version
        extra = framed_records(self.state, frame, framed)
        alone = [client for client, start in starts.items() if start == NOWHERE or client in framed]
        bases = self.holders.records(alone, framed)
        return {
            client: by_start[start] | (extra if client in framed else {}) | bases.get(client, {})
            for client, start in starts.items()
        }

    def confirm(self, partitions: Collection[int]) -> None:
        """These clients hold what they were sent."""
        self.holders.confirm([client for client in partitions if self._leaves.get(client) is None])
        for client in partitions:
            version = self._leaves.get(client)
            if version is not None:
                self.held[client] = version

    def _apply(self, frame: Frame, updates: Sequence[Tensor], noise_std: float) -> None:
        """Encode the sum, decode it, apply that; remember the step.

        Values that no codec can hold (from a client without a clip) are applied as they are. All
        replicas are then outdated, and clients get whole models.
        """
        if updates:
            total = aggregate(updates)
            step: Step | None
            try:
                step = encode_update(
                    self.state, frame, total, noise_std=noise_std, codec=self.codec
                )
                total, noise_std = decode_update(self.state, frame, step, self.codec)
            except PayloadError as error:
                log(
                    WARNING,
                    "round %d: the update is sent as whole models: %s",
                    self.state.round + 1,
                    error,
                )
                step = None
            self.state.step(total, frame, noise_std=noise_std)
            self._append(step, frame)
        self.state.finish_round(frame, [])

    def prune(self, frame: Frame, updates: Sequence[Tensor], *, num_examples: int) -> None:
        """Prune, and remember which weights were kept: a bit each."""
        before = prunable(trainable(self.state.model))
        super().prune(frame, updates, num_examples=num_examples)
        self._append(encode_pruning(before, self.state), frame)

    def state_dict(self) -> dict[str, Any]:
        """Versions and who holds which; the steps are in the store."""
        return {
            "version": self.version,
            "first": self.first,
            "typical": self.typical,
            "held": dict(self.held),
            "repairs": dict(self.repairs),
            **super().state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue; the whole model replaces steps that the store has lost, and the steps before
        them.
        """
        self.version, self.typical = state["version"], state["typical"]
        self.held, self._digest = dict(state["held"]), None
        super().load_state_dict(state)
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
        if self.first:  # who holds an older version is as one that holds none
            self.held = {
                client: version for client, version in self.held.items() if version >= self.first
            }

    def _start(self, client: int, frame: Frame, pays: bool) -> int:
        """The version that a client's message starts from: its own, the newest (whole model), or
        NOWHERE.
        """
        base = self.held.get(client, 0)
        if base >= self.first and self._missed_bytes(base) <= self._whole_bytes(frame):
            return base
        return WHOLE if pays and self.repairs[client] <= REPAIRS_ALLOWED else NOWHERE

    def _from(self, start: int, frame: Frame) -> Records:
        if start >= 0:
            return catch_up(self._reference(start), list(self.steps)[start - self.first :])
        weights = flat_record(self.state.weights)
        if start == WHOLE:
            return whole(self._reference(self.version), weights, extra_vectors(self.state))
        records = whole(self._reference(NOWHERE), weights, {})
        return records | ({"kept": kept_record(frame)} if has_ranked_mask(self.state) else {})

    def _reference(self, base: int) -> Reference:
        if self._digest is None or self._digest[0] != self.version:
            self._digest = (self.version, digest_of(self.state.weights))
        return Reference(version=self.version, base=base, digest=self._digest[1])

    def _missed_bytes(self, base: int) -> int:
        return sum(len(step) for step in list(self.steps)[base - self.first :])

    def _whole_bytes(self, frame: Frame) -> int:
        """Bytes of the model for one round: what full downlink sends to a client that was not there
        before.
        """
        bitmap = -(-frame.size // 8) if has_ranked_mask(self.state) else 0
        return 4 * (frame.dense_size + self.holders.missed_numbers) + bitmap

    def _pays(self, frame: Frame) -> bool:
        """Whether to send with a whole model the state that a replica continues from.

        It costs bytes now and saves whole models later: worth it if it pays before the last round.
        """
        state_bytes = sum(v.numel() * v.element_size() for v in extra_vectors(self.state).values())
        once = self._whole_bytes(frame)
        later = (self.state.schedule.rounds - self.state.round - 1) / self.gap
        return (
            4 * frame.dense_size + state_bytes <= once
            or later * (once - self.gap * self.typical) > state_bytes
        )
