"""Indices in bytes, of a mask or chosen by the sender: exact, in their cheapest form and no other,
bounded.
"""

import hashlib
import itertools
import math
import struct
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlsg.frame import Block, Keep
from fedlsg.payload import Dither
from fedlsg.payload.codecs import PayloadError
from fedlsg.payload.layout import counts_within, decode_indices, encode_indices, section_bound
from fedlsg.payload.message import Expected, longest, pack, unpack
from tests.fedlsg.support.compact_oracle import BLOCKS, CODECS, INDICES, compact, resealed

shapes = st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple), max_size=4)


def kept_of(shapes, seed) -> torch.Tensor:
    """Kept positions of blocks, each by another kind of mask."""
    rng, start, found = np.random.default_rng(seed), 0, []
    for shape in shapes:
        size = math.prod(shape)
        kind = rng.integers(6)
        if kind < 2 and len(shape) > 1:
            units = torch.from_numpy(rng.random(shape[kind]) < 0.5).nonzero().squeeze(1)
            kept = Keep(axis=int(kind), index=units).positions(shape)
        else:
            kept = (
                torch.from_numpy(rng.random(size) < (0, 0, 0.05, 0.5, 1, 0)[kind])
                .nonzero()
                .squeeze(1)
            )
        found.append(kept + start)
        start += size
    return torch.cat([*found, torch.zeros(0, dtype=torch.int64)])


@given(shapes=shapes, seed=st.integers(0, 2**32))
@settings(max_examples=100)
def test_round_trip(shapes, seed):
    indices = kept_of(shapes, seed)
    section = encode_indices(indices, shapes)
    assert torch.equal(decode_indices(section, shapes), indices)
    # no worse than bitmaps
    assert len(section) <= sum(1 + (math.prod(shape) + 7) // 8 for shape in shapes)


@pytest.mark.parametrize(
    ("shape", "keep", "by_hand"),
    [
        ((2, 3), Keep(), "00"),
        ((2, 3), Keep(index=torch.tensor([0, 4])), "0188"),
        ((2, 3), Keep(index=torch.zeros(0, dtype=torch.int64)), "0100"),
        ((40,), Keep(index=torch.zeros(0, dtype=torch.int64)), "0200"),
        ((40,), Keep(index=torch.tensor([2, 38])), "02020223"),
        ((300,), Keep(index=torch.tensor([299])), "0202ab02"),
        ((4, 5), Keep(axis=0, index=torch.tensor([1, 2])), "0360"),
        ((5, 4), Keep(axis=1, index=torch.tensor([0, 3])), "0490"),
        ((100, 2), Keep(axis=0, index=torch.tensor([7])), "050107"),
        ((2, 100), Keep(axis=1, index=torch.tensor([7])), "060107"),
        ((4, 50, 9), Keep(axis=1, index=torch.tensor([7])), "060107"),
    ],
)
def test_the_cheapest_form_by_hand(shape, keep, by_hand):
    positions = keep.positions(shape)
    assert encode_indices(positions, [shape]).hex() == by_hand
    assert torch.equal(decode_indices(bytes.fromhex(by_hand), [shape]), positions)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("", "cut short"),
        ("07", "unknown form 7"),
        ("ff", "unknown form 255"),
        ("03", "bitmap that does not fit"),
        ("01", "bitmap that does not fit"),
        ("0101", "bitmap that does not fit"),
        ("02", "a number is cut short"),
        ("0201", "cut short"),
        ("0202ff", "cut short"),
        ("02ffffffffffffffff7f", "cut short"),
        ("020106", "beyond the 6"),
        ("0203000005", "beyond the 6"),
        ("02028100", "too long"),
        ("0201ff", "number is cut short"),
        ("0000", "after the last block"),
    ],
)
def test_bytes_that_no_encoder_makes(bad, why):
    with pytest.raises(ValueError, match=why):
        decode_indices(bytes.fromhex(bad), [(2, 3)])


@given(stream=st.binary(max_size=30), shapes=shapes)
@settings(max_examples=100)
def test_any_bytes_are_indices_or_a_value_error(stream, shapes):
    try:
        indices = decode_indices(stream, shapes)
    except ValueError:
        return
    assert len(indices) <= sum(map(math.prod, shapes))
    assert bool((indices[1:] > indices[:-1]).all())
    assert torch.equal(decode_indices(encode_indices(indices, shapes), shapes), indices)


SECTION = encode_indices(INDICES, [block.shape for block in BLOCKS])
some_shapes = st.lists(
    st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4
)


def message(positions, shapes, *, most=None, codec="float32", size=None) -> tuple[bytes, Expected]:
    size = sum(map(math.prod, shapes)) if size is None else size
    blocks = [Block(parameter=str(i), part="dense", shape=shape) for i, shape in enumerate(shapes)]
    about = {
        "size": size,
        "round": 3,
        "digest": bytes(32),
        "codec": codec,
        "index_mode": "chosen",
        "blocks": blocks,
    }
    about["dither"] = Dither(seed=0, client=1, noise_std=1.0)
    positions = torch.tensor(positions, dtype=torch.int64)
    values = torch.arange(1.0, len(positions) + 1)
    most = len(positions) if most is None else most
    return pack(values, positions, **about), Expected(
        **about, indices=torch.arange(size), most=most
    )


