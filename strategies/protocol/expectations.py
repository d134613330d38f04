"""Expectations of the server about a reply: bounds on its size, the client's terms, its values.

The size of everything in a reply is compared before it is copied, parsed or kept. An honest node
keeps every bound. A node that breaks one is left out, the log says why, and the round continues
without it. Sizes of arrays are not bounded here: ``unpack`` compares a payload with its round.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, Message
from torch import Tensor

from fedlsg.carriers.powersgd import decode
from fedlsg.config.units import EXAMPLE, Unit
from fedlsg.frame import Frame
from fedlsg.method import LocalTraining, Method, norm_bound
from fedlsg.payload import Codec, Dither, Expected, IndexMode, keeps_memory, unpack
from fedlsg.privacy.ledger_copy import LARGEST_BYTES
from fedlsg.secure_sum.discrete import SumTerms
from fedlsg.state import ClientTerms, Phase, RoundPlan, ServerState
from fedlsg.strategies.protocol.proofs import LedgerCopies, read_news
from fedlsg.strategies.protocol.round_report import RoundReport
from fedlsg.strategies.protocol.wire import read_update
from fedlsg.training.client_level import ServerNoise

CONTENT_BYTES = LARGEST_BYTES + 2**16
"""Bytes of names, numbers, texts and ledger lines in a reply at most; arrays are not counted."""
MAX_REPLY_RECORDS = 32
"""Records in a reply."""
MAX_RECORD_ITEMS = 64
"""Arrays or values in a record."""
MAX_DECLARED_EXAMPLES = 10**9
"""Examples that one client may declare."""
REASON_LENGTH = 300
"""Characters of a reason at most."""


class BoundError(ValueError):
    """A reply that no honest node sends."""


def reply_bytes(parameters: int) -> int:
    """Bytes of an honest reply at most: 20 a dense parameter, of which a payload needs 16."""
    return 2 * CONTENT_BYTES + 20 * parameters


def check_reply(reply: Message) -> None:
    """Raise BoundError for a reply with too many or too large parts next to its arrays.

    The error quotes nothing of the reply.
    """
    if reply.has_error() or not reply.has_content():
        return  # only the ends of an error's text are read
    size = 0
    for name, record in reply.content.items():
        size += len(name)
        if len(reply.content) > MAX_REPLY_RECORDS or len(record) > MAX_RECORD_ITEMS:
            raise BoundError(
                f"expected {MAX_REPLY_RECORDS} records of {MAX_RECORD_ITEMS} items at most in a "
                "reply, got more"
            )
        size += sum(len(key) + _size(value) for key, value in _items(record).items())
    if size > CONTENT_BYTES:
        raise BoundError(
            f"expected {CONTENT_BYTES:,} bytes at most in a reply next to its arrays, got {size:,}"
        )


def _items(record: Any) -> Mapping[str, Any]:
    if not isinstance(record, ArrayRecord):
        return dict(record)
    return {
        key: [array.dtype, array.stype, *([0] * len(array.shape))] for key, array in record.items()
    }


def _size(value: Any) -> int:
    if isinstance(value, list):
        return sum(_size(item) for item in value)
    return len(value) if isinstance(value, str | bytes) else 8


def shortened(text: str | None) -> str:
    """A text of a node as one printable line of at most ``REASON_LENGTH`` characters and 5.

    A long text loses its middle, because texts of Ray begin with the kind of error and end with its
    message. The first cut is before any copy of the text.
    """
    text = text or ""
    if len(text) > 8 * REASON_LENGTH:
        text = f"{text[: 4 * REASON_LENGTH]} ... {text[-4 * REASON_LENGTH :]}"
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
    text = "".join(character if character.isprintable() else "?" for character in text)
    half = REASON_LENGTH // 2
    return text if len(text) <= REASON_LENGTH else f"{text[:half]} ... {text[-half:]}"


def reason_of(error: Exception) -> str:
    """Why a reply was rejected, as ``shortened``, because the text may be that of a client."""
    return shortened(str(error) or type(error).__name__)


@dataclass(frozen=True, kw_only=True)
class Uplink:
    """The public format of payloads, on which server, clients and readers of a record agree.

    method: whose values are sent.
    codec: of the values.
    seed: of rounding.
    index_mode: "derived" positions of values, or "explicit" ones in the payload.
    """

    method: Method
    codec: Codec
    seed: int
    index_mode: IndexMode = "derived"

    @property
    def explicit(self) -> bool:
        """Whether payloads hold the positions of their values."""
        return self.index_mode == "explicit"

    @property
    def keeps_memory(self) -> bool:
        """Whether clients keep what the codec left out, for their next payload."""
        return keeps_memory(self.method, self.codec)

    def dither(self, client: int, plan: RoundPlan) -> Dither:
        """The rounding of a client's values in a round."""
        return Dither(seed=self.seed, client=client, noise_std=plan.noise_std)

    def expected(
        self, frame: Frame, *, round: int, dither: Dither, max_norm: float = math.inf
    ) -> Expected:
        """The expected payload of values in a frame. Clients do not know ``max_norm``."""
        wire = frame.wire
        return Expected(
            round=round,
            codec=self.codec,
            index_mode=self.index_mode,
            size=wire.size,
            indices=wire.indices,
            digest=frame.digest,
            blocks=wire.blocks,
            dither=dither,
            most=self.method.compression.most(wire.size),
            max_norm=max_norm,
        )


