"""One message: round trips, a layout written out by hand, and what the packer refuses."""

import hashlib

import pytest
import torch
from hypothesis import given

from fedlsg.payload import PayloadError, find_codec
from fedlsg.payload.layout import payload_bytes
from fedlsg.payload.message import pack, unpack
from tests.fedlsg.support.payload_oracle import DIGEST, DTYPES, codecs, decode_by_hand, finite, message, modes


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
