"""Where the bytes of a payload are: header, indices, values, checksum. Two layouts, distinguished by the version.

Version 1, of fixed size: values of one size each, in a frame that both sides know.

    offset  size  field
    0       4     magic "FLSG"
    4       1     format version 1
    5       1     value type: the codec's wire id
    6       1     index mode: 0 derived (none sent: both sides know the frame)
    7       1     zero
    8       8     round
    16      8     coordinates before the mask (d)
    24      8     values sent (k)
    32      32    digest of the frame (block shapes, kept positions, bits of L and R)
    64      w k   values
    end-16  16    SHA-256 of everything before, cut to 16 bytes: detects damage, authenticates nobody

Version 2, where indices are sent or values take no fixed number of bytes:

    0       4     magic "FLSG"
    4       1     format version 2
    5       1     value type: the codec's wire id
    6       1     index mode: 0 derived, 1 explicit (see ``encode_indices``), 2 the indices of an earlier message,
                  3 chosen by the sender (encoded like explicit ones)
    7       1     zero
    8       4     round
    12      16    first half of the frame's digest
    28      4 n   size of the index section and the section, in modes 1, 3; 8 bytes of its SHA-256 in mode 2
    ...           values
    end-16  16    SHA-256 of d, k (d in mode 3), the whole frame digest, public seed, client and everything before, cut

All numbers are little-endian.

Which codecs suit a method, and which runs keep the memory of error feedback (see ``Compression``).
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Literal

from jaxtyping import Int
from torch import Tensor

from fedlsg.method import Method
from fedlsg.payload.codecs import Codec, PayloadError, all_codecs, find_codec
from fedlsg.payload.indices import DIGEST_BYTES, Shape, digest_of, read_chosen
from fedlsg.payload.values import Dither
from fedlsg.training import check_memory

IndexMode = Literal["derived", "explicit", "chosen"]

HEADER = struct.Struct("<4sBBBBQQQ32s")
COMPACT = struct.Struct("<4sBBBBI16s")
LENGTH = struct.Struct("<I")
CHECKSUM_BYTES = 16
MAGIC, VERSION, COMPACT_VERSION = b"FLSG", 1, 2
DERIVED, EXPLICIT, REPEATED, CHOSEN = 0, 1, 2, 3
MODES: dict[IndexMode, tuple[int, ...]] = {"derived": (DERIVED,), "explicit": (EXPLICIT, REPEATED), "chosen": (CHOSEN,)}

NAMES = ("magic", "version", "codec", "index mode", "reserved byte", "round", "size", "count", "frame digest")
COMPACT_NAMES = (*NAMES[:6], "frame digest")


def check_header(fields: tuple[bytes | int, ...], wanted: tuple[bytes | int, ...]) -> None:
    """Raise PayloadError naming the first field of either layout that is not the wanted one."""
    names = NAMES if len(wanted) == len(NAMES) else COMPACT_NAMES
    for name, got, want in zip(names, fields, wanted, strict=True):
        if got != want:
            raise PayloadError(f"payload {name}: expected {_show(want)}, got {_show(got)}")


def payload_bytes(count: int, codec: Codec | str) -> int:
    """Size of a version 1 payload of ``count`` values.

    Raises ValueError for a codec whose payloads have no fixed size.
    """
    codec = find_codec(codec)
    if codec.bytes_each is None:
        raise ValueError(f"a payload of codec {codec.name!r} has no fixed size")
    return HEADER.size + CHECKSUM_BYTES + count * codec.bytes_each


def checksum(*parts: bytes | memoryview) -> bytes:
    """Checksum of version 1 over the bytes of ``parts``, one after the other."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    return sha.digest()[:CHECKSUM_BYTES]


def seal(message: bytes, size: int, count: int, digest: bytes, dither: Dither | None) -> bytes:
    """Checksum of version 2, over the message and what both sides know without it."""
    who = (-1, -1) if dither is None else (dither.seed, dither.client)
    return checksum(struct.pack("<QQ32s", size, count, digest) + repr(who).encode(), message)


def value_bytes(message: bytes) -> int:
    """Bytes of the values in a payload that ``unpack`` has accepted: all but header, indices and checksum.

    Never raises: any other message gives some number from 0 to its size, one too short to be a payload 0.
    """
    if len(message) < COMPACT.size + CHECKSUM_BYTES:
        return 0
    start = COMPACT.size if message[4] == COMPACT_VERSION else HEADER.size
    if start == COMPACT.size and message[6] in (EXPLICIT, CHOSEN):
        start += LENGTH.size + LENGTH.unpack_from(message, start)[0]  # 16 bytes of checksum follow: enough to read it
    elif start == COMPACT.size and message[6] != DERIVED:
        start += DIGEST_BYTES
    return max(0, len(message) - start - CHECKSUM_BYTES)


def chosen_positions(message: bytes, shapes: Sequence[Shape], most: int) -> Int[Tensor, " sent"]:
    """The positions that the sender of a payload chose, of one that ``unpack`` has accepted in index mode chosen."""
    return read_chosen(message[COMPACT.size : -CHECKSUM_BYTES], shapes, most)[0]


def indices_held(message: bytes) -> bytes | None:
    """Digest of the index section of one's own payload, None if it has none."""
    if len(message) < COMPACT.size + CHECKSUM_BYTES or message[4] != COMPACT_VERSION:
        return None
    place = COMPACT.size
    if message[6] == REPEATED:
        return message[place : place + DIGEST_BYTES]
    if message[6] != EXPLICIT:
        return None
    (length,) = LENGTH.unpack_from(message, place)
    return digest_of(message[place + LENGTH.size : place + LENGTH.size + length])


def _show(field: object) -> str:
    return field.hex()[:16] if isinstance(field, bytes) else str(field)


def keeps_memory(method: Method, codec: Codec) -> bool:
    """Whether clients remember what they left out: by recipe, or because the codec needs it without noise."""
    return method.compression.error_feedback or (codec.needs_feedback and method.mechanism.of_kind.plain)


def check_fits(codec: Codec, method: Method) -> None:
    """Raise ValueError for a codec that does not suit the method's values; the message lists the codecs that do."""
    reason = misfit(codec, method)
    if reason:
        others = [repr(other.name) for other in all_codecs().values() if not misfit(other, method)]
        raise ValueError(f"{reason}; codecs that fit: {', '.join(others)}")


def misfit(codec: Codec, method: Method) -> str:
    """Why a codec does not suit a method; empty if it does."""
    try:
        codec.check(method)
        if keeps_memory(method, codec):
            check_memory(method.name, method.mechanism, method.carrier, method.mask, method.prune)
    except ValueError as error:
        return str(error)
    return ""
