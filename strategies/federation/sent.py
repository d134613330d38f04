"""The size of one message, at three levels.

    values    down: the encoded weights or values of an update, and the state that a replica continues from;
              up: the codec's values (``fedlsg.payload.value_bytes``)
    payload   values, header, indices, carriers and checksum: all arrays of the message
    wire      the message as Flower serializes it (protobuf)

A reply that was rejected, or reports an error, has no values.
"""

from typing import Literal, NamedTuple

from flwr.app import RecordDict

from fedlsg.payload import value_bytes
from fedlsg.state.server_update import VALUES, read_steps

Direction = Literal["down", "up"]

VALUE_RECORDS = ("weights", "state")
"""Records of an announcement with numbers of the model; "frame" and "kept" are indices and carriers."""


class Sent(NamedTuple):
    """One message between the server and a client, ``wire_bytes >= payload_bytes >= values_bytes``."""

    client: int
    direction: Direction
    values_bytes: int
    payload_bytes: int
    wire_bytes: int


def announced_values(content: RecordDict) -> int:
    """Bytes of the model's numbers in an announcement."""
    records = content.array_records
    whole = sum(len(array.data) for name in VALUE_RECORDS if name in records for array in records[name].values())
    steps = read_steps(records["steps"]["updates"].data) if "steps" in records else []
    return whole + sum(value_bytes(step.payload) for step in steps if step.kind == VALUES)
