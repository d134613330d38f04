"""The public terms of a federation, what the server therefore expects of a reply, and what it reads from it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flwr.app import Message
from torch import Tensor

from fedlsg.carriers.powersgd import decode
from fedlsg.client_level import ServerNoise
from fedlsg.discrete import SumTerms
from fedlsg.method import LocalTraining, norm_bound
from fedlsg.payload import Codec, Dither, Expected, IndexMode, unpack
from fedlsg.state import ClientTerms, Phase, RoundPlan, ServerState
from fedlsg.units import EXAMPLE, Unit
from strategies.federation.bounds import shortened
from strategies.federation.ledgers import LedgerCopies, read_news
from strategies.federation.report import RoundReport
from strategies.federation.wire import read_update


@dataclass(frozen=True, kw_only=True)
class FederationSettings:
    """Public constants of a federation. ``terms`` are per partition; ``local`` is the common local training.

    ``sums``: of secure sums; None where the server reads every payload. ``reproducible``: masks and noise of it come
    from the seed. NOT PRIVATE. ``unit``: what epsilon protects; with ``server_noise`` the server adds the noise.
    """

    terms: Sequence[ClientTerms]
    clients_per_round: int
    local: LocalTraining
    codec: Codec
    index_mode: IndexMode = "derived"
    min_survivors: int = 1
    timeout: float = 3600.0
    run_dir: str = ""
    sums: SumTerms | None = None
    reproducible: bool = False
    unit: Unit = EXAMPLE
    server_noise: ServerNoise | None = None

    @property
    def least_clients(self) -> int:
        """Clients without whom a round changes nothing; 0 where their number is a secret."""
        return self.min_survivors if self.server_noise is None else 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Expectations:
    """The public terms of a round, by client. ``copies``: ledgers of deployed clients, None in a simulation."""

    state: ServerState
    settings: FederationSettings
    copies: LedgerCopies | None = None

    def read(self, reply: Message, partition: int, common: RoundPlan, report: RoundReport) -> Tensor:
        """The values of a reply times the client's weight; bytes and payload are entered in the report.

        Raises as ``paid``, and for a payload that does not pass ``unpack``.
        """
        payload = self.paid(reply, partition, common, report)
        terms = self.terms(partition, common.phase)
        plan = common.for_client(terms)
        values = unpack(payload, self._expected(partition, plan, terms.num_examples))
        report.payloads[partition] = payload
        found = decode(values, plan.frame)
        return found if terms.weight == 1 else found * terms.weight

    def paid(self, reply: Message, partition: int, common: RoundPlan, report: RoundReport) -> bytes:
        """The payload of a reply whose client was charged for it; its bytes are entered in the report.

        Raises for an error and, from a deployed client, for a ledger without the announced entry.
        """
        payload = self.payload(reply, report)
        report.uplink_messages += 1
        terms = self.terms(partition, common.phase)
        plan = common.for_client(terms)
        if self.copies is not None:
            self.copies.take(partition, read_news(reply.content))
            self.copies.insist(partition, plan.round, plan.charge(terms.num_examples))
        return payload

    def payload(self, reply: Message, report: RoundReport) -> bytes:
        """The payload of a reply; its bytes are entered in the report. Raises for an error, or for no payload."""
        if reply.has_error():
            raise RuntimeError(f"[{reply.error.code}] {shortened(reply.error.reason)}")
        payload = read_update(reply.content)
        report.uplink_bytes += len(payload)
        return payload

    def terms(self, partition: int, phase: Phase) -> ClientTerms:
        """The client's terms in a phase."""
        return self.settings.terms[partition].of(phase)

    def noise_of_sum(self, partitions: Iterable[int], common: RoundPlan) -> float:
        """Standard deviation of the noise on each coordinate of the weighted sum of these clients' values."""
        terms = {partition: self.terms(partition, common.phase) for partition in partitions}
        each = [(own.weight, self._dither(partition, common.for_client(own))) for partition, own in terms.items()]
        return math.hypot(*(weight * self.settings.codec.received_noise(one.noise_std) for weight, one in each))

    def _dither(self, partition: int, plan: RoundPlan) -> Dither:
        """The public parameters of a client's quantization in this round."""
        return Dither(seed=self.state.seed, client=partition, noise_std=plan.noise_std)

    def _expected(self, partition: int, plan: RoundPlan, num_examples: int) -> Expected:
        wire = plan.frame.wire
        return Expected(
            round=plan.round,
            codec=self.settings.codec,
            index_mode=self.settings.index_mode,
            size=wire.size,
            indices=wire.indices,
            digest=plan.frame.digest,
            max_norm=self._norm_bound(plan, num_examples),
            blocks=wire.blocks,
            dither=self._dither(partition, plan),
            most=self.state.method.compression.most(wire.size),
        )

    def _norm_bound(self, plan: RoundPlan, num_examples: int) -> float:
        """At client level a payload is one clipped update, whatever the local steps and examples."""
        units, local = (num_examples, plan.local) if plan.releases_examples else (1, plan.local.single())
        return norm_bound(plan.mechanism, plan.frame, num_examples=units, local=local)
