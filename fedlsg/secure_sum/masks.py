"""Masks: ChaCha20 key streams as words modulo 2^b, added to and subtracted from vectors of integers.

    y_i = x_i + PRG(b_i) + sum over neighbours j of sign(i, j) PRG(s_ij)   mod 2^b        (Bonawitz et al. 2017, sec. 4)

Symbols: x_i input, b_i self-mask seed, s_ij = s_ji pair seed, y_i masked vector.
"""

from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from jaxtyping import Integer, UInt

SEED_BYTES = 32
AT_ONCE = 2**16
"""Bytes of a key stream at once: they stay in the processor's cache."""
_ZEROS = bytes(AT_ONCE)


def word(bits: int) -> np.dtype:
    """The shortest unsigned little-endian word of at least ``bits`` bits: 1, 2, 4 or 8 bytes."""
    return np.dtype(f"<u{next(size for size in (1, 2, 4, 8) if 8 * size >= bits)}")


def reduced(values: Integer[np.ndarray, " length"], bits: int) -> UInt[np.ndarray, " length"]:
    """A copy of integers modulo 2^b, as words. Negative ones wrap: -1 becomes 2^b - 1. No value is refused.

    Raises ValueError for an array that is not of integers.
    """
    if values.dtype.kind not in "iu":
        raise ValueError(f"expected an array of integers, got {values.dtype}")
    return clear(values.astype(word(bits)), bits)


def clear(words: UInt[np.ndarray, " length"], bits: int) -> UInt[np.ndarray, " length"]:
    """Set the bits of words above ``bits`` to 0, in place."""
    words &= words.dtype.type(2**bits - 1)
    return words


def sign(own: int, other: int) -> int:
    """The sign of the pair mask in the masked vector of client ``own``: the two of a pair cancel."""
    return 1 if own < other else -1


def add_masks(words: UInt[np.ndarray, " length"], seeds: Iterable[tuple[bytes, int]]) -> None:
    """Add sign x PRG(seed) to words, in place, modulo the length of a word; ``clear`` the bits above b afterwards.

    Guarantee: without the seed a mask is computationally indistinguishable from uniform words (ChaCha20 under a key of
    256 bits); words modulo a power of two have no bias. Holds 64 KiB in addition to ``words``, for any number of seeds.
    Raises ValueError for a seed that is not 32 bytes: a shorter one could be found by trial.
    """
    stream = bytearray(AT_ONCE)
    step = AT_ONCE // words.dtype.itemsize
    for seed, direction in seeds:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"expected a mask seed of {SEED_BYTES} bytes, got {len(seed)}")
        cipher = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
        change = np.add if direction > 0 else np.subtract
        for start in range(0, len(words), step):
            part = words[start : start + step]
            cipher.update_into(_ZEROS[: part.nbytes] if part.nbytes < AT_ONCE else _ZEROS, stream)
            change(part, np.frombuffer(stream, words.dtype, count=len(part)), out=part)
