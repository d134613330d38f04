"""Integers of b bits each, packed without gaps: value i begins at bit i b, lowest bit first."""

import numpy as np
from jaxtyping import UInt

from fedlsg.secure_sum.masks import word
from fedlsg.secure_sum.outcome import SecureSumError

AT_ONCE = 2**13
"""Values at once, which stay in the processor's cache; a multiple of ``GROUP``."""
GROUP = 8
"""Values that fill whole bytes at any number of bits: b bytes."""


def packed_bytes(length: int, bits: int) -> int:
    """Bytes of ``length`` integers of ``bits`` bits."""
    return (length * bits + 7) // 8


def pack_bits(words: UInt[np.ndarray, " length"], bits: int) -> bytes:
    """Words below 2^bits as ``packed_bytes`` bytes."""
    if bits == 8 * words.itemsize:
        return words.tobytes()
    return b"".join(_pack(words[start : start + AT_ONCE], bits) for start in range(0, len(words), AT_ONCE))


def unpack_bits(packed: bytes | memoryview, length: int, bits: int) -> UInt[np.ndarray, " length"]:
    """The words of ``pack_bits``; SecureSumError for another number of bytes or for bits behind the last value."""
    if len(packed) != packed_bytes(length, bits):
        raise SecureSumError(f"masked values: expected {packed_bytes(length, bits)} bytes, got {len(packed)}")
    if length * bits % 8 and packed[-1] >> length * bits % 8:
        raise SecureSumError("masked values: expected zero bits behind the last value")
    kind = word(bits)
    if bits == 8 * kind.itemsize:
        return np.frombuffer(packed, kind)
    groups = np.empty((-(-length // GROUP), GROUP), kind)
    raw = np.frombuffer(packed, np.uint8)
    for start in range(0, len(groups), AT_ONCE // GROUP):
        part = groups[start : start + AT_ONCE // GROUP]
        own = raw[start * bits : (start + len(part)) * bits]
        part[:] = _unpack(np.pad(own, (0, len(part) * bits - len(own))).reshape(len(part), bits), bits)
    return groups.reshape(-1)[:length]


def _unpack(groups: np.ndarray, bits: int) -> np.ndarray:
    """The 8 values in each row of ``bits`` bytes, (n, 8)."""
    columns, found = np.ascontiguousarray(groups.T), []
    for place in range(GROUP):
        first, shift = divmod(place * bits, 8)
        wide = np.uint32 if shift + bits <= 32 else np.uint64
        value = columns[first].astype(wide)
        for i in range(1, min(8, -(-(shift + bits) // 8))):
            value |= columns[first + i].astype(wide) << wide(8 * i)
        value >>= wide(shift)
        if shift + bits > 64:
            value |= columns[first + 8].astype(wide) << wide(64 - shift)
        found.append(value & wide(2**bits - 1))
    return np.stack(found, axis=1)


def _pack(words: np.ndarray, bits: int) -> bytes:
    spread = np.unpackbits(words.view(np.uint8).reshape(len(words), -1), axis=1, bitorder="little")
    return np.packbits(spread[:, :bits], bitorder="little").tobytes()
