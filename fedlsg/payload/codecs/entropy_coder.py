"""Entropy coding of integers under a Gaussian, one scale a block: range ANS (Duda 2015) of the
library constriction.

Symbols: q integers on the grid, s Gaussian scale in grid steps, u dither in [-1/2, 1/2), known to
both sides and rounded to the middle of one of ``CLASSES`` classes.
    P(q | u) = Phi((q + 1/2 - u) / s) - Phi((q - 1/2 - u) / s)
    s = 2^(code / 8 - 4) for a code of one byte: an error of at most 4.4 %, or 0.003 bits a value

Both sides must build the same model on any processor. So its weights come from integer arithmetic
(no libm, no rounding of a float), and with ``perfect=False`` the library applies one IEEE division,
sums and products in order, and truncation to them. A symbol beyond about 4.5 s is sent as the
outermost one of the table; the excess is sent separately, as a LEB128 number.
"""

from functools import cache, lru_cache
from math import isqrt
from typing import Any

import numpy as np

CLASSES = 8
"""Classes of the dither: a power of two, so that a class is the dither's first bits. The shift in
``weights`` is for 8.
"""

SCALE_CODES = 256
"""Number of scale codes, of one byte."""
MAX_SYMBOL = 4095
"""The outermost symbol of any table: a hostile scale cannot allocate more."""

_PER_UNIT, _REACH, _BITS = 64, 8, 32
"""Knots in a unit of t, the largest t, and bits behind the point of an integral: see ``_knots``."""
MALFORMED = "payload values: "
"""Start of the message for bytes that no encoder makes."""


def scale_code(mean_square: float) -> int:
    """The code whose scale has the logarithm nearest to that of the root of ``mean_square``, in
    grid steps.
    """
    if not mean_square > 0:
        return 0
    return int(np.clip(round(8 * (np.log2(mean_square) / 2 + 4)), 0, SCALE_CODES - 1))


def outermost(code: int) -> int:
    """Largest symbol of a code's table: 4.5 s + 2, at most ``MAX_SYMBOL``."""
    octave, part = divmod(code, 8)
    power = isqrt(isqrt(isqrt(2 ** (240 + part))))  # 2^(30 + part / 8)
    return min(MAX_SYMBOL, 2 + ((9 * power << octave) >> 35))  # 4.5 / 2^(30 + 4) = 9 / 2^35


@cache  # by its arguments alone: never stale
def outermost_of_codes() -> np.ndarray:
    """``outermost`` of every code."""
    return np.array([outermost(code) for code in range(SCALE_CODES)])


@cache  # by its arguments alone: never stale
def _knots() -> np.ndarray:
    """2^32 times the integral of exp(-t^2 / 2) from 0 to x = k / 64, for k = 0, ..., 513.

    The series in integers with 160 bits behind the point: sum over n of (-1)^n x^(2 n + 1) / (2^n
    n! (2 n + 1)).
    """
    values = []
    for k in range(_REACH * _PER_UNIT + 2):
        term, total, n = (k << 160) // _PER_UNIT, 0, 0
        while term:
            total += (-term if n % 2 else term) // (2 * n + 1)
            n += 1
            term = term * k * k // (2 * n * _PER_UNIT**2)
        values.append(total >> (160 - _BITS))
    return np.array(values, dtype=np.int64)


@lru_cache(maxsize=1024)  # by its arguments alone: never stale
def weights(code: int, dither_class: int) -> np.ndarray:
    """Integer weights (int64, positive) of the symbols -T, ..., T for one scale and one dither
    class.
    """
    octave, part = divmod(code, 8)
    inverse = isqrt(isqrt(isqrt(2 ** (240 - part))))  # 2^(30 - part / 8)
    top = outermost(code)
    # Edges k + 1/2 - u between bins, u the middle of the class, in parts of 1 / (2 CLASSES) steps.
    # In 2^-16 of a knot, |e| 64 2^16 / 16 / s = |e| 2^18 / s; 1 / s is inverse 2^(-26 - octave).
    edges = 2 * CLASSES * np.arange(-top, top, dtype=np.int64) + CLASSES
    edges -= 2 * dither_class + 1 - CLASSES
    place = (np.abs(edges) * inverse) >> (8 + octave)
    place = np.minimum(place, (_REACH * _PER_UNIT) << 16)
    knot, fraction = place >> 16, place & 0xFFFF
    knots = _knots()
    integral = np.sign(edges) * ((knots[knot] << 16) + (knots[knot + 1] - knots[knot]) * fraction)
    end = np.array([knots[-2] << 16])
    return np.diff(np.concatenate([-end, integral, end])) + 1


