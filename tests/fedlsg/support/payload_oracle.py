"""Payloads of fixed length to damage: built by the shipped packer, sealed anew after a forgery, and
read by hand.
"""

import hashlib
import struct
from dataclasses import replace

import torch
from hypothesis import strategies as st

from fedlsg.payload.layout import CHECKSUM_BYTES, HEADER
from fedlsg.payload.message import Expected, pack

DIGEST = bytes(range(32))
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
CODECS, MODES = sorted(DTYPES), ["derived"]
FIELDS = [
    "magic",
    "version",
    "codec",
    "index mode",
    "reserved byte",
    "round",
    "size",
    "count",
    "frame digest",
]
LAYOUT = "<4sBBBBQQQ32s"

codecs, modes = st.sampled_from(CODECS), st.sampled_from(MODES)
finite = st.lists(st.floats(-60000, 60000, width=32), max_size=20)


def message(
    values, codec="float32", mode="derived", size=None, **changes
) -> tuple[bytes, Expected]:
    """A payload of ``values`` at every second position, and what its receiver expects."""
    values = torch.as_tensor(values, dtype=torch.float32)
    indices = torch.arange(len(values)) * 2
    size = 2 * len(values) + 3 if size is None else size
    packed = pack(values, indices, size=size, round=7, digest=DIGEST, codec=codec, index_mode=mode)
    expected = Expected(
        round=7, codec=codec, index_mode=mode, size=size, indices=indices, digest=DIGEST
    )
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
    start = 64
    if codec == "bfloat16":
        words = struct.unpack_from(f"<{count}H", packed, start)
        return [struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words]
    return list(struct.unpack_from(f"<{count}{'f' if codec == 'float32' else 'e'}", packed, start))
