"""One message: round trips, every byte accounted for, and a receiver that trusts none of them."""

import hashlib
import math
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedlsg.payload import (
    CHECKSUM_BYTES,
    DTYPES,
    HEADER,
    Expected,
    PayloadError,
    check_codec,
    pack,
    payload_bytes,
    unpack,
)

DIGEST = bytes(range(32))
CODECS, MODES = sorted(DTYPES), ["derived", "explicit"]
FIELDS = ["magic", "version", "codec", "index mode", "reserved byte", "round", "size", "count", "frame digest"]
LAYOUT = "<4sBBBBQQQ32s"

codecs, modes = st.sampled_from(CODECS), st.sampled_from(MODES)
finite = st.lists(st.floats(-60000, 60000, width=32), max_size=20)


def message(values, codec="float32", mode="derived", size=None, **changes) -> tuple[bytes, Expected]:
    """A payload of ``values`` at every second position, and what its receiver expects."""
    values = torch.as_tensor(values, dtype=torch.float32)
    indices = torch.arange(len(values)) * 2
    size = 2 * len(values) + 3 if size is None else size
    packed = pack(values, indices, size=size, round=7, digest=DIGEST, codec=codec, index_mode=mode)
    expected = Expected(round=7, codec=codec, index_mode=mode, size=size, indices=indices, digest=DIGEST)
    return packed, replace(expected, **changes)


def resealed(body: bytes) -> bytes:
    """The body with a right checksum: what a client that lies sends, not what a bad line makes."""
    return body + hashlib.sha256(body).digest()[:CHECKSUM_BYTES]


def with_field(packed: bytes, field: str, value: object) -> bytes:
    """The payload with one header field changed and its checksum made right."""
    fields = list(struct.unpack_from(LAYOUT, packed))
    fields[FIELDS.index(field)] = value
    return resealed(struct.pack(LAYOUT, *fields) + packed[HEADER.size : -CHECKSUM_BYTES])


def decode_by_hand(packed: bytes, codec: str, mode: str) -> list[float]:
    """The values with struct and integer arithmetic only, no torch."""
    (count,) = struct.unpack_from("<Q", packed, 24)
    start = 64 + (4 * count if mode == "explicit" else 0)
    if codec == "bfloat16":
        words = struct.unpack_from(f"<{count}H", packed, start)
        return [struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words]
    return list(struct.unpack_from(f"<{count}{'f' if codec == 'float32' else 'e'}", packed, start))


@given(values=finite, codec=codecs, mode=modes)
def test_round_trip(values, codec, mode):
    """Exact for float32; for the short types, the value rounded to that type."""
    packed, expected = message(values, codec, mode)
    got = unpack(packed, expected)
    wanted = torch.tensor(values, dtype=torch.float32).to(DTYPES[codec]).float()
    assert got.dtype == torch.float32
    assert torch.equal(got, wanted)
    assert got.tolist() == decode_by_hand(packed, codec, mode)
    assert len(packed) == payload_bytes(len(values), codec, mode)


@given(seed=st.integers(0, 2**32))
def test_float32_keeps_every_bit(seed):
    """Signed zeros and subnormals included."""
    bits = np.random.default_rng(seed).integers(0, 2**32, 50, dtype=np.uint32)
    values = torch.tensor(np.concatenate([bits.view(np.float32), np.float32([0.0, -0.0, 1e-45, -1e-40])]))
    values = values[values.isfinite()]
    packed, expected = message(values)
    assert torch.equal(unpack(packed, expected).view(torch.int32), values.view(torch.int32))


@pytest.mark.parametrize(
    ("codec", "mode", "size"),
    [
        ("float32", "derived", 80 + 400),
        ("float16", "derived", 80 + 200),
        ("bfloat16", "derived", 80 + 200),
        ("float32", "explicit", 80 + 800),
        ("float16", "explicit", 80 + 600),
        ("bfloat16", "explicit", 80 + 600),
    ],
)
def test_sizes_by_hand(codec, mode, size):
    """100 values behind 64 bytes of header and 16 of checksum."""
    assert payload_bytes(100, codec, mode) == size == len(message(range(100), codec, mode)[0])


def test_golden_bytes():
    """One value 1.5 at position 3 of 10, written out by hand."""
    packed = pack(
        torch.tensor([1.5]),
        torch.tensor([3]),
        size=10,
        round=2,
        digest=b"\xab" * 32,
        codec="float16",
        index_mode="explicit",
    )
    by_hand = (
        b"FLSG\x01\x02\x01\x00"
        + bytes([2, 0, 0, 0, 0, 0, 0, 0])
        + bytes([10, 0, 0, 0, 0, 0, 0, 0])
        + bytes([1, 0, 0, 0, 0, 0, 0, 0])
        + b"\xab" * 32
        + bytes([3, 0, 0, 0])
        + bytes([0x00, 0x3E])
    )
    assert packed == by_hand + hashlib.sha256(by_hand).digest()[:16]


def test_the_payload_of_nothing():
    """An all-frozen mask does not occur, but an empty one is no special case."""
    for mode in MODES:
        packed, expected = message([], mode=mode)
        assert unpack(packed, expected).shape == (0,)


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
        ({"index_mode": "explicit"}, "length"),
        ({"indices": torch.arange(2)}, "length"),
        ({"max_norm": 3.7}, "norm 3.742 exceeds the bound 3.7"),
    ],
)
def test_every_other_expectation_is_named(change, field):
    packed, expected = message([1.0, 2.0, 3.0])
    assert unpack(packed, expected).tolist() == [1, 2, 3]
    with pytest.raises(PayloadError, match=field):
        unpack(packed, replace(expected, **change))


