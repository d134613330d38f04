"""What one message weighs, at three levels.

    values    the numbers in it as they are encoded: the weights or an update's values down, and what a replica goes on
              from; the codec's values up (fedlsg/payload/sizes.py)
    payload   values, header, indices, carriers and checksum: all arrays of the message
    wire      the message as Flower serialises it (protobuf)

A reply that was refused, or names an error, holds no values.
"""

from typing import Literal, NamedTuple

from flwr.app import RecordDict

from fedlsg.payload import value_bytes
from fedlsg.state.server_update import VALUES, read_steps

Direction = Literal["down", "up"]

VALUE_RECORDS = ("weights", "state")
"""Records of an announcement that hold numbers of the model; "frame" and "kept" are indices and carriers."""


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
