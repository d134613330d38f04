"""Shamir's secret sharing of 32-byte secrets over the integers modulo the prime p = 2^256 - 189.

Source: Shamir 1979, "How to Share a Secret". A share of the holder at point x is f(x) for a random polynomial f of
degree h - 1 with f(0) = secret. Not constant-time: Python's integers are not.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod

from fedlsg.secure_sum.outcome import SecureSumError

PRIME = 2**256 - 189
SHARE_BYTES = 32


def split(secret: bytes, coefficients: Sequence[int], points: Iterable[int]) -> dict[int, bytes]:
    """One share, 32 bytes, for every point; h is one more than the number of ``coefficients``.

    Guarantee: if the coefficients are uniform modulo p and secret, any h - 1 shares are uniform and independent of
    the secret, and any h give it back.
    Raises ValueError for a secret that is not 32 bytes below p, and for points or coefficients out of range.
    """
    polynomial = [_number(secret), *coefficients]
    if not all(0 <= a < PRIME for a in polynomial) or len(secret) != SHARE_BYTES:
        raise ValueError("expected a secret of 32 bytes and coefficients, all below 2^256 - 189")
    shares = {}
    for x in points:
        if not 0 < x < PRIME:
            raise ValueError(f"expected points from 1 to p - 1, got {x}")
        y = 0
        for a in reversed(polynomial):
            y = (y * x + a) % PRIME
        shares[x] = y.to_bytes(SHARE_BYTES, "big")
    return shares


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret of the first ``threshold`` shares, by point; further ones are not used.

    Not verified: a wrong share gives another secret. Compare the result with what its owner announced.
    Raises SecureSumError for fewer shares than the threshold, or a share that is no 32 bytes below p.
    """
    points = tuple(sorted(shares)[:threshold])
    if len(points) < threshold:
        raise SecureSumError(f"secret: expected {threshold} shares, got {len(points)}")
    values = [_number(shares[x]) for x in points]
    if not all(y < PRIME and len(shares[x]) == SHARE_BYTES for x, y in zip(points, values, strict=True)):
        raise SecureSumError("share: expected 32 bytes below 2^256 - 189")
    weights = _weights(points)
    return (sum(y * w for y, w in zip(values, weights, strict=True)) % PRIME).to_bytes(SHARE_BYTES, "big")


@lru_cache(maxsize=256)
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights at 0. Cached: in a dense graph the same holders give many secrets."""
    weights = []
    for x in points:
        others = [z for z in points if z != x]
        weights.append(prod(others) * pow(prod(z - x for z in others), -1, PRIME) % PRIME)
    return tuple(weights)


def _number(share: bytes) -> int:
    return int.from_bytes(share, "big")
