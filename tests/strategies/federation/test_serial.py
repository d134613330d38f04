"""A message without its arrays weighs what the whole one weighs, and arrives as the whole one would."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from hypothesis import given
from hypothesis import strategies as st

from strategies.federation.serial import over_the_wire, wire_size

sizes = st.sampled_from([0, 1, 90, 120, 127, 128, 300, 16_000, 16_383, 16_384, 70_000, 2_100_000])
records = st.dictionaries(st.text(max_size=9), st.lists(sizes, max_size=3), max_size=3)


def message_of(given_records):
    terms = ConfigRecord({"rate": 0.1, "round": 7, "on": True, "name": "ü", "raw": b"\0\1", "many": [1, 2], "none": []})
    content = RecordDict({"terms": terms, "scores": MetricRecord({"loss": 0.5, "each": [1.0, -2.0], "count": 3})})
    for name, lengths in given_records.items():
        arrays = {f"a{i}": Array(dtype="|u1", shape=(n,), stype="raw", data=bytes(n)) for i, n in enumerate(lengths)}
        content[f"r{name}"] = ArrayRecord(arrays)
    return Message(content, 2**62, "train", group_id="3")


def whole(message):
    return message_to_proto(message).SerializeToString()


@given(records)
def test_the_size_is_exact_at_every_length_of_a_length(given_records):
    message = message_of(given_records)
    before = message.content
    assert wire_size(message) == len(whole(message))
    assert message.content is before


@given(records)
def test_what_arrives_is_what_the_whole_message_says(given_records):
    message = message_of(given_records)
    arrived = over_the_wire(message)
    assert whole(arrived) == whole(message_from_proto(ProtoMessage.FromString(whole(message))))
    for name, record in message.content.array_records.items():
        for key, array in record.items():
            copy = arrived.content.array_records[name][key]
            assert copy is not array
            assert copy.data is array.data, "the bytes themselves are shared: nobody can change them"
