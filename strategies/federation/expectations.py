"""What the server expects of a client's reply, and what it reads from one that fits."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import Message
from torch import Tensor

from fedlsg.carriers.powersgd import decode
from fedlsg.frame import Frame
from fedlsg.masks import accumulated_noise, pruning_mechanism
from fedlsg.method import LocalTraining, norm_bound
from fedlsg.payload import Dither, Expected, unpack
from fedlsg.privacy import Mechanism
from fedlsg.state import ServerState
from strategies.federation.ledger_copies import LedgerCopies
from strategies.federation.ledger_wire import read_news
from strategies.federation.report import RoundReport
from strategies.federation.terms import ClientTerms, FederationSettings
from strategies.federation.wire import read_update


@dataclass(frozen=True, kw_only=True, eq=False)
class Expectations:
    """The public terms of a round, by client. ``copies``: ledgers of deployed clients, None in a simulation."""

    state: ServerState
    settings: FederationSettings
    copies: LedgerCopies | None = None

    def read(self, reply: Message, partition: int, frame: Frame, report: RoundReport) -> Tensor:
        """The values of a reply; bytes and payload are entered in the report.

        Raises for an error, for a payload that does not pass ``unpack`` and, from a deployed client, for a ledger
        without the announced entry.
        """
        if reply.has_error():
            raise RuntimeError(f"[{reply.error.code}] {reply.error.reason}")
        payload = read_update(reply.content)
        report.uplink_messages += 1
        report.uplink_bytes += len(payload)
        if self.copies is not None:
            self.copies.take(partition, read_news(reply.content))
            self.copies.insist(partition, report.round, self._charged(partition, frame, report.round))
        values = unpack(payload, self._expected(partition, frame, report.round))
        report.payloads[partition] = payload
        return decode(values, frame)

    def terms(self, partition: int, round: int) -> ClientTerms:
        """The client's terms in a round."""
        terms = self.settings.terms[partition]
        return terms if round else terms.of_round_0()

    def noise_of_sum(self, partitions: Iterable[int], round: int) -> float:
        """Standard deviation of the noise on each coordinate of the sum of these clients' values."""
        each = [self._dither(partition, round) for partition in partitions]
        return math.hypot(*(self.settings.codec.received_noise(one.noise_std) for one in each))

    def _mechanism(self, partition: int, round: int) -> Mechanism:
        method = self.state.method
        return self.terms(partition, round).mechanism(
            method.mechanism if round else pruning_mechanism(method.mechanism, method.prune)
        )

    def _local(self, round: int) -> LocalTraining:
        return self.settings.local if round else self.settings.local.single()

    def _dither(self, partition: int, round: int) -> Dither:
        """The public parameters of a client's quantization in this round."""
        local = self._local(round)
        noise_std = accumulated_noise(self._mechanism(partition, round).noise_std, local.steps, local.momentum)
        return Dither(seed=self.state.seed, client=partition, noise_std=noise_std)

    def _expected(self, partition: int, frame: Frame, round: int) -> Expected:
        num_examples, local = self.terms(partition, round).num_examples, self._local(round)
        return Expected(
            round=round,
            codec=self.settings.codec,
            index_mode=self.settings.index_mode,
            size=frame.wire.size,
            indices=frame.wire.indices,
            digest=frame.digest,
            max_norm=norm_bound(self._mechanism(partition, round), frame, num_examples=num_examples, local=local),
            blocks=frame.wire.blocks,
            dither=self._dither(partition, round),
            most=self.state.method.compression.most(frame.wire.size),
        )

    def _charged(self, partition: int, frame: Frame, round: int) -> dict[str, object]:
        """Fields of the ledger entry that an honest client makes."""
        terms, mechanism = self.terms(partition, round), self._mechanism(partition, round)
        return {
            "steps": self._local(round).steps,
            "sample_rate": terms.sample_rate,
            "noise_multiplier": mechanism.effective_noise_multiplier(len(frame.blocks)),
            "clip_norm": mechanism.clip_norm,
            "num_examples": terms.num_examples,
            "mechanism": mechanism.kind,
        }
