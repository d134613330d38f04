"""The two layouts of a payload's bytes, distinguished by the version: header, indices, values,
checksum.

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
    end-16  16    SHA-256 of everything before, cut to 16 bytes: detects damage, authenticates
            nobody

Version 2, where indices are sent or values take no fixed number of bytes:

    0       4     magic "FLSG"
    4       1     format version 2
    5       1     value type: the codec's wire id
    6       1     index mode: 0 derived, 1 explicit (see ``encode_indices``), 2 the indices of an
                  earlier message, 3 chosen by the sender (encoded like explicit ones)
    7       1     zero
    8       4     round
    12      16    first half of the frame's digest
    28      4 + n size n of the index section and the section, in modes 1, 3; 8 bytes of its
                  SHA-256 in mode 2
    ...           values
    end-16  16    SHA-256 of d, k (d in mode 3), the whole frame digest, public seed, client and
            everything before, cut

All numbers are little-endian. Indices: the cheapest of seven forms, chosen block by block, each
after one form byte.

    0 all                    nothing
    1 bitmap                 a bit a coordinate, the first in the byte's highest bit
    2 gaps                   LEB128 of the byte count, then LEB128 of position - previous position -
                             1
    3, 4 rows, columns       whole slices along axis 0 or 1 (units of dL, dR): a bit a unit
    5, 6 rows, columns       the same slices as gaps of units
A block that keeps nothing is an empty list of gaps. Ties go to the smaller form byte, so equal
masks make equal bytes: a receiver that knows the mask compares bytes and reads none of them.
"""

import hashlib
import itertools
import math
import struct
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from fedlsg.payload.codecs import Codec, PayloadError, find_codec
from fedlsg.payload.codecs.dither import Dither
from fedlsg.payload.codecs.entropy_coder import leb128, read_leb128

IndexMode = Literal["derived", "explicit", "chosen"]
"""Whether positions follow from the frame, are sent too and compared with it, or are the sender's
choice.
"""

ALL, BITMAP, GAPS, BITS_OF_UNITS, GAPS_OF_UNITS = 0, 1, 2, 3, 5
"""Form bytes of a block's indices; the last two are those of rows, columns have one more."""
DIGEST_BYTES = 8
"""Bytes of the digest of an index section in mode 2."""

Shape = tuple[int, ...]
"""The shape of a block."""

HEADER = struct.Struct("<4sBBBBQQQ32s")
"""The header of version 1."""
COMPACT = struct.Struct("<4sBBBBI16s")
"""The header of version 2."""
LENGTH = struct.Struct("<I")
"""The size of an index section."""
CHECKSUM_BYTES = 16
MAGIC, VERSION, COMPACT_VERSION = b"FLSG", 1, 2
DERIVED, EXPLICIT, REPEATED, CHOSEN = 0, 1, 2, 3
"""Index modes of the header: 2 is a form of explicit."""
MODES: dict[IndexMode, tuple[int, ...]] = {
    "derived": (DERIVED,),
    "explicit": (EXPLICIT, REPEATED),
    "chosen": (CHOSEN,),
}