def test_a_codec_of_equal_width_is_not_misread():
    """float16 and bfloat16 payloads have the same length: only the field tells them apart."""
    packed, expected = message([1.0, 2.0], "float16")
    expected = replace(expected, codec="bfloat16")
    with pytest.raises(PayloadError, match="payload codec: expected 3, got 2"):
        unpack(packed, expected)


@pytest.mark.parametrize(
    "damage", [lambda i: i.flip(0), lambda i: i + 1, lambda i: i.index_fill(0, torch.tensor(0), 2)]
)
def test_explicit_indices_must_be_those_of_the_mask(damage):
    packed, expected = message([1.0, 2.0, 3.0], mode="explicit")
    indices = damage(expected.indices).numpy().astype("<u4").tobytes()
    with pytest.raises(PayloadError, match="payload indices"):
        unpack(resealed(packed[:64] + indices + packed[76:-16]), expected)


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
    with pytest.raises(PayloadError, match="not finite as float16; float32 and bfloat16"):
        message([70000.0], "float16")
    message([70000.0], "bfloat16")


@given(values=st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=8), slack=st.floats(0.5, 2))
def test_norm_bound(values, slack):
    packed, expected = message(values)
    norm = math.sqrt(math.fsum(v * v for v in unpack(packed, expected).tolist()))
    bounded = replace(expected, max_norm=norm * slack)
    if slack < 0.999 and norm > 0:
        with pytest.raises(PayloadError, match="norm"):
            unpack(packed, bounded)
    elif slack > 1.001:
        assert len(unpack(packed, bounded)) == len(values)


@given(data=st.data(), codec=codecs, mode=modes)
@settings(max_examples=300)
def test_damage_at_any_byte_is_a_payload_error(data, codec, mode):
    """Truncated, extended, or one bit flipped anywhere: refused, and never by another exception."""
    packed, expected = message(data.draw(finite), codec, mode)
    kind = data.draw(st.sampled_from(["truncate", "extend", "flip", "cut out"]))
    place = data.draw(st.integers(0, len(packed) - 1))
    if kind == "truncate":
        damaged = packed[:place]
    elif kind == "extend":
        damaged = packed + data.draw(st.binary(min_size=1, max_size=40))
    elif kind == "cut out":
        damaged = packed[:place] + packed[place + 1 :]
    else:
        flipped = packed[place] ^ (1 << data.draw(st.integers(0, 7)))
        damaged = packed[:place] + bytes([flipped]) + packed[place + 1 :]
    with pytest.raises(PayloadError):
        unpack(damaged, expected)


def test_every_bit_of_a_payload_is_guarded():
    packed, expected = message([1.0, -2.0], "float16", "explicit")
    for bit in range(8 * len(packed)):
        damaged = bytearray(packed)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PayloadError):
            unpack(bytes(damaged), expected)


@given(noise=st.binary(max_size=300), codec=codecs, mode=modes, count=st.integers(0, 30))
def test_arbitrary_bytes_are_a_payload_error(noise, codec, mode, count):
    _, expected = message(torch.zeros(count), codec, mode)
    for hostile in (noise, noise.ljust(payload_bytes(count, codec, mode), b"\0")):
        with pytest.raises(PayloadError):
            unpack(hostile, expected)


@given(body=st.binary(max_size=200), codec=codecs, mode=modes)
def test_sealed_bytes_give_their_own_values_or_a_payload_error(body, codec, mode):
    """A lying client controls every byte behind the header: whatever is accepted is finite and read as it stands."""
    count = len(body) // (payload_bytes(1, codec, mode) - payload_bytes(0, codec, mode))
    packed, expected = message(torch.zeros(count), codec, mode)
    width = DTYPES[codec].itemsize
    forged = resealed(packed[: len(packed) - 16 - width * count] + body[: width * count])
    by_hand = decode_by_hand(forged, codec, mode)
    if all(map(math.isfinite, by_hand)):
        assert unpack(forged, expected).tolist() == by_hand
    else:
        with pytest.raises(PayloadError, match="not finite"):
            unpack(forged, expected)


def test_a_hostile_count_allocates_nothing():
    """The receiver goes by what it expects: a header that announces 2^61 values is refused by its length."""
    packed, expected = message([1.0])
    with pytest.raises(PayloadError, match="count"):
        unpack(with_field(packed, "count", 2**61), expected)
    with pytest.raises(PayloadError, match="length: expected 84 bytes, got 80"):
        unpack(resealed(with_field(packed, "count", 2**61)[:64]), expected)


def unchecked_unpack(packed: bytes, expected: Expected) -> Tensor:
    """A planted receiver: reads the values of the right length and asks nothing."""
    count = len(expected.indices)
    start = len(packed) - 16 - count * DTYPES[expected.codec].itemsize
    return torch.frombuffer(bytearray(packed[start:-16]), dtype=DTYPES[expected.codec]).float()


def catches_the_wrong_round(receive) -> bool:
    packed, expected = message([1.0, 2.0], round=8)
    try:
        receive(packed, expected)
    except PayloadError:
        return True
    return False


def test_a_receiver_without_checks_is_caught():
    assert catches_the_wrong_round(unpack)
    assert not catches_the_wrong_round(unchecked_unpack)


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
    with pytest.raises(ValueError, match=r"codec in .*'int8'"):
        check_codec("int8", "derived")
    with pytest.raises(ValueError, match=r"index mode in .*'runs'"):
        check_codec("float32", "runs")
    with pytest.raises(ValueError, match="codec in"):
        pack(torch.zeros(1), torch.zeros(1).long(), size=1, round=1, digest=DIGEST, codec="int8")
