"""Messages damaged at random, or forged by someone who can seal them: a PayloadError or bounded
values, and no memory.

2,000 messages in the plain tests, 100,000 in the slow ones.
"""

import random
import struct
import tracemalloc

import pytest
import torch

from fedlsg.payload import PayloadError, unpack
from tests.fedlsg.support.compact_oracle import CODECS, MODES, MOST, SIZE, compact, resealed

KINDS = [(codec, mode) for codec in CODECS for mode in MODES]
BOUND = 40.0


def damaged(message: bytes, rng: random.Random, other: bytes) -> bytes:
    """One of many ways to spoil bytes."""
    data = bytearray(message)
    place = rng.randrange(len(data))
    match rng.randrange(9):
        case 0:
            return bytes(data[:place])
        case 1:
            return bytes(data) + rng.randbytes(rng.randrange(1, 60))
        case 2:
            for _ in range(rng.randrange(1, 9)):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case 3:
            data[place : place + rng.randrange(1, 12)] = rng.randbytes(rng.randrange(0, 12))
        case 4:  # a length or a count that lies
            data[place : place + 4] = struct.pack(
                "<I", rng.choice([0, 1, 2**31 - 1, 2**32 - 1, rng.getrandbits(32)])
            )
        case 5:
            data[place:] = rng.randbytes(len(data) - place)
        case 6:  # LEB128 without an end, words that are all ones or zeros
            data[place : place + 16] = rng.choice([b"\xff", b"\x80", b"\x00"]) * 16
        case 7:
            data = bytearray(message[:place] + other[min(place, len(other)) :])
        case 8:
            return rng.randbytes(rng.randrange(200))
    return bytes(data)


def fuzz(count: int, seed: int) -> tuple[int, int]:
    """How many of ``count`` spoilt messages were accepted and refused. Anything but a PayloadError
    gets through.
    """
    rng = random.Random(seed)
    subjects = [compact(codec, mode, max_norm=BOUND) for codec, mode in KINDS]
    accepted = refused = 0
    for _ in range(count):
        message, expected = rng.choice(subjects)
        spoilt = damaged(message, rng, rng.choice(subjects)[0])
        # sealed anew by a client that lies; half of them keep the header
        if rng.random() < 0.7 and len(spoilt) > 16:
            head = message[:28] if rng.random() < 0.8 else spoilt[:28]
            spoilt = resealed(head + spoilt[28:-16], expected)
        try:
            values = unpack(spoilt, expected)
        except PayloadError:
            refused += 1
            continue
        accepted += 1
        if expected.index_mode == "chosen":
            assert values.shape == (SIZE,)
            assert values.count_nonzero() <= MOST
        else:
            assert values.shape == (12,)
        assert values.dtype == torch.float32
        assert values.isfinite().all()
        assert float(values.double().norm()) <= 1.02 * BOUND + 0.25 * MOST**0.5
    return accepted, refused


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "most_bytes"),
    [
        (2_000, 3_000_000),
        # the cached tables of every scale that a liar named, 8,191 symbols each at most
        pytest.param(100_000, 40_000_000, marks=pytest.mark.slow),
    ],
)
def test_spoilt_messages(count, most_bytes):
    fuzz(50, seed=0)  # tables and imports
    tracemalloc.start()
    accepted, refused = fuzz(count, seed=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < most_bytes
    assert refused > 0.6 * count
    assert accepted > 0.01 * count  # values that a liar may choose: the check is not vacuous
    assert accepted + refused == count
