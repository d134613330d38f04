"""What happened in one round: every message and its size, why a reply was rejected, and the time in
a simulation.

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
"""The error code of a reply, by which clients are sorted; a reader gets its words."""
NO_REPLY = "no reply before the round's timeout"
AWAY = "no node of the federation is this client at the moment"

Direction = Literal["down", "up"]

VALUE_RECORDS = ("weights", "state")
"""Records of an announcement with numbers of the model; "frame" and "kept" are indices and
carriers.
"""


Sizes = dict[tuple[str, int], tuple[object, int]]
"""Serialized sizes of records by name and identity, each with its record: then no other one takes
its identity.
"""


class Sent(NamedTuple):
    """One message between the server and a client, ``wire_bytes >= payload_bytes >=
    values_bytes``.
    """

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
    """What happened in one round.

    plan: what was announced.
    asked: the selected clients.
    answered: clients with a valid reply.
    rejected: the reason, by partition.
    noted: what a client did wrong that took part all the same.
    dropped: clients that left before they trained, in the simulation.
    late: clients with a valid reply that came after the round's simulated end, and is not used.
        Each selected client is in one of the four (not in noted) at most.
    sent: every message, in the order in which it was counted; bytes are sums over it.
    seconds: of the whole round, ``waiting`` of them for replies.
    simulated_clock: seconds since the start of the run, at the round's end; None without a
        simulated clock.
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
    """Bytes of the values in a payload."""
    sizes: Sizes = field(default_factory=dict, repr=False)
    """Of records in announcements."""
    total: Tensor | None = None
    """What a secure sum revealed, or a server with noise of its own released, as one flat
    vector.
    """

    def so_far(self, direction: Direction) -> tuple[int, int]:
        """Payload and wire bytes counted until now."""
        if direction == "down":
            return self.downlink_bytes, self.downlink_bytes_wire
        return self.uplink_bytes, self.uplink_bytes_wire

    def list_message(
        self, client: int, direction: Direction, before: tuple[int, int], values: int
    ) -> None:
        """Enter a message into ``sent``: the growth of the sums since ``before``, and the bytes of
        its values.
        """
        payload, wire = self.so_far(direction)
        self.sent.append(Sent(client, direction, values, payload - before[0], wire - before[1]))

    def list_reply(self, client: int, before: tuple[int, int], *, stage: bool = False) -> None:
        """The same for a reply that was accepted or rejected. ``stage``: it has no values."""
        accepted = not stage and client in self.payloads and client not in self.rejected
        self.list_message(
            client, "up", before, self.count_values(self.payloads[client]) if accepted else 0
        )

    def count_down(self, client: int, message: Message, *, stage: bool = False) -> None:
        """Count and list what was sent to a client. ``stage``: it has no part of the model."""
        before = self.so_far("down")
        self.downlink_messages += not stage
        self.downlink_bytes += array_bytes(message.content.values())
        self.downlink_bytes_wire += wire_size(message, self.sizes)
        self.list_message(client, "down", before, announced_values(message.content))

    @property
    def reasons(self) -> str:
        """Why clients were rejected, or noted, equal reasons together: "0 2: no reply ...; 1:
        payload checksum ...".
        """
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
        """Clients whose reply is unknown: the worker died, the node has left, or no reply came
        before the timeout.
        """
        return {
            client for client, why in self.rejected.items() if why in (NO_REPLY, AWAY)
        } | self.refused(*LOST)

    @property
    def failed(self) -> set[int]:
        """Clients that were lost or too slow: others may be asked in their place."""
        return self.lost | self.refused(TOO_SLOW)

    @property
    def budget_spent(self) -> bool:
        """Whether every selected client refused because it would pass its privacy budget."""
        return self.only_refusals and not self.dropped

    @property
    def only_refusals(self) -> bool:
        """Whether there were such refusals, and nothing else from the clients that did not drop
        out.
        """
        refusals = self.refused(OVER_BUDGET)
        return bool(refusals) and len(refusals) + len(self.dropped) == len(self.asked)

    @property
    def counts(self) -> str:
        """How many clients were selected, and what became of those that brought no update; without
        reasons.
        """
        lost = self.lost
        others = {
            "lost": lost,
            "rejected": self.rejected.keys() - lost,
            "dropped out": self.dropped,
            "late": self.late,
        }
        return ", ".join(
            [
                f"{len(self.asked)} selected",
                *(f"{len(v)} {name}" for name, v in others.items() if v),
            ]
        )


def announced_values(content: RecordDict) -> int:
    """Bytes of the model's numbers in an announcement."""
    whole = array_bytes(content[name] for name in VALUE_RECORDS if name in content)
    sent = arrays_in(content, "steps")
    steps = [] if sent is None else read_steps(sent["updates"].data)
    return whole + sum(value_bytes(step.payload) for step in steps if step.kind == VALUES)


def wire_size(message: Message, known: Sizes | None = None) -> int:
    """Bytes of the whole message as Flower serializes it (protobuf). ``known``: of records that
    messages share.
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
    """Bytes of a record in its RecordDict. Those of arrays, most of a message, are counted and not
    serialized.
    """
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
    shape = sum(_varint(n) for n in array.shape)
    data = len(array.data)
    return (
        _text(array.dtype)
        + _text(array.stype)
        + (_nested(shape) if shape else 0)
        + (_nested(data) if data else 0)
    )


def _text(text: str) -> int:
    """Bytes of a text in its message: none for an empty one."""
    return _nested(len(text.encode())) if text else 0


def _nested(size: int) -> int:
    """Bytes of a part of so many bytes inside of another one: with a tag and its length."""
    return 1 + _varint(size) + size


def _varint(number: int) -> int:
    number %= 2**64  # as a node may send, a negative one has all bits
    return max(1, (number.bit_length() + 6) // 7)


class SimulatedClock:
    """``now``: seconds since the start of the run, at the end of the last round; ``health``: of
    real clients, who fail.

    A checkpoint keeps both.
    """

    def __init__(self, participation: Participation) -> None:
        self.participation, self.health = participation, Health()
        self.now = self._start = 0.0
        self._finish: Finish | None = None

    def select(self, round: int) -> list[int]:
        """The clients that a training round selects, ascending; it starts when they are there."""
        self._start, selected = self.participation.begin(round, self.now)
        return selected

    def open(self, report: RoundReport) -> Set[int]:
        """The clients that will leave a round before they train; they get its announcement, and
        never reply.
        """
        self._finish = None
        return self.participation.leaving(report.round) if self._runs(report) else frozenset()

    def late(self, report: RoundReport, replied: Collection[int]) -> list[int]:
        """Those who replied, trained and were charged, and whose values the round does not use;
        ascending.
        """
        if not self._runs(report):
            return []
        self._finish = self.participation.finish(report.round, report.asked, traffic_of(report))
        return sorted(set(replied) - self._finish.in_time)

    def close(self, report: RoundReport) -> None:
        """The round is over; enter the time into its report. What follows the values (a stage of a
        secure sum) counts for those who answered.
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
    """What came of a round: the ``clients`` that took part, ascending, and their ``updates`` in
    this order.

    Of a secure sum there is one update, the sum. ``noise_std``: deviation of the noise in the sum
    of the updates.
    """

    clients: Sequence[int] = ()
    updates: Sequence[Tensor] = ()
    noise_std: float = 0.0
