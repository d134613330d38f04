"""One flat (index, value) message: header, indices, values, digest. Two layouts, told apart by the version.

Version 1, of fixed length: float values in a frame that both sides know.

    offset  size  field
    0       4     magic "FLSG"
    4       1     format version 1
    5       1     value type: 1 float32, 2 float16, 3 bfloat16
    6       1     index mode: 0 derived (none sent: both sides know the frame)
    7       1     zero
    8       8     round
    16      8     coordinates before the mask (d)
    24      8     values sent (k)
    32      32    digest of the frame (block shapes, kept positions, bits of L and R)
    64      w k   values
    end-16  16    SHA-256 of everything before, cut to 16 bytes: catches damage, authenticates nobody

Version 2, where indices are sent or values take no fixed number of bytes:

    0       4     magic "FLSG"
    4       1     format version 2
    5       1     value type: as above, 4 noise-floor, 5 int8 (quantize.py), 6 sign (sign_code.py)
    6       1     index mode: 0 derived, 1 explicit (index_code.py), 2 the indices of an earlier message, 3 chosen by
                  the sender (coded as explicit ones)
    7       1     zero
    8       4     round
    12      16    first half of the frame's digest
    28      4 n   length of the index section and the section, in modes 1, 3; 8 bytes of its SHA-256 in mode 2
    ...           values
    end-16  16    SHA-256 of d, k (d in mode 3), the whole frame digest, public seed, client and everything before, cut

All numbers are little-endian. ``unpack`` trusts no byte: every field is compared with what the receiver expects before
anything is allocated, no message may be longer than the longest honest one, and what is allocated follows from the
receiver's own frame.
"""

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedlsg.frame import Block
from fedlsg.payload.chosen_indices import check_positions
from fedlsg.payload.indices import (
    DIGEST_BYTES,
    Shape,
    counts_within,
    digest_of,
    encode_indices,
    read_chosen,
    section_bound,
)
from fedlsg.payload.quantization import Dither
from fedlsg.payload.values import DTYPES, Codec, PayloadError, decode_values, encode_values, norm_of

IndexMode = Literal["derived", "explicit", "chosen"]

