"""One flat (index, value) message: header, indices, values, digest.

    offset  size  field
    0       4     magic "FLSG"
    4       1     format version
    5       1     value type: 1 float32, 2 float16, 3 bfloat16
    6       1     index mode: 0 derived (none sent: both sides know the frame), 1 explicit (uint32, ascending)
    7       1     zero
    8       8     round
    16      8     coordinates before the mask (d)
    24      8     values sent (k)
    32      32    digest of the frame (block shapes, kept positions, bits of L and R)
    64      4 k   indices, when explicit
    ...     w k   values
    end-16  16    SHA-256 of everything before, cut to 16 bytes: catches damage, authenticates nobody

All numbers are little-endian. ``unpack`` trusts no byte: every field is compared with what the receiver expects before
anything is allocated.
"""

import hashlib
import struct
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

Codec = Literal["float32", "float16", "bfloat16"]
IndexMode = Literal["derived", "explicit"]

HEADER = struct.Struct("<4sBBBBQQQ32s")
CHECKSUM_BYTES = 16
MAGIC, VERSION = b"FLSG", 1
DTYPES: dict[Codec, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
CODES: dict[Codec, int] = {"float32": 1, "float16": 2, "bfloat16": 3}


class PayloadError(ValueError):
    """A payload that is not what the receiver expects; the text says in which field."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Expected:
    """What a receiver knows before a payload arrives. ``max_norm`` bounds the L2 norm of the values."""

    round: int
    codec: Codec
    index_mode: IndexMode
    size: int
    indices: Int[Tensor, " kept"]
    digest: bytes
    max_norm: float = float("inf")


def payload_bytes(count: int, codec: Codec, index_mode: IndexMode) -> int:
    """Length of a payload of ``count`` values, header and indices included."""
    per_value = DTYPES[codec].itemsize + (4 if index_mode == "explicit" else 0)
    return HEADER.size + CHECKSUM_BYTES + count * per_value


def pack(
    values: Float[Tensor, " kept"],
    indices: Int[Tensor, " kept"],
    *,
    size: int,
    round: int,
    digest: bytes,
    codec: Codec = "float32",
    index_mode: IndexMode = "derived",
) -> bytes:
    """Serialise kept values and their ascending positions in a flat vector of ``size`` coordinates.

    float16 and bfloat16 round the (already noised) values: post-processing, epsilon is untouched.
    Raises PayloadError for values that are not finite in the codec's range, or indices that do not fit.
    """
    check_codec(codec, index_mode)
    if values.shape != indices.shape or values.ndim != 1:
        raise PayloadError(f"expected one value an index, got {tuple(values.shape)} and {tuple(indices.shape)}")
    if size > 2**32 or (len(indices) and not 0 <= int(indices[0]) <= int(indices[-1]) < size):
        raise PayloadError(f"indices do not fit into {size} coordinates")
    if len(indices) > 1 and not bool((indices[1:] > indices[:-1]).all()):
        raise PayloadError("indices must ascend without repeats")
    if len(digest) != 32 or not 0 <= round < 2**63:
        raise PayloadError(f"expected a digest of 32 bytes and 0 <= {round=} < 2^63, got {len(digest)} bytes")
    encoded = values.detach().cpu().to(DTYPES[codec]).contiguous()
    if not bool(encoded.isfinite().all()):
        raise PayloadError(f"values are not finite as {codec}; float32 and bfloat16 have the widest range")
    header = HEADER.pack(
        MAGIC, VERSION, CODES[codec], int(index_mode == "explicit"), 0, round, size, len(values), digest
    )
    body = indices.cpu().numpy().astype("<u4").tobytes() if index_mode == "explicit" else b""
    message = header + body + encoded.view(torch.uint8).numpy().tobytes()
    return message + hashlib.sha256(message).digest()[:CHECKSUM_BYTES]


def unpack(message: bytes, expected: Expected) -> Float[Tensor, " kept"]:
    """The float32 values of a payload that is exactly what ``expected`` describes.

    Raises PayloadError naming the first field that differs: length, magic, version, codec, index mode, round, size,
    count, frame digest, checksum, indices, non-finite values, norm.
    """
    count = len(expected.indices)
    length = payload_bytes(count, expected.codec, expected.index_mode)
    if len(message) != length:
        raise PayloadError(f"payload length: expected {length} bytes, got {len(message)}")
    _check_header(HEADER.unpack_from(message), expected, count)
    if hashlib.sha256(message[:-CHECKSUM_BYTES]).digest()[:CHECKSUM_BYTES] != message[-CHECKSUM_BYTES:]:
        raise PayloadError("payload checksum: the bytes were damaged")
    offset = HEADER.size
    if expected.index_mode == "explicit":
        indices = np.frombuffer(message, "<u4", count, offset).astype(np.int64)
        if not np.array_equal(indices, expected.indices.cpu().numpy()):
            raise PayloadError("payload indices: they differ from the mask of this round")
        offset += 4 * count
    raw = bytearray(message[offset:-CHECKSUM_BYTES])
    values = torch.frombuffer(raw, dtype=DTYPES[expected.codec]).float() if count else torch.zeros(0)
    if not bool(values.isfinite().all()):
        raise PayloadError("payload values: not finite")
    norm = float(torch.linalg.vector_norm(values, dtype=torch.float64))
    if norm > expected.max_norm:
        raise PayloadError(f"payload values: norm {norm:.4g} exceeds the bound {expected.max_norm:.4g}")
    return values


def _check_header(fields: tuple[bytes | int, ...], expected: Expected, count: int) -> None:
    names = (
        "magic",
        "version",
        "codec",
        "index mode",
        "reserved byte",
        "round",
        "size",
        "count",
        "frame digest",
    )
    wanted = (
        MAGIC,
        VERSION,
        CODES[expected.codec],
        int(expected.index_mode == "explicit"),
        0,
        expected.round,
        expected.size,
        count,
        expected.digest,
    )
    for name, got, want in zip(names, fields, wanted, strict=True):
        if got != want:
            raise PayloadError(f"payload {name}: expected {_show(want)}, got {_show(got)}")


def check_codec(codec: str, index_mode: str) -> None:
    """Raise ValueError for an unknown codec or index mode."""
    if codec not in DTYPES:
        raise ValueError(f"expected codec in {tuple(DTYPES)}, got {codec!r}")
    if index_mode not in get_args(IndexMode):
        raise ValueError(f"expected index mode in {get_args(IndexMode)}, got {index_mode!r}")


def _show(field: object) -> str:
    return field.hex()[:16] if isinstance(field, bytes) else str(field)
