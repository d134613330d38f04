"""The report of one round: messages and their sizes, rejected replies, and the simulated time.

The size of a message has three levels:
    values    down: the encoded weights or values of an update, and the state that a replica
              continues from;
              up: the codec's values (``fedlsg.payload.value_bytes``)
    payload   values, header, indices, carriers and checksum: all arrays of the message
    wire      the message as Flower serializes it (protobuf)

A reply that was rejected, or reports an error, has no values.
"""

import re
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import config_record_to_proto, message_to_proto, metric_record_to_proto
from flwr.common.serde_utils import metadata_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from torch import Tensor

from fedlsg.participation import Finish, Health, Participation, Traffic
from fedlsg.payload import value_bytes
from fedlsg.state import Phase, RoundPlan, phase_of
from fedlsg.state.server_update import VALUES, read_steps
from fedlsg.strategies.protocol.wire import (
    LOST,
    OVER_BUDGET,
    TOO_SLOW,
    array_bytes,
    arrays_in,
)

CODE = re.compile(r"^\[\d+\] ")
"""The error code at the start of a reason; people read the reason without it."""
NO_REPLY = "no reply before the round's timeout"
AWAY = "no node of the federation is this client at the moment"

Direction = Literal["down", "up"]
"""To the client, or to the server."""

VALUE_RECORDS = ("weights", "state")
"""Records of an announcement with numbers of the model; "frame" and "kept" are indices and
carriers.
"""


Sizes = dict[tuple[str, int], tuple[object, int]]
"""By name and identity of a record: the record and its serialized size in bytes. The record is
kept, so that no other one gets its identity.
"""


class Sent(NamedTuple):
    """One message: ``wire_bytes >= payload_bytes >= values_bytes``, see the header of the file."""

    client: int
    direction: Direction
    values_bytes: int
    payload_bytes: int
    wire_bytes: int


def in_words(why: str) -> str:
    """A reason without the error code that it may begin with."""
    return CODE.sub("", why)


