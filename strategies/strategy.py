"""The one Flower strategy: announce a frame, check payloads, sum, divide by a constant, rebuild dW.

    FedLSG(state, settings, on_round).start(grid, initial_arrays=..., num_rounds=...)

Nothing here depends on the method: it is data inside ``ServerState``.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from fedlsg.frame import Frame
from fedlsg.method import LocalTraining, norm_bound
from fedlsg.payload import Codec, Expected, IndexMode, unpack
from fedlsg.powersgd import decode
from fedlsg.privatize import Mechanism
from fedlsg.quantize import DEFAULT_STEP, Dither
from fedlsg.ranking import accumulated_noise
from fedlsg.snip import pruning_mechanism
from strategies.downlink import Downlink, FullDownlink, Records
from strategies.nodes import find_partitions
from strategies.report import NO_REPLY, RoundReport, reason_of
from strategies.serial import wire_size
from strategies.state import ServerState, select_clients
from strategies.stopped import BudgetSpentError, Patience, finite
from strategies.wire import FRAME_DIFFERS, REPLICA_LOST, Announcement, announced_to, flat_record, read_update


@dataclass(frozen=True, kw_only=True)
class ClientTerms:
    """Public terms of one client: declared examples N_k, Poisson rate, nominal noise multiplier.

    ``prune_noise_multiplier`` is that of round 0, where pruning reads the data.
    """

    num_examples: int
    sample_rate: float
    noise_multiplier: float
    prune_noise_multiplier: float = 0.0

    def mechanism(self, common: Mechanism) -> Mechanism:
        """The federation's mechanism at this client's noise multiplier."""
        return replace(common, noise_multiplier=self.noise_multiplier) if common.adds_noise else common

    def of_round_0(self) -> "ClientTerms":
        """The terms of the pruning round: every example takes part."""
        return replace(self, sample_rate=1.0, noise_multiplier=self.prune_noise_multiplier)


@dataclass(frozen=True, kw_only=True)
class FederationSettings:
    """Public constants of a federation. ``terms`` are per partition; ``local`` is the common local training."""

    terms: Sequence[ClientTerms]
    clients_per_round: int
    local: LocalTraining
    codec: Codec = "float32"
    index_mode: IndexMode = "derived"
    floor_step: float = DEFAULT_STEP
    min_survivors: int = 1
    timeout: float = 3600.0
    run_dir: str = ""


class FedLSG(Strategy):
    """Federated training in low-rank sparse coordinates, for every recipe of this package.

    Clients are sampled by partition with the public generator. A client that fails, or whose payload does not pass
    ``fedlsg.payload.unpack``, is named in the log and in the report, and the round goes on without it; the divisor
    does not change. ``on_round`` is called after every round, when the state already holds its result. Where pruning
    reads the data there is a round 0 before them, of all clients, and ``on_pruned`` is called after it, also where it
    failed: the state then still awaits pruning. A round that nobody answered because workers died is asked again.
    Raises BudgetSpentError when every client asked refuses to pass its budget, RuntimeError after three rounds or
    attempts in a row without a single valid update, DivergedError, before ``on_round``, after an update that was none.
    """

    def __init__(
        self,
        state: ServerState,
        settings: FederationSettings,
        on_round: Callable[[RoundReport], None],
        on_pruned: Callable[[RoundReport], None] = lambda report: None,
        downlink: Downlink | None = None,
    ) -> None:
        self.state, self.settings, self.on_round, self.on_pruned = state, settings, on_round, on_pruned
        self.downlink: Downlink = FullDownlink(state) if downlink is None else downlink
        self._nodes: Mapping[int, int] = {}
        self._sent: list[Message] = []
        self._patience = Patience()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One announcement a selected client; before the first round, the pruning round."""
        self._grid = grid
        if not self._nodes:
            self._nodes = find_partitions(grid, [t.num_examples for t in self.settings.terms], self.settings.timeout)
        if self.state.awaits_pruning:
            self._prune(grid)
        round = self.state.round + 1
        asked = select_clients(
            len(self.settings.terms), self.settings.clients_per_round, round=round, seed=self.state.seed
        )
        return self._begin(round, self.state.frame(), asked)

    def _begin(self, round: int, frame: Frame, asked: Sequence[int]) -> list[Message]:
        self._started = time.monotonic()
        self._frame = frame
        self._report = RoundReport(round=round, asked=asked)
        return self._announce_to(asked)

    def _prune(self, grid: Grid) -> None:
        """Round 0: noised saliencies of every client. Whoever does not answer is left out, down to min_survivors."""
        messages = self._begin(0, self.state.saliency_frame(), range(len(self.settings.terms)))
        values = self._repaired(self._read(grid.send_and_receive(messages, timeout=self.settings.timeout)))
        if len(values) >= self.settings.min_survivors:
            ordered, examples = [values[p] for p in sorted(values)], sum(t.num_examples for t in self.settings.terms)
            self.downlink.prune(self._frame, ordered, num_examples=examples)
        self._report.answered = sorted(values)
        self._report.seconds = time.monotonic() - self._started
        self.on_pruned(self._report)
        if self.state.awaits_pruning:
            why = (
                f"pruning reads the data of at least {self.settings.min_survivors} clients, {len(values)} answered "
                f"round 0: client {self._report.reasons}"
            )
            raise BudgetSpentError(why) if self._report.budget_spent else RuntimeError(why)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check every reply, update the model, report."""
        values = self._repaired(self._read(replies))
        while not values and self._report.lost:
            values = self._ask_again()
        survivors = len(values) >= self.settings.min_survivors
        ordered = [values[partition] for partition in sorted(values)] if survivors else []
        with finite(self.state, self._report.round):
            self.downlink.finish_round(self._frame, ordered, self._noise_of_sum(values))
        self._report.answered = sorted(values)
        self._report.seconds = time.monotonic() - self._started
        self.on_round(self._report)
        self._patience.count(self._report, updated=bool(ordered))
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

    def _ask_again(self) -> dict[int, Tensor]:
        """The same round, of which nobody's answer came through; stored payloads are sent again for free."""
        self._patience.count(self._report, updated=False)
        log(WARNING, "round %d: nobody answered, asking again", self._report.round)
        self.downlink.abandon_round()
        messages = self._begin(self._report.round, self._frame, self._report.asked)
        return self._repaired(self._read(self._grid.send_and_receive(messages, timeout=self.settings.timeout)))

    def _repaired(self, values: dict[int, Tensor]) -> dict[int, Tensor]:
        """Ask those once more that derive another frame or hold another model, each for each reason once."""
        framed, lost = set[int](), set[int]()
        while True:
            frames = self._report.refused(FRAME_DIFFERS) - framed
            models = self._report.refused(*REPLICA_LOST) - lost
            self.downlink.confirm(values.keys() | frames)
            if not frames | models:
                return values
            told = sorted(frames), sorted(models)
            log(WARNING, "clients %s derive another frame, %s hold another model or none: sending both", *told)
            framed, lost = framed | frames, lost | models
            again = self._announce_to(sorted(frames | models), framed, models)
            values |= self._read(self._grid.send_and_receive(again, timeout=self.settings.timeout))

    def _announce_to(
        self, partitions: Sequence[int], framed: Collection[int] = (), lost: Collection[int] = ()
    ) -> list[Message]:
        records = self.downlink.records(partitions, self._frame, framed=framed, lost=lost)
        self._sent = [self._announce(partition, records[partition]) for partition in partitions]
        return self._sent

    def _announce(self, partition: int, records: Records) -> Message:
        terms = self._terms(partition)
        announced = Announcement(
            round=self._report.round,
            updates=self.state.updates,
            frame_digest=self._frame.digest,
            sample_rate=terms.sample_rate,
            noise_multiplier=terms.noise_multiplier,
            expected_batch=self.settings.local.expected_batch,
            run_dir=self.settings.run_dir,
        )
        content = announced_to(records, announced)
        return Message(content, self._nodes[partition], MessageType.TRAIN, group_id=str(self._report.round))

    def _read(self, replies: Iterable[Message]) -> dict[int, Tensor]:
        """Valid values by partition; everything else lands in the report."""
        partition_of = {node: partition for partition, node in self._nodes.items()}
        asked = {partition_of[message.metadata.dst_node_id] for message in self._sent}
        values: dict[int, Tensor] = {}
        for message in self._sent:
            self._report.count_down(partition_of[message.metadata.dst_node_id], message)
        for partition in asked:
            self._report.rejected[partition] = NO_REPLY
        for reply in replies:
            partition = partition_of.get(reply.metadata.src_node_id, -1)
            if partition not in asked or partition in values:
                log(WARNING, "unexpected reply from node %s ignored", reply.metadata.src_node_id)
                continue
            before = self._report.so_far("up")
            try:
                self._report.uplink_bytes_wire += wire_size(reply)
                values[partition] = self._check(reply, partition)
                del self._report.rejected[partition]
            except Exception as error:  # whatever a client sends must not end the round
                self._report.rejected[partition] = reason_of(error)
            self._report.list_reply(partition, before)
        for partition in sorted(asked & self._report.rejected.keys()):
            log(WARNING, "round %d: client %d: %s", self._report.round, partition, self._report.rejected[partition])
        return values

    def _check(self, reply: Message, partition: int) -> Tensor:
        if reply.has_error():
            raise RuntimeError(f"[{reply.error.code}] {reply.error.reason}")
        payload = read_update(reply.content)
        self._report.uplink_messages += 1
        self._report.uplink_bytes += len(payload)
        terms, local = self._terms(partition), self.settings.local
        bound = norm_bound(
            self._mechanism(partition),
            self._frame,
            num_examples=terms.num_examples,
            local=local if self._report.round else local.single(),
        )
        values = unpack(
            payload,
            Expected(
                round=self._report.round,
                codec=self.settings.codec,
                index_mode=self.settings.index_mode,
                size=self._frame.wire.size,
                indices=self._frame.wire.indices,
                digest=self._frame.digest,
                max_norm=bound,
                blocks=self._frame.wire.blocks,
                dither=self._dither(partition),
                most=self.state.method.compression.most(self._frame.wire.size),
            ),
        )
        self._report.payloads[partition] = payload
        return decode(values, self._frame)

    def _terms(self, partition: int) -> ClientTerms:
        terms = self.settings.terms[partition]
        return terms if self._report.round else terms.of_round_0()

    def _mechanism(self, partition: int) -> Mechanism:
        method = self.state.method
        return self._terms(partition).mechanism(method.mechanism if self._report.round else pruning_mechanism(method))

    def _dither(self, partition: int) -> Dither:
        """What the server knows of a client's quantisation in this round."""
        local = self.settings.local if self._report.round else self.settings.local.single()
        noise_std = accumulated_noise(self._mechanism(partition).noise_std, local.steps, local.momentum)
        return Dither(seed=self.state.seed, client=partition, noise_std=noise_std, floor_step=self.settings.floor_step)

    def _noise_of_sum(self, partitions: Iterable[int]) -> float:
        """Deviation of the noise on each coordinate of the sum of these clients' values."""
        each = [self._dither(partition) for partition in partitions]
        coarse = self.settings.codec == "noise-floor"
        return math.hypot(*(one.received_noise if coarse else one.noise_std for one in each))
