"""One message: round trips, a layout written out by hand, and a receiver that trusts no byte."""

import hashlib
import math
import pickle
from dataclasses import replace

import pytest
import torch
from flwr.proto.recorddict_pb2 import Array as ProtoArray
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.payload import PayloadError, find_codec
from fedlsg.payload.layout import HEADER, payload_bytes
from fedlsg.payload.message import Sealed, pack, unpack
from tests.fedlsg.support.payload_oracle import (
    CODECS,
    DIGEST,
    DTYPES,
    MODES,
    codecs,
    decode_by_hand,
    finite,
    message,
    modes,
    resealed,
    with_field,
)


@given(values=finite, codec=codecs, mode=modes)
def test_round_trip(values, codec, mode):
    """Exact for float32; for the short types, the value rounded to that type."""
    packed, expected = message(values, codec, mode)
    got = unpack(packed, expected)
    wanted = torch.tensor(values, dtype=torch.float32).to(DTYPES[codec]).float()
    assert got.dtype == torch.float32
    assert torch.equal(got, wanted)
    assert got.tolist() == decode_by_hand(packed, codec, mode)
    assert len(packed) == payload_bytes(len(values), codec)


def test_golden_bytes():
    """One value 1.5 at position 3 of 10, written out by hand."""
    packed = pack(
        torch.tensor([1.5]),
        torch.tensor([3]),
        size=10,
        round=2,
        digest=b"\xab" * 32,
        codec="float16",
    )
    by_hand = (
        b"FLSG\x01\x02\x00\x00"
        + bytes([2, 0, 0, 0, 0, 0, 0, 0])
        + bytes([10, 0, 0, 0, 0, 0, 0, 0])
        + bytes([1, 0, 0, 0, 0, 0, 0, 0])
        + b"\xab" * 32
        + bytes([0x00, 0x3E])
    )
    assert packed == by_hand + hashlib.sha256(by_hand).digest()[:16]


def test_a_payload_that_left_its_memory_in_any_way_is_checked():
    """Only what this process packed, and what nothing can have changed since, is not hashed a
    second time.
    """
    sealed, expected = message([1.0, 2.0], "float32", "derived")
    assert type(sealed) is Sealed
    ways = {
        "pickle": pickle.loads(pickle.dumps(sealed)),
        "wire": ProtoArray.FromString(ProtoArray(data=sealed).SerializeToString()).data,
        "slice": sealed[:9] + sealed[9:],
        "copy": bytes(sealed),
        "replaced": sealed.replace(b"FLSG", b"FLSG"),
        "file": bytes(bytearray(sealed)),
    }
    for way, arrived in ways.items():
        damaged = bytearray(arrived)
        damaged[HEADER.size] ^= 1
        assert type(arrived) is bytes, way
        with pytest.raises(PayloadError, match="checksum"):
            unpack(bytes(damaged), expected)
    with pytest.raises(PayloadError, match="round"):
        unpack(sealed, replace(expected, round=expected.round + 1))
    assert torch.equal(unpack(sealed, expected), unpack(bytes(sealed), expected))


def test_damage_that_is_trusted_is_not_found():
    """Negative control: the type is all that stands between damage and the sum."""
    sealed, expected = message([1.0, 2.0], "float32", "derived")
    damaged = bytearray(sealed)
    damaged[HEADER.size] ^= 1
    assert not torch.equal(unpack(Sealed(damaged), expected), unpack(sealed, expected))


@pytest.mark.parametrize(
    ("indices", "size", "message_part"),
    [
        ([0, 1], 9, "one value an index"),
        ([0, 1, 9], 9, "do not fit into 9"),
        ([-1, 1, 2], 9, "do not fit into 9"),
        ([0, 2, 2], 9, "ascend"),
        ([2, 1, 3], 9, "ascend"),
        ([0, 1, 2], 2**32 + 1, "do not fit"),
    ],
)
def test_pack_refuses_indices_that_do_not_fit(indices, size, message_part):
    with pytest.raises(PayloadError, match=message_part):
        pack(torch.zeros(3), torch.tensor(indices), size=size, round=1, digest=DIGEST)