NAMES = (
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
COMPACT_NAMES = (*NAMES[:6], "frame digest")


def check_header(fields: tuple[bytes | int, ...], wanted: tuple[bytes | int, ...]) -> None:
    """Raise PayloadError naming the first field of a header, of either layout, that is not the
    wanted one.
    """
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
    """Checksum of version 2, over the message and what both sides know without it.

    ``count``: k, or d in mode 3.
    """
    seed_and_client = (-1, -1) if dither is None else (dither.seed, dither.client)
    known = struct.pack("<QQ32s", size, count, digest) + repr(seed_and_client).encode()
    return checksum(known, message)


def value_bytes(message: bytes) -> int:
    """Bytes of the values in a payload that ``unpack`` has accepted.

    Never raises: any other message gives some number from 0 to its size.
    """
    if len(message) < COMPACT.size + CHECKSUM_BYTES:
        return 0
    start = COMPACT.size if message[4] == COMPACT_VERSION else HEADER.size
    if start == COMPACT.size and message[6] in (EXPLICIT, CHOSEN):
        # 16 bytes of checksum follow: enough to read it
        start += LENGTH.size + LENGTH.unpack_from(message, start)[0]
    elif start == COMPACT.size and message[6] != DERIVED:
        start += DIGEST_BYTES
    return max(0, len(message) - start - CHECKSUM_BYTES)


def chosen_positions(message: bytes, shapes: Sequence[Shape], most: int) -> Int[Tensor, " sent"]:
    """The positions in a payload that ``unpack`` has accepted in index mode chosen."""
    return read_chosen(message[COMPACT.size : -CHECKSUM_BYTES], shapes, most)[0]


def indices_held(message: bytes) -> bytes | None:
    """Digest of the index section of a payload that this process packed; None without one."""
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
    """A header field for a message: a number, or 16 hexadecimal digits."""
    return field.hex()[:16] if isinstance(field, bytes) else str(field)


def encode_indices(indices: Int[Tensor, " kept"], shapes: Sequence[Shape]) -> bytes:
    """Bytes of ascending flat positions in consecutive blocks of these ``shapes``."""
    flat, starts = indices.cpu().numpy(), _starts(shapes)
    pieces = np.split(flat, np.searchsorted(flat, starts[1:-1])) if shapes else []
    blocks = zip(pieces, starts, shapes, strict=False)
    return b"".join(_block(piece - start, shape) for piece, start, shape in blocks)


def _starts(shapes: Sequence[Shape]) -> list[int]:
    """The first flat position of each block, and the end of the last one."""
    return [0, *itertools.accumulate(math.prod(shape) for shape in shapes)]


def decode_indices(
    stream: bytes, shapes: Sequence[Shape], most: int | None = None
) -> Int[Tensor, " kept"]:
    """The positions that ``encode_indices`` wrote.

    ``most``: the most positions; None for all.
    Guarantee: whatever the bytes are, memory is in proportion to the shapes or, with ``most``, to
    ``most`` plus the stream's length.
    Raises ValueError for bytes that no encoder makes.
    """
    starts = _starts(shapes)
    left = starts[-1] if most is None else most
    place, positions = 0, [np.zeros(0, dtype=np.int64)]
    for start, shape in zip(starts, shapes, strict=False):
        kept, place = _read_block(stream, place, shape, left)
        left -= len(kept)
        positions.append(kept + start)
    if place != len(stream):
        raise ValueError("payload indices: bytes after the last block")
    return torch.from_numpy(np.concatenate(positions))


def section_bound(shapes: Sequence[Shape], most: int) -> int:
    """Largest size of ``encode_indices`` for ``most`` positions: all blocks as bitmaps, or as
    largest gaps.
    """
    sizes = [math.prod(shape) for shape in shapes]
    width = len(leb128(max([1, *sizes]) - 1))
    gaps = len(sizes) * (1 + len(leb128(most * width))) + most * width
    bitmaps = sum(1 + (size + 7) // 8 for size in sizes)
    return min(gaps, bitmaps)


def counts_within(positions: Int[Tensor, " kept"], shapes: Sequence[Shape]) -> list[int]:
    """How many ascending flat positions are in each of the blocks."""
    counts: list[int] = np.diff(np.searchsorted(positions.cpu().numpy(), _starts(shapes))).tolist()
    return counts


def read_chosen(
    body: bytes, shapes: Sequence[Shape], most: int
) -> tuple[Int[Tensor, " kept"], bytes]:
    """At most ``most`` positions that a sender chose, and the bytes after them.

    ``body`` starts with the size of the index section.
    Guarantee: no section is read that is longer than ``most`` positions need, and only the cheapest
    form of a set is accepted.
    Raises ValueError for bytes that no encoder makes.
    """
    longest = section_bound(shapes, most)
    start = LENGTH.size
    length = LENGTH.unpack_from(body)[0] if len(body) >= start else longest + 1
    if not length <= min(longest, len(body) - start):
        raise ValueError(
            f"payload indices: expected a section of {longest} bytes at most that the payload holds"
        )
    section = body[start : start + length]
    positions = decode_indices(section, shapes, most)
    if encode_indices(positions, shapes) != section:
        raise ValueError("payload indices: not in their cheapest form")
    return positions, body[start + length :]


def digest_of(section: bytes) -> bytes:
    """Eight bytes that replace indices that were sent before."""
    return hashlib.sha256(section).digest()[:DIGEST_BYTES]


def _block(kept: np.ndarray, shape: Shape) -> bytes:
    """The cheapest form of the kept positions of one block."""
    size = math.prod(shape)
    if len(kept) == size:
        return bytes([ALL])
    mask = np.zeros(size, dtype=bool)
    mask[kept] = True
    forms = [_bits(BITMAP, mask), _gaps(GAPS, kept)]
    for axis in (0, 1) if len(shape) > 1 else ():
        slices = np.moveaxis(mask.reshape(shape), axis, 0).reshape(shape[axis], -1)
        units = slices[:, 0]
        if (slices == units[:, None]).all():
            forms.append(_bits(BITS_OF_UNITS + axis, units))
            forms.append(_gaps(GAPS_OF_UNITS + axis, units.nonzero()[0]))
    return min(forms, key=lambda form: (len(form), form[0]))


def _bits(form: int, mask: np.ndarray) -> bytes:
    """A form byte and a bit for each entry."""
    return bytes([form]) + np.packbits(mask).tobytes()


def _gaps(form: int, ascending: np.ndarray) -> bytes:
    """A form byte and the gaps of ascending numbers."""
    gaps = np.diff(ascending, prepend=-1) - 1
    if len(gaps) and int(gaps.max()) >= 128:
        body = b"".join(leb128(int(gap)) for gap in gaps)
    else:  # LEB128 of a number below 128 is one byte
        body = gaps.astype(np.uint8).tobytes()
    return bytes([form]) + leb128(len(body)) + body


def _read_block(stream: bytes, place: int, shape: Shape, most: int) -> tuple[np.ndarray, int]:
    """At most ``most`` kept positions of one block, and the place after them."""
    if place >= len(stream):
        raise ValueError("payload indices: cut short")
    form, place = stream[place], place + 1
    if form == ALL:
        _check_count(math.prod(shape), most)
        return np.arange(math.prod(shape)), place
    if form in (BITMAP, GAPS):
        kept, place = _read_list(stream, place, math.prod(shape), gaps=form == GAPS)
        _check_count(len(kept), most)
        return kept, place
    axis = (form - BITS_OF_UNITS) % 2
    if form > GAPS_OF_UNITS + 1 or len(shape) < 2:
        raise ValueError(f"payload indices: unknown form {form} for a block of shape {shape}")
    units, place = _read_list(stream, place, shape[axis], gaps=form >= GAPS_OF_UNITS)
    _check_count(len(units) * (math.prod(shape) // shape[axis]), most)
    inner = math.prod(shape[axis + 1 :])
    outer = np.arange(math.prod(shape[:axis])) * (inner * shape[axis])
    positions = outer[:, None, None] + units[:, None] * inner + np.arange(inner)
    return positions.reshape(-1), place


def _check_count(count: int, most: int) -> None:
    """Raise ValueError for more positions than are allowed, before they are allocated."""
    if count > most:
        raise ValueError(
            f"payload indices: more positions than were agreed on: {count} in a block, {most} left"
        )


def _read_list(stream: bytes, place: int, size: int, *, gaps: bool) -> tuple[np.ndarray, int]:
    """Ascending numbers below ``size``, and the place after them."""
    if not gaps:
        end = place + (size + 7) // 8
        bits = np.unpackbits(np.frombuffer(stream[place:end], np.uint8))
        if end > len(stream) or bits[size:].any():
            raise ValueError("payload indices: a bitmap that does not fit its block")
        return bits[:size].nonzero()[0], end
    length, place = read_leb128(stream, place)
    end = place + length
    if end > len(stream):
        raise ValueError("payload indices: cut short")
    kept, last = [], -1
    while place < end:
        gap, place = read_leb128(stream, place)
        last += gap + 1
        if last >= size:
            raise ValueError(f"payload indices: a position beyond the {size} of its block")
        kept.append(last)
    if place != end:
        raise ValueError("payload indices: cut short")
    return np.array(kept, dtype=np.int64), end
