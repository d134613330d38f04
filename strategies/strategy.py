"""The one Flower strategy: announce a frame, check payloads, sum, divide by a constant, rebuild dW.

    FedLSG(state, settings, on_round).start(grid, initial_arrays=..., num_rounds=...)

Nothing here depends on the method: it is data inside ``ServerState``.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedlsg.frame import Frame
from fedlsg.method import LocalTraining, norm_bound
from fedlsg.payload import Codec, Expected, IndexMode, unpack
from fedlsg.privatize import Mechanism
from strategies.nodes import find_partitions
from strategies.state import ServerState, select_clients
from strategies.wire import (
    FRAME_DIFFERS,
    OVER_BUDGET,
    Announcement,
    announcement,
    flat_record,
    payload_size,
    read_update,
    wire_size,
)

EMPTY_ROUNDS_ALLOWED = 3
REASON_LENGTH = 300


@dataclass(frozen=True, kw_only=True)
class ClientTerms:
    """Public terms of one client: declared examples N_k, Poisson rate, nominal noise multiplier."""

    num_examples: int
    sample_rate: float
    noise_multiplier: float

    def mechanism(self, common: Mechanism) -> Mechanism:
        """The federation's mechanism at this client's noise multiplier."""
        return replace(common, noise_multiplier=self.noise_multiplier) if common.adds_noise else common


@dataclass(frozen=True, kw_only=True)
class FederationSettings:
    """Public constants of a federation. ``terms`` are per partition; ``local`` is the common local training."""

    terms: Sequence[ClientTerms]
    clients_per_round: int
    local: LocalTraining
    codec: Codec = "float32"
    index_mode: IndexMode = "derived"
    min_survivors: int = 1
    timeout: float = 3600.0
    run_dir: str = ""


@dataclass(kw_only=True)
class RoundReport:
    """What happened in one round. ``rejected`` maps a partition to the reason; bytes are sums over messages."""

    round: int
    asked: Sequence[int]
    answered: list[int] = field(default_factory=list)
    rejected: dict[int, str] = field(default_factory=dict)
    payloads: dict[int, bytes] = field(default_factory=dict)
    uplink_messages: int = 0
    downlink_messages: int = 0
    uplink_bytes: int = 0
    uplink_bytes_wire: int = 0
    downlink_bytes: int = 0
    downlink_bytes_wire: int = 0
    seconds: float = 0.0

    @property
    def reasons(self) -> str:
        """Why clients were rejected, equal reasons together: "0 2: no reply ...; 1: payload checksum ..."."""
        clients: dict[str, list[int]] = {}
        for partition, why in sorted(self.rejected.items()):
            clients.setdefault(why, []).append(partition)
        return "; ".join(f"{' '.join(map(str, who))}: {why}" for why, who in clients.items())

    @property
    def budget_spent(self) -> bool:
        """Whether every client that was asked refused because its privacy budget would be passed."""
        refusals = [why for why in self.rejected.values() if why.startswith(f"[{OVER_BUDGET}]")]
        return len(refusals) == len(self.asked)


class BudgetSpentError(RuntimeError):
    """No client can train any more without passing its privacy budget: the regular end of a run without rounds left."""


class FedLSG(Strategy):
    """Federated training in low-rank sparse coordinates, for every recipe of this package.

    Clients are sampled by partition with the public generator. A client that fails, or whose payload does not pass
    ``fedlsg.payload.unpack``, is named in the log and in the report, and the round goes on without it; the divisor
    does not change. ``on_round`` is called after every round, when the state already holds its result.
    Raises BudgetSpentError when every client asked refuses to pass its budget, RuntimeError after three rounds in a row
    without a single valid update.
    """

    def __init__(
        self, state: ServerState, settings: FederationSettings, on_round: Callable[[RoundReport], None]
    ) -> None:
        self.state, self.settings, self.on_round = state, settings, on_round
        self._nodes: Mapping[int, int] = {}
        self._sent: list[Message] = []
        self._empty_rounds = 0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One announcement a selected client."""
        self._grid = grid
        if not self._nodes:
            self._nodes = find_partitions(grid, [t.num_examples for t in self.settings.terms], self.settings.timeout)
        self._started = time.monotonic()
        self._frame = self.state.frame()
        round = self.state.round + 1
        asked = select_clients(
            len(self.settings.terms), self.settings.clients_per_round, round=round, seed=self.state.seed
        )
        self._report = RoundReport(round=round, asked=asked)
        self._sent = [self._announce(partition) for partition in asked]
        return self._sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check every reply, update the model, report."""
        values = self._read(replies)
        differing = [p for p, why in self._report.rejected.items() if why.startswith(f"[{FRAME_DIFFERS}]")]
        if differing:
            log(WARNING, "clients %s derive another frame: sending L, R and masks", differing)
            self._sent = [self._announce(partition, self._frame) for partition in differing]
            values |= self._read(self._grid.send_and_receive(self._sent, timeout=self.settings.timeout))
        survivors = len(values) >= self.settings.min_survivors
        ordered = [values[partition] for partition in sorted(values)] if survivors else []
        self.state.finish_round(self._frame, ordered)
        self._report.answered = sorted(values)
        self._report.seconds = time.monotonic() - self._started
        self.on_round(self._report)
        self._stop_if_dead(bool(ordered))
        return flat_record(self.state.weights), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """None: accuracy is measured on the public test split, by the server."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """None, see ``configure_evaluate``."""
        return None

    def summary(self) -> None:
        """Log method and frame."""
        frame = self.state.frame()
        log(
            INFO,
            "method %s: %d of %d coordinates kept, %d carried layers, divisor %g",
            self.state.method.name,
            frame.kept,
            frame.dense_size,
            len(self.state.carried),
            self.state.divisor,
        )

    def _announce(self, partition: int, frame: Frame | None = None) -> Message:
        terms = self.settings.terms[partition]
        announced = Announcement(
            round=self._report.round,
            updates=self.state.updates,
            frame_digest=self._frame.digest,
            sample_rate=terms.sample_rate,
            noise_multiplier=terms.noise_multiplier,
            expected_batch=self.settings.local.expected_batch,
            run_dir=self.settings.run_dir,
        )
        content = announcement(self.state.weights, announced, frame)
        return Message(content, self._nodes[partition], MessageType.TRAIN, group_id=str(self._report.round))

    def _read(self, replies: Iterable[Message]) -> dict[int, Tensor]:
        """Valid values by partition; everything else lands in the report."""
        partition_of = {node: partition for partition, node in self._nodes.items()}
        asked = {partition_of[message.metadata.dst_node_id] for message in self._sent}
        values: dict[int, Tensor] = {}
        for message in self._sent:
            self._report.downlink_messages += 1
            self._report.downlink_bytes += payload_size(message.content)
            self._report.downlink_bytes_wire += wire_size(message)
        for partition in asked:
            self._report.rejected[partition] = "no reply before the round's timeout"
        for reply in replies:
            partition = partition_of.get(reply.metadata.src_node_id, -1)
            if partition not in asked or partition in values:
                log(WARNING, "unexpected reply from node %s ignored", reply.metadata.src_node_id)
                continue
            try:
                self._report.uplink_bytes_wire += wire_size(reply)
                values[partition] = self._check(reply, partition)
                del self._report.rejected[partition]
            except Exception as error:  # whatever a client sends must not end the round
                self._report.rejected[partition] = reason_of(error)
        for partition in sorted(asked & self._report.rejected.keys()):
            log(WARNING, "round %d: client %d: %s", self._report.round, partition, self._report.rejected[partition])
        return values

    def _check(self, reply: Message, partition: int) -> Tensor:
        if reply.has_error():
            raise RuntimeError(f"[{reply.error.code}] {reply.error.reason}")
        payload = read_update(reply.content)
        self._report.uplink_messages += 1
        self._report.uplink_bytes += len(payload)
        terms = self.settings.terms[partition]
        mechanism = terms.mechanism(self.state.method.mechanism)
        bound = norm_bound(mechanism, self._frame, num_examples=terms.num_examples, local=self.settings.local)
        values = unpack(
            payload,
            Expected(
                round=self._report.round,
                codec=self.settings.codec,
                index_mode=self.settings.index_mode,
                size=self._frame.size,
                indices=self._frame.indices,
                digest=self._frame.digest,
                max_norm=bound,
            ),
        )
        self._report.payloads[partition] = payload
        return values

    def _stop_if_dead(self, alive: bool) -> None:
        if self._report.budget_spent:
            raise BudgetSpentError(f"the privacy budget of every client was spent before round {self._report.round}")
        self._empty_rounds = 0 if alive else self._empty_rounds + 1
        if self._empty_rounds >= EMPTY_ROUNDS_ALLOWED:
            raise RuntimeError(
                f"no valid update in {EMPTY_ROUNDS_ALLOWED} rounds in a row: client {self._report.reasons}"
            )


def reason_of(error: Exception) -> str:
    """Why a reply was rejected, as one printable line of bounded length: its text may be the client's own.

    A long text loses its middle: Ray's begin with the kind of error and end with what was raised.
    """
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error) or type(error).__name__).split())
    text = "".join(character if character.isprintable() else "?" for character in text)
    half = REASON_LENGTH // 2
    return text if len(text) <= REASON_LENGTH else f"{text[:half]} ... {text[-half:]}"