@pytest.mark.slow
@given(shapes=some_shapes, data=st.data(), codec=st.sampled_from(CODECS))
@settings(max_examples=150)
def test_any_set_of_at_most_k_arrives_at_its_place(shapes, data, codec):
    size = sum(map(math.prod, shapes))
    positions = sorted(data.draw(st.sets(st.integers(0, size - 1), max_size=size)))
    packed, expected = message(
        positions, shapes, codec=codec, most=data.draw(st.integers(len(positions), size))
    )
    assert len(packed) <= longest(expected, section_bound(shapes, expected.limit))
    got = unpack(packed, expected)
    assert got.shape == (size,)
    if codec == "float32":
        wanted = torch.zeros(size)
        wanted[positions] = torch.arange(1.0, len(positions) + 1)
        assert torch.equal(got, wanted)
    elsewhere = torch.ones(size, dtype=torch.bool)
    elsewhere[positions] = False
    assert not got[elsewhere].any()


@pytest.mark.slow
@given(shapes=some_shapes, data=st.data())
@settings(max_examples=150)
def test_no_section_is_longer_than_its_bound(shapes, data):
    size = sum(map(math.prod, shapes))
    positions = torch.tensor(
        sorted(data.draw(st.sets(st.integers(0, size - 1)))), dtype=torch.int64
    )
    section = encode_indices(positions, shapes)
    assert (
        len(section)
        <= section_bound(shapes, len(positions))
        <= sum(1 + (math.prod(s) + 7) // 8 for s in shapes)
    )
    by_hand = [
        sum(a <= p < b for p in positions.tolist()) for a, b in itertools.pairwise(starts(shapes))
    ]
    assert counts_within(positions, shapes) == by_hand


def starts(shapes) -> list[int]:
    return list(itertools.accumulate((math.prod(shape) for shape in shapes), initial=0))


def test_golden_bytes():
    """Positions 2 and 38 of 40 and 1 of 300 as gaps, then three values; k and d stand in the
    checksum only.
    """
    packed, expected = message([2, 38, 41], [(40,), (300,)])
    head = b"FLSG\x02\x01\x03\x00" + bytes([3, 0, 0, 0]) + bytes(16)
    section = bytes.fromhex("02020223" + "020101")
    body = head + struct.pack("<I", 7) + section + struct.pack("<3f", 1, 2, 3)
    seal = hashlib.sha256(struct.pack("<QQ32s", 340, 340, bytes(32)) + b"(0, 1)" + body).digest()[
        :16
    ]
    assert packed == body + seal
    assert unpack(packed, expected).nonzero().flatten().tolist() == [2, 38, 41]


def forged(
    section: bytes, codec="float32", values=bytes(48), length=None
) -> tuple[bytes, Expected]:
    packed, expected = compact(codec, "chosen")
    body = struct.pack("<I", len(section) if length is None else length) + section + values
    return resealed(packed[:28] + body, expected), expected


@pytest.mark.parametrize(
    ("section", "why"),
    [
        (bytes.fromhex("0000000200"), "more positions than were agreed on: 18 in a block, 3 left"),
        # two rows as gaps, and as bits
        (b"\x05\x02\x01\x02" + SECTION[2:], "not in their cheapest form"),
        # an empty block as gaps, and as bitmap
        (SECTION[:-2] + b"\x02\x00", "cheapest form|a section of"),
        (SECTION + b"\x00", "bytes after the last block|a section of"),
        (SECTION[:-1], "cut short|does not fit"),
        (b"\xff" * 10, "unknown form"),
        (b"", "cut short"),
    ],
)
def test_other_sections_are_refused(section, why):
    packed, expected = forged(section)
    with pytest.raises(PayloadError, match=why):
        unpack(packed, expected)


@pytest.mark.parametrize("form", ["00", "05020001", "06020001", "0302" + "c0", "0400"])
def test_more_positions_than_agreed_allocate_nothing(form):
    """Everything, or whole rows and columns, of a block of ten million: refused before it is
    written out.
    """
    size, shape = 10_000_000, (10_000, 1_000)
    _, expected = message([1, 2, 3], [shape], most=3)
    section = bytes.fromhex(form)
    body = (
        b"FLSG\x02\x01\x03\x00"
        + bytes([3, 0, 0, 0])
        + bytes(16)
        + struct.pack("<I", len(section))
        + section
    )
    tracemalloc.start()
    with pytest.raises(PayloadError, match="payload indices"):
        unpack(resealed(body, expected), expected)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 1_000_000 > 10 * peak


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "noise-floor"])
def test_values_must_be_as_many_as_positions(codec):
    packed, expected = compact(codec, "chosen")
    for body in (packed[28:-17], packed[28:-16] + b"\0"):
        with pytest.raises(PayloadError, match="payload length"):
            unpack(resealed(packed[:28] + body, expected), expected)


def test_one_position_more_than_agreed():
    packed, expected = compact("float32", "chosen")
    unpack(packed, replace(expected, most=12))
    with pytest.raises(PayloadError, match="more positions than were agreed on"):
        unpack(packed, replace(expected, most=11))


@pytest.mark.parametrize("mode", ["derived", "explicit"])
def test_a_mode_is_not_taken_for_another(mode):
    """What a client chose is no mask of the round, and a mask is no choice."""
    packed, expected = compact("int8", "chosen")
    with pytest.raises(PayloadError, match=r"index mode: expected [01], got 3"):
        unpack(packed, compact("int8", mode)[1])
    with pytest.raises(PayloadError, match="index mode: expected 3, got"):
        unpack(compact("int8", mode)[0], expected)


def test_positions_that_do_not_ascend_are_not_sent():
    for bad in ([1, 1], [2, 1], [0, 40], [-1, 3]):
        with pytest.raises(PayloadError, match="indices"):
            message(bad, [(40,)])
