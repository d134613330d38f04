"""Payloads of variable length to damage: built by the shipped packer, sealed anew after a
forgery.
"""

import hashlib
import struct
from dataclasses import replace

import torch

from fedlsg.frame import Block, Keep
from fedlsg.payload import Dither
from fedlsg.payload.layout import COMPACT
from fedlsg.payload.message import Expected, pack

DIGEST = bytes(range(32))
CODECS = ["float32", "float16", "bfloat16", "noise-floor", "int8", "sign"]
MODES = ["derived", "explicit", "chosen"]
FIELDS = ["magic", "version", "codec", "index mode", "reserved byte", "round", "frame digest"]
BLOCKS = (
    Block(parameter="a", part="L", shape=(6, 2), keep=Keep(axis=0, index=torch.tensor([1, 4]))),
    Block(parameter="a", part="R", shape=(2, 9), keep=Keep(index=torch.tensor([0, 3, 17]))),
    Block(parameter="b", part="dense", shape=(5,)),
    Block(
        parameter="c", part="dense", shape=(3,), keep=Keep(index=torch.zeros(0, dtype=torch.int64))
    ),
)
"""12 of 38 coordinates: two rows, single entries, everything, nothing."""

INDICES = torch.tensor([2, 3, 8, 9, 12, 15, 29, 30, 31, 32, 33, 34])
SIZE = 38
MOST = 15
"""Positions that a sender may choose, where it does."""


def compact(
    codec="noise-floor", mode="derived", scale=3.0, earlier=None, **changes
) -> tuple[bytes, Expected]:
    """A payload of twelve Gaussian values in ``BLOCKS``, and what its receiver expects."""
    values = scale * torch.randn(len(INDICES), generator=torch.Generator().manual_seed(4))
    about = {"round": 7, "size": SIZE, "digest": DIGEST, "codec": codec, "index_mode": mode}
    about |= {"blocks": BLOCKS, "dither": Dither(seed=11, client=3, noise_std=1.0)}
    packed = pack(values, INDICES, **about, earlier=earlier)
    known = (
        {"indices": torch.arange(SIZE), "most": MOST} if mode == "chosen" else {"indices": INDICES}
    )
    return packed, replace(Expected(**about, **known), **changes)


def resealed(body: bytes, expected: Expected) -> bytes:
    """The body with a right checksum: what a client that lies sends, not what a bad line makes."""
    count = expected.size if expected.index_mode == "chosen" else len(expected.indices)
    context = struct.pack("<QQ32s", expected.size, count, expected.digest)
    dither = expected.dither
    who = b"(-1, -1)" if dither is None else f"({dither.seed}, {dither.client})".encode()
    return body + hashlib.sha256(context + who + body).digest()[:16]


def with_field(packed: bytes, expected: Expected, field: str, value: object) -> bytes:
    """The payload with one header field changed and its checksum made right."""
    fields = list(struct.unpack_from("<4sBBBBI16s", packed))
    fields[FIELDS.index(field)] = value
    return resealed(struct.pack("<4sBBBBI16s", *fields) + packed[COMPACT.size : -16], expected)