@dataclass(frozen=True, kw_only=True)
class FederationSettings:
    """Public constants of a federation.

    terms: by client.
    clients_per_round: clients that a round selects.
    local: the common local training.
    uplink: the format of payloads.
    min_survivors: clients without whom a round changes nothing.
    timeout: seconds that a round waits for replies.
    run_dir: of the run; empty in a deployment.
    sums: terms of secure sums; None if the server reads every payload.
    reproducible: whether masks and noise of a sum come from the seed. NOT PRIVATE.
    unit: what epsilon protects.
    server_noise: of a server that adds the noise; else None.
    features: digest of the filters and axes that inputs become features with; empty without.
    """

    terms: Sequence[ClientTerms]
    clients_per_round: int
    local: LocalTraining
    uplink: Uplink
    min_survivors: int = 1
    timeout: float = 3600.0
    run_dir: str = ""
    sums: SumTerms | None = None
    reproducible: bool = False
    unit: Unit = EXAMPLE
    server_noise: ServerNoise | None = None
    features: str = ""

    @property
    def least_clients(self) -> int:
        """Clients without whom a round changes nothing; 0 if their number is secret."""
        return self.min_survivors if self.server_noise is None else 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Expectations:
    """Reads replies by the public terms of each client.

    state: of the server.
    settings: of the federation.
    copies: ledgers of deployed clients; None in a simulation.
    """

    state: ServerState
    settings: FederationSettings
    copies: LedgerCopies | None = None

    def read(
        self, reply: Message, partition: int, common: RoundPlan, report: RoundReport
    ) -> Tensor:
        """The values of a reply times the client's weight; bytes and payload are entered in the
        report.

        Raises as ``paid``, and for a payload that does not pass ``unpack``.
        """
        payload = self.paid(reply, partition, common, report)
        terms = self.terms(partition, common.phase)
        plan = common.for_client(terms)
        values = unpack(payload, self._expected(partition, plan, terms.num_examples))
        report.payloads[partition] = payload
        decoded = decode(values, plan.frame)
        return decoded if terms.weight == 1 else decoded * terms.weight

    def paid(self, reply: Message, partition: int, common: RoundPlan, report: RoundReport) -> bytes:
        """The payload of a reply whose client was charged for it; its bytes are entered in the
        report.

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
        """The payload of a reply; its bytes are entered in the report.

        Raises RuntimeError for an error, ValueError for no payload.
        """
        if reply.has_error():
            raise RuntimeError(f"[{reply.error.code}] {shortened(reply.error.reason)}")
        payload = read_update(reply.content)
        report.uplink_bytes += len(payload)
        return payload

    def terms(self, partition: int, phase: Phase) -> ClientTerms:
        """The client's terms in a phase."""
        return self.settings.terms[partition].of(phase)

    def to_mean(self, clients: Iterable[int], common: RoundPlan) -> float:
        """The factor of these clients' values, fixed divisor over that of the round.

        The server divides by its fixed divisor, and ``RoundPlan.divisor`` may be another one.
        """
        fixed = self.state.divisor
        terms = [self.terms(client, common.phase) for client in clients]
        return fixed / common.divisor(fixed, terms) if terms else 1.0

    def noise_of_sum(self, partitions: Iterable[int], common: RoundPlan) -> float:
        """Standard deviation of the noise on each coordinate of these clients' weighted sum."""
        received = self.settings.uplink.codec.received_noise
        deviations = []
        for partition in partitions:
            terms = self.terms(partition, common.phase)
            deviations.append(terms.weight * received(common.for_client(terms).noise_std))
        return math.hypot(*deviations)

    def _expected(self, partition: int, plan: RoundPlan, num_examples: int) -> Expected:
        uplink = self.settings.uplink
        return uplink.expected(
            plan.frame,
            round=plan.round,
            dither=uplink.dither(partition, plan),
            max_norm=self._norm_bound(plan, num_examples),
        )

    def _norm_bound(self, plan: RoundPlan, num_examples: int) -> float:
        """The largest norm of an honest payload; at client level that of one clipped update."""
        if plan.releases_examples:
            units, local = num_examples, plan.local
        else:
            units, local = 1, plan.local.single()
        return norm_bound(plan.mechanism, plan.frame, num_examples=units, local=local)