@dataclass(kw_only=True)
class RoundReport:
    """The clients, messages and times of one round.

    A selected client is in at most one of ``answered``, ``rejected``, ``dropped`` and ``late``.

    round: its number; 0 for the pruning round.
    asked: the selected clients.
    plan: what was announced.
    answered: clients with a valid reply.
    rejected: the reason, by client.
    noted: by client, the fault of a client that took part all the same.
    dropped: clients that left before they trained, in the simulation.
    late: clients with a valid reply after the round's simulated end, which is not used.
    payloads: accepted payloads by client.
    uplink_messages: replies with a payload, also rejected ones.
    downlink_messages: announcements.
    uplink_bytes: of payloads up.
    uplink_bytes_wire: of whole messages up.
    downlink_bytes: of payloads down.
    downlink_bytes_wire: of whole messages down.
    sent: every message, in the order in which it was counted; bytes are sums over it.
    seconds: of the whole round.
    waiting: seconds of them that were spent in waiting for replies.
    simulated_clock: seconds since the start of the run, at the round's end; None without a
        simulated clock.
    count_values: bytes of the values in a payload.
    sizes: of records in announcements.
    total: the sum that a secure sum revealed, or that a server with noise of its own released, as
        one flat vector; else None.
    """

    round: int
    asked: Sequence[int]
    plan: RoundPlan | None = None
    answered: list[int] = field(default_factory=list)
    rejected: dict[int, str] = field(default_factory=dict)
    noted: dict[int, str] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    payloads: dict[int, bytes] = field(default_factory=dict)
    uplink_messages: int = 0
    downlink_messages: int = 0
    uplink_bytes: int = 0
    uplink_bytes_wire: int = 0
    downlink_bytes: int = 0
    downlink_bytes_wire: int = 0
    sent: list[Sent] = field(default_factory=list)
    seconds: float = 0.0
    waiting: float = 0.0
    simulated_clock: float | None = None
    count_values: Callable[[bytes], int] = value_bytes
    sizes: Sizes = field(default_factory=dict, repr=False)
    total: Tensor | None = None

    def so_far(self, direction: Direction) -> tuple[int, int]:
        """Payload and wire bytes counted until now: ``before`` of the next message."""
        if direction == "down":
            return self.downlink_bytes, self.downlink_bytes_wire
        return self.uplink_bytes, self.uplink_bytes_wire

    def list_message(
        self, client: int, direction: Direction, before: tuple[int, int], values: int
    ) -> None:
        """Enter a message into ``sent``: the bytes counted since ``before``, ``values`` of them
        for values.
        """
        payload, wire = self.so_far(direction)
        self.sent.append(Sent(client, direction, values, payload - before[0], wire - before[1]))

    def list_reply(self, client: int, before: tuple[int, int], *, stage: bool = False) -> None:
        """Enter a reply into ``sent``, accepted or rejected, after its bytes were counted.

        ``stage``: it is a message of the secure sum, without values.
        """
        accepted = not stage and client in self.payloads and client not in self.rejected
        values = self.count_values(self.payloads[client]) if accepted else 0
        self.list_message(client, "up", before, values)

    def count_down(self, client: int, message: Message, *, stage: bool = False) -> None:
        """Count a message to a client, and enter it. ``stage``: it is one of the secure sum."""
        before = self.so_far("down")
        self.downlink_messages += not stage
        self.downlink_bytes += array_bytes(message.content.values())
        self.downlink_bytes_wire += wire_size(message, self.sizes)
        self.list_message(client, "down", before, announced_values(message.content))

    @property
    def reasons(self) -> str:
        """Reasons of rejected and noted clients: "0 2: no reply ...; 1: payload checksum ..."."""
        clients: dict[str, list[int]] = {}
        for partition, why in sorted({**self.noted, **self.rejected}.items()):
            clients.setdefault(in_words(why), []).append(partition)
        return "; ".join(f"{' '.join(map(str, who))}: {why}" for why, who in clients.items())

    def refused(self, *codes: int) -> set[int]:
        """Clients that replied with one of these error codes."""
        starts = tuple(f"[{code}]" for code in codes)
        return {client for client, why in self.rejected.items() if why.startswith(starts)}

    @property
    def lost(self) -> set[int]:
        """Clients whose reply is unknown: no worker, no node, or no reply before the timeout."""
        silent = {client for client, why in self.rejected.items() if why in (NO_REPLY, AWAY)}
        return silent | self.refused(*LOST)

    @property
    def failed(self) -> set[int]:
        """Clients that were lost or too slow; others may replace them."""
        return self.lost | self.refused(TOO_SLOW)

    @property
    def budget_spent(self) -> bool:
        """Whether every selected client refused because it would pass its privacy budget."""
        return self.only_refusals and not self.dropped

    @property
    def only_refusals(self) -> bool:
        """Whether all clients but dropouts refused because of their budget; one at least."""
        refusals = self.refused(OVER_BUDGET)
        return bool(refusals) and len(refusals) + len(self.dropped) == len(self.asked)

    @property
    def counts(self) -> str:
        """The number of selected clients, and of those without an update by what became of them."""
        lost = self.lost
        clients: dict[str, Collection[int]] = {
            "selected": self.asked,
            "lost": lost,
            "rejected": self.rejected.keys() - lost,
            "dropped out": self.dropped,
            "late": self.late,
        }
        return ", ".join(
            f"{len(some)} {name}" for name, some in clients.items() if some or name == "selected"
        )


def announced_values(content: RecordDict) -> int:
    """Bytes of the model's numbers in an announcement."""
    whole = array_bytes(content[name] for name in VALUE_RECORDS if name in content)
    sent = arrays_in(content, "steps")
    steps = [] if sent is None else read_steps(sent["updates"].data)
    return whole + sum(value_bytes(step.payload) for step in steps if step.kind == VALUES)


def wire_size(message: Message, known: Sizes | None = None) -> int:
    """Bytes of the whole message as Flower serializes it (protobuf).

    known: sizes of records that messages share; the function adds to it.
    """
    if not message.has_content():
        return int(message_to_proto(message).ByteSize())
    known = {} if known is None else known
    content = 0
    for name, record in message.content.items():
        key = name, id(record)
        if key not in known:
            known[key] = record, _item_size(name, record)
        content += _nested(known[key][1])
    return _nested(metadata_to_proto(message.metadata).ByteSize()) + _nested(content)


