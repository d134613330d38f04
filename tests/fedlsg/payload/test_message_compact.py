"""Messages of variable length: round trips, layouts by hand, indices that are not sent twice, and
lies.
"""

import hashlib
import struct
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlsg.payload import Dither, PayloadError, find_codec
from fedlsg.payload.layout import decode_indices
from fedlsg.payload.message import longest, pack, unpack
from tests.fedlsg.support.compact_oracle import (
    BLOCKS,
    CODECS,
    DIGEST,
    INDICES,
    compact,
    resealed,
    with_field,
)
from tests.fedlsg.support.payload_oracle import DTYPES, message

KINDS = [(codec, mode) for codec in CODECS for mode in ("derived", "explicit")]
COMPACT_KINDS = [(c, m) for c, m in KINDS if c not in DTYPES or m == "explicit"]
SECTION = bytes.fromhex("034801900040000100")


@pytest.mark.parametrize(("codec", "mode"), KINDS)
def test_round_trip(codec, mode):
    packed, expected = compact(codec, mode)
    values = 3.0 * torch.randn(12, generator=torch.Generator().manual_seed(4))
    got = unpack(packed, expected)
    if codec in DTYPES:
        assert torch.equal(got, values.to(DTYPES[codec]).float())
    elif codec == "sign":
        assert torch.equal(got >= 0, values >= 0)
    else:
        assert (got - values).abs().max() <= (
            0.25 if codec == "noise-floor" else values.abs().max() / 253
        ) * 1.001


def test_golden_bytes():
    """Two values of bfloat16 with explicit indices, and int8, written out by hand."""
    dither = Dither(seed=0, client=1)
    about = {"size": 9, "round": 2, "digest": b"\xab" * 32, "dither": dither}
    packed = pack(
        torch.tensor([1.0, 0.0]),
        torch.tensor([0, 3]),
        codec="bfloat16",
        index_mode="explicit",
        **about,
    )
    head = b"FLSG\x02\x03\x01\x00" + bytes([2, 0, 0, 0]) + b"\xab" * 16
    body = head + bytes([3, 0, 0, 0]) + b"\x01\x90\x00" + bytes([0x80, 0x3F, 0, 0])
    seal = hashlib.sha256(struct.pack("<QQ32s", 9, 2, b"\xab" * 32) + b"(0, 1)" + body).digest()[
        :16
    ]
    assert packed == body + seal
    packed = pack(torch.tensor([0.0, 0.0]), torch.tensor([0, 3]), codec="int8", **about)
    body = b"FLSG\x02\x05\x00\x00" + head[8:] + bytes(4) + bytes(2)
    assert (
        packed
        == body
        + hashlib.sha256(struct.pack("<QQ32s", 9, 2, b"\xab" * 32) + b"(0, 1)" + body).digest()[:16]
    )


@pytest.mark.parametrize("codec", CODECS)
def test_indices_of_an_earlier_message_are_not_sent_again(codec):
    """A per-epoch mask is explicit once; afterwards eight bytes stand for it."""
    first, expected = compact(codec, "explicit")
    second, _ = compact(codec, "explicit", earlier=first)
    third, _ = compact(codec, "explicit", earlier=second)
    assert len(first) - len(second) == 4 + len(SECTION) - 8
    assert second == third
    assert torch.equal(unpack(first, expected), unpack(second, expected))
    assert first[28:].startswith(struct.pack("<I", len(SECTION)) + SECTION)
    assert torch.equal(decode_indices(SECTION, [block.shape for block in BLOCKS]), INDICES)
    moved = replace(expected, indices=INDICES + torch.tensor([0] * 11 + [1]))
    with pytest.raises(PayloadError, match="payload indices: they differ"):
        unpack(second, moved)


@pytest.mark.parametrize(("codec", "mode"), COMPACT_KINDS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("magic", b"FLSH"),
        ("version", 1),
        ("version", 3),
        ("codec", 0),
        ("codec", 255),
        ("index mode", 3),
        ("reserved byte", 1),
        ("round", 8),
        ("round", 2**32 - 1),
        ("frame digest", bytes(16)),
    ],
)
def test_every_wrong_field_is_named(codec, mode, field, value):
    packed, expected = compact(codec, mode)
    with pytest.raises(PayloadError, match=f"payload {field}: expected"):
        unpack(with_field(packed, expected, field, value), expected)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"round": 8}, "round"),
        ({"size": 39}, "checksum"),
        ({"digest": bytes(32)}, "frame digest"),
        ({"digest": DIGEST[:16] + bytes(16)}, "checksum"),
        ({"codec": "int8"}, "codec"),
        ({"index_mode": "explicit"}, "index mode"),
        ({"dither": Dither(seed=11, client=4, noise_std=1.0)}, "another client"),
        ({"dither": Dither(seed=12, client=3, noise_std=1.0)}, "another client"),
        (
            {"dither": Dither(seed=11, client=3, noise_std=1.001)},
            "grid step: expected 0.5005, got 0.5",
        ),
        (
            {"codec": find_codec("noise-floor").with_settings({"noise_floor_step": 1.0})},
            "grid step: expected 1, got 0.5",
        ),
        ({"max_norm": 3.0}, "exceeds the bound|symbol beyond"),
    ],
)
def test_every_other_expectation_is_named(change, why):
    """Another round, frame, cohort, mechanism or step, or more than an honest client's norm."""
    packed, expected = compact()
    unpack(packed, expected)
    with pytest.raises(PayloadError, match=why):
        unpack(packed, replace(expected, **change))