@lru_cache(maxsize=1024)  # by its arguments alone: never stale
def _model(code: int, dither_class: int) -> Any:
    """The library's model of one table of ``weights``."""
    import constriction

    # Their sum is below 2^50, so that all sums are exact in float64, in any order.
    table = weights(code, dither_class).astype(np.float64)
    return constriction.stream.model.Categorical(table, perfect=False)


def _groups(
    codes: np.ndarray, classes: np.ndarray
) -> tuple[np.ndarray, list[tuple[int, int, int, int]]]:
    """A stable order of symbols by (code, class), and (code, class, start, end) of each group in
    it.
    """
    keys = codes.astype(np.uint16) * CLASSES + classes
    order = np.argsort(keys, kind="stable")
    counts = np.bincount(keys, minlength=1)
    ends = np.cumsum(counts)
    groups = [
        (*divmod(int(key), CLASSES), int(ends[key] - counts[key]), int(ends[key]))
        for key in counts.nonzero()[0]
    ]
    return order, groups


def encode(symbols: np.ndarray, codes: np.ndarray, classes: np.ndarray) -> bytes:
    """Bytes of int64 ``symbols``, each with its scale code (uint8) and dither class (uint8).

    They are the byte count of all excesses (LEB128), the excesses (LEB128 each, in order), and the
    coder's words (uint32, little-endian).
    """
    import constriction

    tops = outermost_of_codes()[codes]
    inner = np.clip(symbols, -tops, tops)
    excess = np.abs(symbols)[np.abs(inner) == tops] - tops[np.abs(inner) == tops]
    order, groups = _groups(codes, classes)
    shifted = (inner + tops).astype(np.int32)[order]
    coder = constriction.stream.stack.AnsCoder()
    for code, dither_class, start, end in reversed(groups):
        coder.encode_reverse(shifted[start:end], _model(code, dither_class))
    escapes = b"".join(leb128(int(number)) for number in excess)
    words: bytes = coder.get_compressed().astype("<u4").tobytes()
    return leb128(len(escapes)) + escapes + words


def decode(stream: bytes, codes: np.ndarray, classes: np.ndarray, *, largest: int) -> np.ndarray:
    """The int64 symbols that ``encode`` wrote.

    Guarantee: whatever the stream is, memory is in proportion to ``codes``.
    Raises ValueError for a stream that ``encode`` does not make, or a symbol beyond ``largest``.
    """
    import constriction

    length, start = read_leb128(stream, 0)
    escapes, words = stream[start : start + length], stream[start + length :]
    if length > len(stream) - start or len(words) % 4:
        raise ValueError(f"{MALFORMED}cut short")
    order, groups = _groups(codes, classes)
    shifted = np.empty(len(codes), dtype=np.int64)
    coder = constriction.stream.stack.AnsCoder(np.frombuffer(words, "<u4").astype(np.uint32))
    for code, dither_class, begin, end in groups:
        shifted[begin:end] = coder.decode(_model(code, dither_class), end - begin)
    if not coder.is_empty():
        raise ValueError(f"{MALFORMED}more coded words than values")
    symbols = np.empty_like(shifted)
    symbols[order] = shifted
    tops = outermost_of_codes()[codes]
    symbols -= tops
    outside = np.flatnonzero(np.abs(symbols) == tops)
    place = 0
    for i in outside:
        excess, place = read_leb128(escapes, place)
        if excess > largest:
            raise ValueError(f"{MALFORMED}a symbol beyond {largest}")
        symbols[i] += int(np.sign(symbols[i])) * excess
    if place != len(escapes):
        raise ValueError(f"{MALFORMED}more escaped symbols than values")
    if len(symbols) and int(np.abs(symbols).max()) > largest:
        raise ValueError(f"{MALFORMED}a symbol beyond {largest}")
    return symbols


def leb128(number: int) -> bytes:
    """The bytes of a number >= 0: seven bits each, the lowest first; only the last is below 128."""
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def read_leb128(stream: bytes, place: int) -> tuple[int, int]:
    """A number below 2^63, and the place after it. Raises ValueError for any bytes but
    ``leb128``'s.
    """
    number = 0
    for i in range(9):
        if place + i >= len(stream):
            raise ValueError(f"{MALFORMED}a number is cut short")
        byte = stream[place + i]
        number |= (byte & 127) << (7 * i)
        if byte < 128:
            if i and not byte:
                break
            return number, place + i + 1
    raise ValueError(f"{MALFORMED}a number is too long")