def test_unknown_codecs_and_modes_are_refused():
    about = {"size": 1, "round": 1, "digest": DIGEST}
    with pytest.raises(ValueError, match=r"codec in .*'sign'\), got 'int4'; did you mean 'int8'\?"):
        find_codec("int4")
    with pytest.raises(ValueError, match="codec in"):
        pack(torch.zeros(1), torch.zeros(1).long(), **about, codec="int4")
    with pytest.raises(ValueError, match=r"index mode in .*'runs'"):
        pack(torch.zeros(1), torch.zeros(1).long(), **about, index_mode="runs")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("magic", b"FLSH"),
        ("version", 2),
        ("codec", 2),
        ("codec", 0),
        ("codec", 255),
        ("index mode", 2),
        ("reserved byte", 1),
        ("round", 8),
        ("round", 2**64 - 1),
        ("size", 0),
        ("size", 2**64 - 1),
        ("count", 0),
        ("count", 4),
        ("count", 2**64 - 1),
        ("frame digest", bytes(32)),
    ],
)
def test_every_wrong_field_is_named(mode, field, value):
    packed, expected = message([1.0, 2.0, 3.0], mode=mode)
    with pytest.raises(PayloadError, match=f"payload {field}: expected"):
        unpack(with_field(packed, field, value), expected)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"round": 8}, "round"),
        ({"size": 10}, "size"),
        ({"digest": bytes(32)}, "frame digest"),
        ({"codec": "float16"}, "length"),
        ({"index_mode": "explicit"}, "version"),
        ({"codec": "noise-floor"}, "version"),
        ({"indices": torch.arange(2)}, "length"),
        ({"max_norm": 3.7}, "norm 3.742 exceeds the bound 3.7"),
    ],
)
def test_every_other_expectation_is_named(change, field):
    packed, expected = message([1.0, 2.0, 3.0])
    assert unpack(packed, expected).tolist() == [1, 2, 3]
    with pytest.raises(PayloadError, match=field):
        unpack(packed, replace(expected, **change))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_values_are_refused_on_both_sides(codec, bad):
    with pytest.raises(PayloadError, match=f"not finite as {codec}"):
        message([1.0, bad, 3.0], codec)
    packed, expected = message([1.0, 2.0, 3.0], codec)
    width = DTYPES[codec].itemsize
    encoded = torch.tensor([bad]).to(DTYPES[codec]).view(torch.uint8).numpy().tobytes()
    forged = packed[: 64 + width] + encoded + packed[64 + 2 * width : -16]
    with pytest.raises(PayloadError, match="values: not finite"):
        unpack(resealed(forged), expected)


def test_values_beyond_float16_are_refused_not_sent_as_infinity():
    with pytest.raises(
        PayloadError, match=r"not finite as float16 \(largest 65504\): take a wider codec"
    ):
        message([70000.0], "float16")
    message([70000.0], "bfloat16")


@given(
    values=st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=8), slack=st.floats(0.5, 2)
)
def test_norm_bound(values, slack):
    packed, expected = message(values)
    norm = math.sqrt(math.fsum(v * v for v in unpack(packed, expected).tolist()))
    bounded = replace(expected, max_norm=norm * slack)
    if slack < 0.999 and norm > 1e-15:  # below that, squares of float32 are 0
        with pytest.raises(PayloadError, match="norm"):
            unpack(packed, bounded)
    elif slack > 1.001:
        assert len(unpack(packed, bounded)) == len(values)


def test_a_hostile_count_allocates_nothing():
    """The receiver goes by what it expects: a header that announces 2^61 values is refused by its
    length.
    """
    packed, expected = message([1.0])
    with pytest.raises(PayloadError, match="count"):
        unpack(with_field(packed, "count", 2**61), expected)
    with pytest.raises(PayloadError, match="length: expected 84 bytes, got 80"):
        unpack(resealed(with_field(packed, "count", 2**61)[:64]), expected)