def _item_size(name: str, record: Any) -> int:
    """Bytes of a record in its RecordDict; arrays, most of a message, are not serialized for it."""
    if isinstance(record, ArrayRecord):
        arrays = (_text(key) + _nested(_array_size(array)) for key, array in record.items())
        return _text(name) + _nested(sum(map(_nested, arrays)))
    if isinstance(record, ConfigRecord):
        return int(
            ProtoRecordDict.Item(key=name, config_record=config_record_to_proto(record)).ByteSize()
        )
    return int(
        ProtoRecordDict.Item(key=name, metric_record=metric_record_to_proto(record)).ByteSize()
    )


def _array_size(array: Array) -> int:
    """Bytes of an array as protobuf: dtype, encoding, shape (packed varints), data."""
    shape = sum(_varint(n) for n in array.shape)
    data = len(array.data)
    return (
        _text(array.dtype)
        + _text(array.stype)
        + (_nested(shape) if shape else 0)
        + (_nested(data) if data else 0)
    )


def _text(text: str) -> int:
    """Bytes of a text as a protobuf field; 0 for an empty one."""
    return _nested(len(text.encode())) if text else 0


def _nested(size: int) -> int:
    """Bytes of a protobuf field of ``size`` bytes: its tag (1 byte), its length, and itself."""
    return 1 + _varint(size) + size


def _varint(number: int) -> int:
    """Bytes of a number with 7 bits a byte."""
    number %= 2**64  # a negative number, which a node may send, has all 64 bits
    return max(1, (number.bit_length() + 6) // 7)


class SimulatedClock:
    """The time in a simulation, in which clients are away, leave or are late.

    participation: who is there, and how fast.
    health: failures of real clients. A checkpoint has it.
    now: seconds since the start of the run, at the end of the last round. A checkpoint has it.
    """

    def __init__(self, participation: Participation) -> None:
        self.participation, self.health = participation, Health()
        self.now = self._start = 0.0
        self._finish: Finish | None = None

    def select(self, round: int) -> list[int]:
        """The clients of a training round, ascending; the round starts when they are there."""
        self._start, selected = self.participation.begin(round, self.now)
        return selected

    def open(self, report: RoundReport) -> Set[int]:
        """The clients that leave a round before they train: they get its announcement only."""
        self._finish = None
        return self.participation.leaving(report.round) if self._runs(report) else frozenset()

    def late(self, report: RoundReport, replied: Collection[int]) -> list[int]:
        """Clients whose reply is after the round's simulated end, ascending; they are charged."""
        if not self._runs(report):
            return []
        self._finish = self.participation.finish(report.round, report.asked, traffic_of(report))
        return sorted(set(replied) - self._finish.in_time)

    def close(self, report: RoundReport) -> None:
        """End the round, and enter the time into its report.

        Messages after the values (stages of a secure sum) count for clients that answered.
        """
        if not self._runs(report):
            return
        traffic = traffic_of(report)
        finish = self._finish or self.participation.finish(report.round, report.asked, traffic)
        after = [self.participation.arrival(client, traffic) for client in report.answered]
        report.simulated_clock = self.now = self._start + max([finish.seconds, *after])

    def _runs(self, report: RoundReport) -> bool:
        return self.participation.timed and phase_of(report.round) is Phase.TRAINING


def traffic_of(report: RoundReport) -> Traffic:
    """Payload bytes to and from each client so far."""
    traffic: dict[int, tuple[int, int]] = {}
    for message in report.sent:
        down, up = traffic.get(message.client, (0, 0))
        size = message.payload_bytes
        traffic[message.client] = (
            (down + size, up) if message.direction == "down" else (down, up + size)
        )
    return traffic


@dataclass(frozen=True, kw_only=True, eq=False)
class Received:
    """The valid updates of a round.

    clients: that took part, ascending.
    updates: one for each client, in this order; one in all if the exchange gives a sum.
    noise_std: standard deviation of the noise in the sum of the updates.
    """

    clients: Sequence[int] = ()
    updates: Sequence[Tensor] = ()
    noise_std: float = 0.0
