"""Which coordinates a message keeps, in bytes: the cheapest of six forms, chosen block by block.

Per block one form byte, then
    0 all                    nothing
    1 bitmap                 a bit a coordinate, the first in the byte's highest bit
    2 gaps                   LEB128 of the byte count, then LEB128 of position - previous position - 1
    3, 4 rows, columns       whole slices along axis 0 or 1 (units of dL, dR): a bit a unit
    5, 6 rows, columns       the same slices as gaps of units
A block that keeps nothing is an empty list of gaps. Ties go to the smaller form byte, so equal masks make equal bytes:
a receiver that knows the mask compares bytes and reads none of them.
"""

import hashlib
import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from fedlsg.payload.values import leb128, read_leb128

ALL, BITMAP, GAPS, BITS_OF_UNITS, GAPS_OF_UNITS = 0, 1, 2, 3, 5
DIGEST_BYTES = 8

Shape = tuple[int, ...]


def encode_indices(indices: Int[Tensor, " kept"], shapes: Sequence[Shape]) -> bytes:
    """Bytes of ascending flat positions in consecutive blocks of these ``shapes``."""
    flat = indices.cpu().numpy()
    ends = [0, *itertools.accumulate(math.prod(shape) for shape in shapes)]
    cuts = np.searchsorted(flat, ends)
    pieces = [
        _block(flat[a:b] - start, shape)
        for a, b, start, shape in zip(cuts[:-1], cuts[1:], ends[:-1], shapes, strict=True)
    ]
    return b"".join(pieces)


def decode_indices(stream: bytes, shapes: Sequence[Shape], most: int | None = None) -> Int[Tensor, " kept"]:
    """The positions that ``encode_indices`` wrote. Allocates in proportion to the shapes, whatever the bytes say.

    With ``most``: no more positions than that, and in proportion to them and to the stream.
    Raises ValueError for bytes that no encoder makes.
    """
    place, start, found = 0, 0, []
    left = sum(math.prod(shape) for shape in shapes) if most is None else most
    for shape in shapes:
        kept, place = _read_block(stream, place, shape, left)
        left -= len(kept)
        found.append(kept + start)
        start += math.prod(shape)
    if place != len(stream):
        raise ValueError("payload indices: bytes after the last block")
    return torch.from_numpy(np.concatenate([*found, np.zeros(0, dtype=np.int64)]))


def section_bound(shapes: Sequence[Shape], most: int) -> int:
    """Largest size of ``encode_indices`` for ``most`` positions: bitmaps, or gaps of the widest kind."""
    sizes = [math.prod(shape) for shape in shapes]
    width = len(leb128(max([1, *sizes]) - 1))
    gaps = len(sizes) * (1 + len(leb128(most * width))) + most * width
    return min(gaps, sum(1 + (size + 7) // 8 for size in sizes))


def counts_within(positions: Int[Tensor, " kept"], shapes: Sequence[Shape]) -> list[int]:
    """How many ascending flat positions are in each of the blocks."""
    ends = [0, *itertools.accumulate(math.prod(shape) for shape in shapes)]
    return [int(n) for n in np.diff(np.searchsorted(positions.cpu().numpy(), ends))]


def read_chosen(body: bytes, shapes: Sequence[Shape], most: int) -> tuple[Int[Tensor, " kept"], bytes]:
    """Positions that a sender chose, at most ``most``, from a section that starts with its size; and what follows it.

    Guarantee: nothing is read beyond the longest section of ``most`` positions, and each set has one form only.
    Raises ValueError for bytes that no encoder makes.
    """
    longest = section_bound(shapes, most)
    length = int.from_bytes(body[:4], "little") if len(body) >= 4 else longest + 1
    if not length <= min(longest, len(body) - 4):
        raise ValueError(f"payload indices: expected a section of {longest} bytes at most that the payload holds")
    section = body[4 : 4 + length]
    positions = decode_indices(section, shapes, most)
    if encode_indices(positions, shapes) != section:
        raise ValueError("payload indices: not in their cheapest form")
    return positions, body[4 + length :]


def digest_of(section: bytes) -> bytes:
    """Eight bytes that replace indices that were sent before."""
    return hashlib.sha256(section).digest()[:DIGEST_BYTES]


def _block(kept: np.ndarray, shape: Shape) -> bytes:
    size = math.prod(shape)
    if len(kept) == size:
        return bytes([ALL])
    mask = np.zeros(size, dtype=bool)
    mask[kept] = True
    forms = [bytes([BITMAP]) + np.packbits(mask).tobytes(), bytes([GAPS]) + _gaps(kept)]
    for axis in range(min(2, len(shape))) if len(shape) > 1 else ():
        slices = np.moveaxis(mask.reshape(shape), axis, 0).reshape(shape[axis], -1)
        units = slices[:, 0]
        if (slices == units[:, None]).all():
            forms.append(bytes([BITS_OF_UNITS + axis]) + np.packbits(units).tobytes())
            forms.append(bytes([GAPS_OF_UNITS + axis]) + _gaps(units.nonzero()[0]))
    return min(forms, key=lambda form: (len(form), form[0]))


def _gaps(ascending: np.ndarray) -> bytes:
    gaps = np.diff(ascending, prepend=-1) - 1
    if len(gaps) and int(gaps.max()) >= 128:
        body = b"".join(leb128(int(gap)) for gap in gaps)
    else:
        body = gaps.astype(np.uint8).tobytes()
    return leb128(len(body)) + body


def _read_block(stream: bytes, place: int, shape: Shape, most: int) -> tuple[np.ndarray, int]:
    if place >= len(stream):
        raise ValueError("payload indices: cut short")
    form, place = stream[place], place + 1
    if form == ALL:
        return np.arange(_few(math.prod(shape), most)), place
    if form in (BITMAP, GAPS):
        kept, place = _read_list(stream, place, math.prod(shape), gaps=form == GAPS)
        return kept[: _few(len(kept), most)], place
    axis = (form - BITS_OF_UNITS) % 2
    if form > GAPS_OF_UNITS + 1 or len(shape) < 2:
        raise ValueError(f"payload indices: unknown form {form} for a block of shape {shape}")
    units, place = _read_list(stream, place, shape[axis], gaps=form >= GAPS_OF_UNITS)
    _few(len(units) * (math.prod(shape) // shape[axis]), most)
    inner = math.prod(shape[axis + 1 :])
    outer = np.arange(math.prod(shape[:axis])) * (inner * shape[axis])
    return (outer[:, None, None] + units[:, None] * inner + np.arange(inner)).reshape(-1), place


def _few(count: int, most: int) -> int:
    """``count``, checked before anything is allocated. Raises ValueError if it is more than is left of ``most``."""
    if count > most:
        raise ValueError(f"payload indices: more positions than were agreed on: {count} in a block, {most} left")
    return count


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
