"""What travels: every record comes back as it was, in as many bytes as were counted."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

from fedlsg.config.isolation import CHECKED
from fedlsg.frame import Frame
from fedlsg.simulations.engines.local import task_identity
from fedlsg.strategies.protocol import wire
from fedlsg.strategies.protocol.round_report import Sizes, wire_size
from fedlsg.strategies.protocol.wire import (
    Announcement,
    identity,
    over_the_wire,
    read_identity,
)
from tests.strategies.small_federation import announcement, server_state

ANNOUNCED = Announcement(
    round=3,
    updates=2,
    frame_digest=bytes(range(32)),
    sample_rate=0.1,
    noise_multiplier=1.5,
    expected_batch=7.5,
    run_dir="/r",
    isolation=CHECKED,
    features="",
)


def travelled(content: RecordDict) -> RecordDict:
    """After serialisation to bytes and back."""
    data = message_to_proto(Message(content, 1, "train")).SerializeToString()
    return message_from_proto(ProtoMessage.FromString(data)).content


@given(
    hn.arrays(np.float32, st.integers(0, 50)),
    st.integers(1, 10**6),
    st.binary(min_size=32, max_size=32),
    st.floats(0, 1, exclude_min=True),
    st.text(max_size=20),
)
def test_an_announcement_comes_back(weights, round, digest, rate, run_dir):
    announced = replace(
        ANNOUNCED, round=round, frame_digest=digest, sample_rate=rate, run_dir=run_dir
    )
    content = travelled(announcement(torch.from_numpy(weights), announced))
    back, known = wire.read_weights(content), wire.read_round(content)
    assert known == announced
    assert back.numpy().tobytes() == weights.tobytes(), "to the bit, NaN too"


@given(st.binary(max_size=100), st.integers(0, 10**6))
def test_an_update_comes_back(payload, partition):
    content = travelled(wire.update(payload, partition))
    assert wire.read_update(content) == payload
    assert content["from"] == {"partition": partition}


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (Array(dtype="<f4", shape=(1,), stype="numpy.ndarray", data=bytes(4)), "stype 'raw'"),
        (Array(dtype="<f4", shape=(2,), stype="raw", data=bytes(4)), "reshape"),
        (Array(dtype="<f4", shape=(1,), stype="raw", data=bytes(5)), "buffer size"),
        (Array(dtype="object", shape=(1,), stype="raw", data=bytes(8)), "array of numbers"),
    ],
)
def test_another_encoding_is_refused(array, message):
    with pytest.raises((ValueError, TypeError), match=message):
        wire.read_array(array)


def sent_frame(frame: Frame, derived: Frame | None = None) -> Frame | None:
    content = announcement(torch.zeros(3), ANNOUNCED, frame)
    return wire.read_frame(travelled(content), frame if derived is None else derived)


@pytest.mark.parametrize(
    ("method", "choices"),
    [
        ("lsg", {"sparsity": 0.5}),
        ("rgp", {"rank": 2}),
        ("rs", {"sparsity": 0.5, "cooling": False}),
        ("dpsgd", {}),
    ],
)
def test_a_frame_comes_back_to_the_bit(method, choices):
    """Derived on another processor: other carriers and other kept units, the same names and
    shapes.
    """
    frame = server_state(method, **choices).frame()
    other = server_state(method, seed=1, **choices).frame()
    back = sent_frame(frame, derived=other)
    assert back.digest == frame.digest
    assert (back.digest == other.digest) == (method == "dpsgd")
    values = torch.arange(float(frame.kept))
    for name, gradient in frame.gradients(values).items():
        assert back.gradients(values)[name].equal(gradient)


def test_a_frame_with_a_carrier_too_few_is_refused():
    frame = server_state().frame()
    content = announcement(torch.zeros(3), ANNOUNCED, frame)
    del content["frame"]["carrier-0001"]
    with pytest.raises((RuntimeError, StopIteration)):
        wire.read_frame(content, frame)


def test_a_changed_carrier_or_index_changes_the_digest():
    """Negative control: what the digest must catch after the way."""
    frame = server_state(sparsity=0.5).frame()
    content = announcement(torch.zeros(3), ANNOUNCED, frame)
    record = content["frame"]
    for key in ("carrier-0000", "indices"):
        values = wire.read_array(record[key])
        values.flat[0] += 1
        planted = RecordDict({"frame": ArrayRecord({**record, key: wire.raw_array(values)})})
        assert wire.read_frame(planted, frame).digest != frame.digest


@given(st.binary(max_size=1000), st.text(max_size=30))
def test_wire_size_is_the_length_of_the_serialised_message(payload, group):
    message = Message(wire.update(payload, 3), 5, "train", group_id=group)
    assert wire_size(message) == len(message_to_proto(message).SerializeToString())
    assert wire_size(message) > wire.array_bytes(message.content.values())


def test_the_size_of_an_array_that_no_client_of_ours_sends_is_exact_too():
    arrays = {"": Array(dtype="", shape=(-1, 0, 2**31 - 1), stype="é", data=b"")}
    message = Message(RecordDict({"": ArrayRecord(arrays)}), 5, "train")
    assert wire_size(message) == len(message_to_proto(message).SerializeToString())


def test_a_failure_is_a_reply_with_a_code():
    asked = Message(RecordDict(), 5, "train", group_id="7")
    asked.metadata.__dict__["_message_id"] = "abc"
    reply = wire.failure("why", wire.OVER_BUDGET, asked)
    assert reply.has_error()
    assert (reply.error.code, reply.error.reason) == (1003, "why")
    assert (reply.metadata.src_node_id, reply.metadata.reply_to_message_id) == (5, "abc")
    assert len({wire.FAILED, wire.FRAME_DIFFERS, wire.OVER_BUDGET}) == 3


sizes = st.sampled_from([0, 1, 90, 120, 127, 128, 300, 16_000, 16_383, 16_384, 70_000, 2_100_000])
records = st.dictionaries(st.text(max_size=9), st.lists(sizes, max_size=3), max_size=3)


def message_of(given_records):
    terms = ConfigRecord(
        {
            "rate": 0.1,
            "round": 7,
            "on": True,
            "name": "ü",
            "raw": b"\0\1",
            "many": [1, 2],
            "none": [],
        }
    )
    content = RecordDict(
        {"terms": terms, "scores": MetricRecord({"loss": 0.5, "each": [1.0, -2.0], "count": 3})}
    )
    for name, lengths in given_records.items():
        arrays = {
            f"a{i}": Array(dtype="|u1", shape=(n,), stype="raw", data=bytes(n))
            for i, n in enumerate(lengths)
        }
        content[f"r{name}"] = ArrayRecord(arrays)
    return Message(content, 2**62, "train", group_id="3")


def whole(message):
    return message_to_proto(message).SerializeToString()


@pytest.mark.slow
@given(records)
def test_the_size_is_exact_at_every_length_of_a_length(given_records):
    message = message_of(given_records)
    before = message.content
    assert wire_size(message) == len(whole(message))
    assert message.content is before
    known: Sizes = {}
    others = [
        message,
        Message(RecordDict(dict(message.content)), 5, "train", group_id="12"),
        message_of(given_records),
    ]
    assert [wire_size(other, known) for other in others] == [len(whole(other)) for other in others]
    assert len(known) == 2 * len(message.content)


@pytest.mark.slow
@given(records)
def test_what_arrives_is_what_the_whole_message_says(given_records):
    message = message_of(given_records)
    arrived = over_the_wire(message)
    assert whole(arrived) == whole(message_from_proto(ProtoMessage.FromString(whole(message))))
    for name, record in message.content.array_records.items():
        for key, array in record.items():
            copy = arrived.content.array_records[name][key]
            assert copy is not array
            assert copy.data is array.data, (
                "the bytes themselves are shared: nobody can change them"
            )


def test_an_identity_says_what_a_client_may_spend():
    with task_identity():
        both = identity(3, 700, epsilon=2.5, delta=1e-6)
        assert read_identity(both) == (3, 700, (2.5, 1e-6))
        assert read_identity(identity(3, 700)) == (3, 700, (0.0, 0.0))


@pytest.mark.parametrize("epsilon", [-1.0, 1e-12, math.nan, math.inf, 1e6])
def test_no_epsilon_of_one_client_ends_the_plan_of_all(epsilon):
    with task_identity(), pytest.raises(ValueError, match="at most 100"):
        read_identity(identity(3, 700, epsilon=epsilon))


@pytest.mark.parametrize("delta", [-1.0, 1e-300, math.nan, 1.0])
def test_no_delta_of_one_client_ends_the_plan_of_all(delta):
    with task_identity(), pytest.raises(ValueError, match="delta < 1"):
        read_identity(identity(3, 700, delta=delta))