HEADER = struct.Struct("<4sBBBBQQQ32s")
COMPACT = struct.Struct("<4sBBBBI16s")
CHECKSUM_BYTES = 16
MAGIC, VERSION, COMPACT_VERSION = b"FLSG", 1, 2
DERIVED, EXPLICIT, REPEATED, CHOSEN = 0, 1, 2, 3
CODES: dict[Codec, int] = {"float32": 1, "float16": 2, "bfloat16": 3, "noise-floor": 4, "int8": 5, "sign": 6}
MODES: dict[IndexMode, tuple[int, ...]] = {"derived": (DERIVED,), "explicit": (EXPLICIT, REPEATED), "chosen": (CHOSEN,)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Expected:
    """What a receiver knows before a payload arrives. ``max_norm`` bounds the L2 norm of the values.

    ``blocks`` are those of the frame (one block of all ``size`` coordinates where None); ``dither`` is needed by the
    codecs that quantise. ``most``: positions that a sender may choose among all ``size``, in index mode chosen.
    """

    round: int
    codec: Codec
    index_mode: IndexMode
    size: int
    indices: Int[Tensor, " kept"]
    digest: bytes
    max_norm: float = float("inf")
    blocks: Sequence[Block] | None = None
    dither: Dither | None = None
    most: int | None = None

    @property
    def limit(self) -> int:
        """Values of a payload at most."""
        return len(self.indices) if self.most is None else self.most

    @property
    def shapes(self) -> list[Shape]:
        """Shapes of the blocks."""
        return _shapes(self.blocks, self.size)

    @property
    def counts(self) -> list[int]:
        """Values of each block."""
        return _counts(self.blocks, self.indices)


def payload_bytes(count: int, codec: Codec, index_mode: IndexMode = "derived") -> int:
    """Length of a version 1 payload of ``count`` values; the length of others depends on what is in them (KeyError)."""
    if index_mode != "derived":
        raise KeyError(f"a payload with {index_mode} indices has no fixed length")
    return HEADER.size + CHECKSUM_BYTES + count * DTYPES[codec].itemsize


def pack(
    values: Float[Tensor, " kept"],
    indices: Int[Tensor, " kept"],
    *,
    size: int,
    round: int,
    digest: bytes,
    codec: Codec = "float32",
    index_mode: IndexMode = "derived",
    blocks: Sequence[Block] | None = None,
    dither: Dither | None = None,
    earlier: bytes | None = None,
) -> bytes:
    """Serialise kept values and their ascending positions in a flat vector of ``size`` coordinates.

    Every codec but float32 rounds the (already noised) values: post-processing, epsilon is untouched. Explicit indices
    that the payload ``earlier`` of the same client held, too, are not sent again; chosen ones always are.
    Raises PayloadError for values that are not finite in the codec's range, or indices that do not fit.
    """
    check_codec(codec, index_mode)
    check_positions(values, indices, size)
    compact = codec not in DTYPES or index_mode != "derived"
    if len(digest) != 32 or not 0 <= round < 2 ** (32 if compact else 63):
        raise PayloadError(f"expected a digest of 32 bytes and 0 <= {round=} < 2^63, got {len(digest)} bytes")
    values = values.detach().cpu().float().contiguous()
    if not compact:
        header = HEADER.pack(MAGIC, VERSION, CODES[codec], DERIVED, 0, round, size, len(values), digest)
        body = encode_values(values, [len(values)], codec, round, dither)  # the values' own memory, copied once below
        sha = hashlib.sha256(header)
        sha.update(body)
        return b"".join((header, body, sha.digest()[:CHECKSUM_BYTES]))
    shapes, counts, total, mode, section = _shapes(blocks, size), _counts(blocks, indices), len(values), DERIVED, b""
    if index_mode != "derived":
        whole = encode_indices(indices, shapes)
        mode, section = EXPLICIT, struct.pack("<I", len(whole)) + whole
        if index_mode == "chosen":
            mode, counts, total = CHOSEN, counts_within(indices, shapes), size
        elif earlier is not None and indices_held(earlier) == digest_of(whole):
            mode, section = REPEATED, digest_of(whole)
    header = COMPACT.pack(MAGIC, COMPACT_VERSION, CODES[codec], mode, 0, round, digest[:16])
    message = header + section + encode_values(values, counts, codec, round, dither)
    return message + _seal(message, size, total, digest, dither)


def unpack(message: bytes, expected: Expected) -> Float[Tensor, " kept"]:
    """The float32 values of a payload that is exactly what ``expected`` describes.

    Where the sender chooses positions: values of all ``size`` coordinates, 0 where it sent none.
    Raises PayloadError naming the first field that differs: length, magic, version, codec, index mode, round, size,
    count, frame digest, checksum, indices, grid step, malformed or non-finite values, norm. (Version 2 holds no size
    and no count: they are under its checksum.)
    """
    if expected.codec not in DTYPES or expected.index_mode != "derived":
        values = _unpack_compact(message, expected)
    else:
        values = _unpack_fixed(message, expected)
    norm = norm_of(values)
    if not math.isfinite(norm) and not bool(values.isfinite().all()):
        raise PayloadError("payload values: not finite")
    bound = expected.max_norm + rounding_bound(expected)
    if norm > bound:
        raise PayloadError(f"payload values: norm {norm:.4g} exceeds the bound {bound:.4g}")
    return values


def rounding_bound(expected: Expected) -> float:
    """What quantisation may add to the norm: half a grid step a value; for int8, 2 % of the bound."""
    if expected.codec == "noise-floor" and expected.dither is not None:
        return expected.dither.width / 2 * math.sqrt(expected.limit)
    return 0.02 * expected.max_norm if expected.codec == "int8" else 0.0


def _unpack_fixed(message: bytes, expected: Expected) -> Tensor:
    count = len(expected.indices)
    length = payload_bytes(count, expected.codec)
    if len(message) != length:
        raise PayloadError(f"payload length: expected {length} bytes, got {len(message)}")
    wanted = (MAGIC, VERSION, CODES[expected.codec], DERIVED, 0, expected.round, expected.size, count, expected.digest)
    _check_header(HEADER.unpack_from(message), wanted)
    bytes_ = memoryview(message)  # a slice of it is no copy
    if hashlib.sha256(bytes_[:-CHECKSUM_BYTES]).digest()[:CHECKSUM_BYTES] != message[-CHECKSUM_BYTES:]:
        raise PayloadError("payload checksum: the bytes were damaged")
    return _values(bytes_[HEADER.size : -CHECKSUM_BYTES], expected, expected.counts)


def _unpack_compact(message: bytes, expected: Expected) -> Tensor:
    if expected.index_mode == "chosen":
        return _chosen(_opened(message, expected, section_bound(expected.shapes, expected.limit))[1], expected)
    section = encode_indices(expected.indices, expected.shapes) if expected.index_mode == "explicit" else b""
    mode, body = _opened(message, expected, len(section))
    held = {DERIVED: b"", EXPLICIT: struct.pack("<I", len(section)) + section, REPEATED: digest_of(section)}[mode]
    if not body.startswith(held):
        raise PayloadError("payload indices: they differ from the mask of this round")
    return _values(body[len(held) :], expected, expected.counts)


def _opened(message: bytes, expected: Expected, section: int) -> tuple[int, bytes]:
    """Index mode and body of a message whose length, header and checksum are right."""
    least, most = COMPACT.size + CHECKSUM_BYTES, longest(expected, section)
    if not least <= len(message) <= most:
        raise PayloadError(f"payload length: expected {least} to {most} bytes, got {len(message)}")
    fields = COMPACT.unpack_from(message)
    modes = MODES[expected.index_mode]
    mode = fields[3] if fields[3] in modes else modes[0]
    code = CODES[expected.codec]
    _check_header(fields, (MAGIC, COMPACT_VERSION, code, mode, 0, expected.round, expected.digest[:16]))
    count = expected.size if mode == CHOSEN else len(expected.indices)
    if (
        _seal(message[:-CHECKSUM_BYTES], expected.size, count, expected.digest, expected.dither)
        != message[-CHECKSUM_BYTES:]
    ):
        raise PayloadError("payload checksum: the bytes were damaged, or made by another client or in another frame")
    return mode, message[COMPACT.size : -CHECKSUM_BYTES]


def _chosen(body: bytes, expected: Expected) -> Tensor:
    """Values where the sender chose to send, 0 elsewhere."""
    try:
        positions, rest = read_chosen(body, expected.shapes, expected.limit)
    except ValueError as error:
        raise PayloadError(str(error)) from None
    values = _values(rest, expected, counts_within(positions, expected.shapes))
    return torch.zeros(expected.size).index_copy_(0, positions, values)


def _values(body: bytes | memoryview, expected: Expected, counts: Sequence[int]) -> Tensor:
    e = expected
    return decode_values(body, counts, e.codec, e.round, e.dither, max_norm=e.max_norm)


def longest(expected: Expected, section: int) -> int:
    """Bytes that no honest payload exceeds, whatever its values: 16 a value, 4 a block, header and indices."""
    blocks = 1 if expected.blocks is None else len(expected.blocks)
    return COMPACT.size + CHECKSUM_BYTES + 4 + section + 4 * blocks + 32 + 16 * expected.limit


def indices_held(message: bytes) -> bytes | None:
    """Digest of the index section of a payload of one's own, None where it has none."""
    if len(message) < COMPACT.size + CHECKSUM_BYTES or message[4] != COMPACT_VERSION:
        return None
    place = COMPACT.size
    if message[6] == REPEATED:
        return message[place : place + DIGEST_BYTES]
    if message[6] != EXPLICIT:
        return None
    (length,) = struct.unpack_from("<I", message, place)
    return digest_of(message[place + 4 : place + 4 + length])


def _shapes(blocks: Sequence[Block] | None, size: int) -> list[Shape]:
    return [(size,)] if blocks is None else [block.shape for block in blocks]


def _counts(blocks: Sequence[Block] | None, indices: Tensor) -> list[int]:
    return [len(indices)] if blocks is None else [block.kept for block in blocks]


def _seal(message: bytes, size: int, count: int, digest: bytes, dither: Dither | None) -> bytes:
    """Checksum over the message and what both sides know without it."""
    who = (-1, -1) if dither is None else (dither.seed, dither.client)
    sha = hashlib.sha256(struct.pack("<QQ32s", size, count, digest) + repr(who).encode())
    sha.update(message)
    return sha.digest()[:CHECKSUM_BYTES]


NAMES = ("magic", "version", "codec", "index mode", "reserved byte", "round", "size", "count", "frame digest")
COMPACT_NAMES = (*NAMES[:6], "frame digest")


def _check_header(fields: tuple[bytes | int, ...], wanted: tuple[bytes | int, ...]) -> None:
    names = NAMES if len(wanted) == len(NAMES) else COMPACT_NAMES
    for name, got, want in zip(names, fields, wanted, strict=True):
        if got != want:
            raise PayloadError(f"payload {name}: expected {_show(want)}, got {_show(got)}")


def check_codec(codec: str, index_mode: str) -> None:
    """Raise ValueError for an unknown codec or index mode."""
    if codec not in CODES:
        raise ValueError(f"expected codec in {tuple(CODES)}, got {codec!r}")
    if index_mode not in get_args(IndexMode):
        raise ValueError(f"expected index mode in {get_args(IndexMode)}, got {index_mode!r}")


def _show(field: object) -> str:
    return field.hex()[:16] if isinstance(field, bytes) else str(field)
