"""The sparse downlink: each client gets the updates that its replica of the model has missed.

If the whole model is smaller, the client gets that. All replicas start from version 0, the initial
model: it follows from the settings and is never sent. Each step of the server makes the next
version. The server remembers the version of each client, and the steps that are smaller together
than the whole model. Correctness does not depend on that memory: each announcement has the digest
of the weights, and a client with other weights says so and gets the whole model in the same round.
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
"""Repairs of a client's replica. If it differs once more (another kind of machine), the client gets
weights alone.
"""

WHOLE_MODEL = -2
"""The start, in place of a version, of a message with the whole model and a replica's state."""


class StepStore(Protocol):
    """Keeps steps from one process of a run to the next, by the version that they lead to."""

    def save(self, version: int, step: bytes) -> None:
        """Keep a step."""

    def load(self, version: int) -> bytes:
        """A stored step. Raises OSError or ValueError for a missing or damaged one."""

    def cut(self, version: int) -> None:
        """Forget steps beyond a version."""


class SparseDownlink(Downlink):
    """Sends the updates that each client's replica has missed, or a smaller whole model.

    Guarantee: the server's own model takes exactly the values that it sends, as decoded.

    codec: of the updates.
    gap: mean number of rounds between two selections of a client.
    store: keeps steps for the next process of a run.
    version: of the server's model.
    steps: encoded steps from ``first`` to ``version``.
    held: version by client, or NOWHERE; a client that is not there holds version 0.
    typical: bytes of the last step.
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
        """The records of each client; clients at the same version share them."""
        for client in lost:
            self.held[client] = NOWHERE
            self.repairs[client] += 1
        pays = self._pays(frame)
        starts = {client: self._start(client, frame, pays) for client in selected}
        by_start = {start: self._from(start, frame) for start in set(starts.values())}
        for client, start in starts.items():
            self._leaves[client] = None if start == NOWHERE else self.version
        extra = framed_records(self.state, frame, framed)
        # replicas derive the basis of a probe
        underived = [
            client for client, start in starts.items() if start == NOWHERE or client in framed
        ]
        bases = self.holders.records(underived, framed)
        return {
            client: by_start[start] | (extra if client in framed else {}) | bases.get(client, {})
            for client, start in starts.items()
        }

    def confirm(self, partitions: Collection[int]) -> None:
        """Note that these clients hold the announced model, which their replies show."""
        self.holders.confirm([client for client in partitions if self._leaves.get(client) is None])
        for client in partitions:
            version = self._leaves.get(client)
            if version is not None:
                self.held[client] = version

    def _apply(self, frame: Frame, updates: Sequence[Tensor], noise_std: float) -> None:
        """Encode the sum, apply its decoded values, and remember the step.

        Values that the codec cannot encode (from a client without a clip) are applied as they are.
        Then all replicas are outdated, and clients get whole models.
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
        """Prune, and remember the kept weights as a step, a bit each."""
        before = prunable(trainable(self.state.model))
        super().prune(frame, updates, num_examples=num_examples)
        self._append(encode_pruning(before, self.state), frame)

    def state_dict(self) -> dict[str, Any]:
        """The versions of server and clients; the steps are in the store."""
        return {
            "version": self.version,
            "first": self.first,
            "typical": self.typical,
            "held": dict(self.held),
            "repairs": dict(self.repairs),
            **super().state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict``; steps before one that the store has lost are forgotten."""
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
        """Remember a step, and forget old ones; None: only a whole model leads to this version."""
        self.version += 1
        if step is None:
            self.steps.clear()
            return
        self.steps.append(step.to_bytes())
        self.typical = len(self.steps[-1])
        self.store.save(self.version, self.steps[-1])
        while self._missed_bytes(self.first) > self._whole_bytes(frame):
            self.steps.popleft()
        if self.first:  # an older version is of no use: such clients count as at version 0
            self.held = {
                client: version for client, version in self.held.items() if version >= self.first
            }

    def _start(self, client: int, frame: Frame, pays: bool) -> int:
        """The start of a client's message: the version of its replica, WHOLE_MODEL or NOWHERE."""
        base = self.held.get(client, 0)
        if base >= self.first and self._missed_bytes(base) <= self._whole_bytes(frame):
            return base
        return WHOLE_MODEL if pays and self.repairs[client] <= REPAIRS_ALLOWED else NOWHERE

    def _from(self, start: int, frame: Frame) -> Records:
        """The records of a message with this start."""
        if start >= 0:
            return catch_up(self._reference(start), list(self.steps)[start - self.first :])
        weights = flat_record(self.state.weights)
        if start == WHOLE_MODEL:
            return whole(self._reference(self.version), weights, extra_vectors(self.state))
        records = whole(self._reference(NOWHERE), weights, {})
        return records | ({"kept": kept_record(frame)} if has_ranked_mask(self.state) else {})

    def _reference(self, base: int) -> Reference:
        if self._digest is None or self._digest[0] != self.version:
            self._digest = (self.version, digest_of(self.state.weights))
        return Reference(version=self.version, base=base, digest=self._digest[1])

    def _missed_bytes(self, base: int) -> int:
        """Bytes of the steps from a version on."""
        return sum(len(step) for step in list(self.steps)[base - self.first :])

    def _whole_bytes(self, frame: Frame) -> int:
        """Bytes of the whole model for a new client: weights, basis and kept positions."""
        bitmap = -(-frame.size // 8) if has_ranked_mask(self.state) else 0
        return 4 * (frame.dense_size + self.holders.missed_numbers) + bitmap

    def _pays(self, frame: Frame) -> bool:
        """Whether a whole model is sent with the state of a replica.

        The state costs s bytes once. Each of the k later selections of the client then needs about
        ``gap`` steps in place of a whole model of w bytes: it pays if k (w - gap step) > s. It also
        pays if weights and state are not larger than w.
        """
        vectors = extra_vectors(self.state).values()
        state_bytes = sum(vector.numel() * vector.element_size() for vector in vectors)
        whole_bytes = self._whole_bytes(frame)
        selections = (self.state.schedule.rounds - self.state.round - 1) / self.gap
        return (
            4 * frame.dense_size + state_bytes <= whole_bytes
            or selections * (whole_bytes - self.gap * self.typical) > state_bytes
        )