def test_the_norm_bound_holds_for_what_was_received():
    """An honest payload at its bound passes with the error of the grid; one beyond it does not."""
    for codec in ("noise-floor", "int8"):
        packed, expected = compact(codec)
        norm = float(unpack(packed, expected).norm())
        unpack(packed, replace(expected, max_norm=norm))
        with pytest.raises(PayloadError, match="exceeds the bound"):
            unpack(
                packed,
                replace(expected, max_norm=0.85 * norm if codec == "noise-floor" else 0.97 * norm),
            )


@pytest.mark.parametrize("steps", ["0000c07f", "0000807f", "000080bf", "ffff7f7f", "0100807f"])
def test_hostile_grid_steps(steps):
    """NaN, infinite, negative, enormous, a signalling NaN (which warns when it is widened)."""
    for codec in ("noise-floor", "int8"):
        packed, expected = compact(codec, max_norm=1e6)
        forged = resealed(packed[:28] + bytes.fromhex(steps) + packed[32:-16], expected)
        with pytest.raises(PayloadError, match="grid step"):
            unpack(forged, expected)


@pytest.mark.parametrize(("codec", "mode"), COMPACT_KINDS)
def test_hostile_lengths(codec, mode):
    """Empty, cut, longer than any honest payload, and an index section that claims 4 GB."""
    packed, expected = compact(codec, mode)
    for length in (0, 27, 43):
        with pytest.raises(PayloadError, match="payload length"):
            unpack(packed[:length], expected)
    with pytest.raises(PayloadError, match="payload length"):
        unpack(packed + bytes(longest(expected, 100)), expected)
    for hostile in (
        packed[28:-16] + b"\0",
        packed[28:-17],
        b"\xff\xff\xff\xff" + packed[32:-16],
        b"",
    ):
        with pytest.raises(PayloadError):
            unpack(resealed(packed[:28] + hostile, expected), expected)


def test_indices_must_be_those_of_the_mask():
    packed, expected = compact("float32", "explicit")
    for wrong in (b"\x03\x30", b"\x05\x02\x00\x03"):
        forged = (
            packed[:28] + struct.pack("<I", len(SECTION) - 2 + len(wrong)) + wrong + packed[34:-16]
        )
        with pytest.raises(PayloadError, match="payload indices"):
            unpack(resealed(forged, expected), expected)


@pytest.mark.parametrize(
    "made",
    [
        lambda: message([1.0, -2.0], "float16"),
        lambda: compact("noise-floor"),
        lambda: compact("int8", "explicit"),
        lambda: compact("sign", "chosen"),
    ],
    ids=["fixed length", "noise-floor", "explicit", "chosen"],
)
def test_every_bit_is_guarded(made):
    packed, expected = made()
    for bit in range(8 * len(packed)):
        damaged = bytearray(packed)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PayloadError):
            unpack(bytes(damaged), expected)


def test_codecs_that_quantise_need_their_dither():
    with pytest.raises(PayloadError, match="needs the public dither"):
        pack(torch.zeros(1), torch.zeros(1).long(), size=1, round=1, digest=DIGEST, codec="int8")
    with pytest.raises(PayloadError, match="choose a codec that needs no noise"):
        pack(
            torch.zeros(1),
            torch.zeros(1).long(),
            size=1,
            round=1,
            digest=DIGEST,
            codec="noise-floor",
            dither=Dither(seed=0, client=0),
        )
    packed, expected = compact()
    with pytest.raises(PayloadError, match="checksum"):
        unpack(packed, replace(expected, dither=None))


@pytest.mark.parametrize("codec", ["noise-floor", "int8"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_not_sent(codec, bad):
    dither = Dither(seed=0, client=0, noise_std=1.0)
    with pytest.raises(PayloadError, match="not finite"):
        pack(
            torch.tensor([bad]),
            torch.zeros(1).long(),
            size=1,
            round=1,
            digest=DIGEST,
            codec=codec,
            dither=dither,
        )


@given(body=st.binary(max_size=150), kind=st.sampled_from(COMPACT_KINDS), whole=st.booleans())
@settings(max_examples=100)
def test_a_lying_client_gets_values_within_the_bound_or_an_error(body, kind, whole):
    packed, expected = compact(*kind, max_norm=50.0)
    start = 28 if kind[1] == "derived" or whole else 28 + 4 + len(SECTION)
    try:
        values = unpack(resealed(packed[:start] + body, expected), expected)
    except PayloadError:
        return
    assert values.shape == (12,)
    assert values.isfinite().all()
    assert values.norm() <= 50 + 0.25 * 12**0.5 + 1
