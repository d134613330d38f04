"""Integers of b bits each, packed without gaps: value i begins at bit i b, lowest bit first."""

import numpy as np
from jaxtyping import UInt

from fedlsg.secure_sum.masks import word
from fedlsg.secure_sum.outcome import SecureSumError

AT_ONCE = 2**13
"""Values that are spread into single bits at once; a multiple of 8, so that each part ends with a whole byte."""


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
    words, step = np.empty(length, kind), AT_ONCE * bits // 8
    for at, start in enumerate(range(0, len(packed), step)):
        part = words[at * AT_ONCE : (at + 1) * AT_ONCE]
        flat = np.unpackbits(np.frombuffer(packed, np.uint8)[start : start + step], bitorder="little")
        spread = np.zeros((len(part), 8 * kind.itemsize), np.uint8)
        spread[:, :bits] = flat[: len(part) * bits].reshape(len(part), bits)
        part[:] = np.packbits(spread, axis=1, bitorder="little").view(kind)[:, 0]
    return words


def _pack(words: np.ndarray, bits: int) -> bytes:
    spread = np.unpackbits(words.view(np.uint8).reshape(len(words), -1), axis=1, bitorder="little")
    return np.packbits(spread[:, :bits], bitorder="little").tobytes()
