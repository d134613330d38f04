"""exp(-gamma) of a rational number between two integers: what an exact sampler compares its random bits with."""

from fractions import Fraction

GUARD = 20
"""Bits of the working precision beyond those that are returned and those that the squarings lose."""


def enclose_exp(gamma: Fraction, bits: int) -> tuple[int, int]:
    """Integers (low, high) with low <= 2^bits exp(-gamma) <= high and high - low <= 2, for gamma >= 0 and bits >= 1.

    Integers only: gamma is halved h times until it is below 2^-8, its alternating Taylor series is summed between
    bounds, and both bounds are squared h times, rounded outwards.
    Raises ValueError for a negative gamma.
    """
    if gamma < 0:
        raise ValueError(f"expected gamma >= 0, got {float(gamma)}")
    if gamma >= bits:
        return 0, 1  # exp(-gamma) < 2^-gamma
    halvings = max(0, (gamma.numerator // gamma.denominator).bit_length() + 8)
    precision = bits + halvings + GUARD
    small = (gamma.numerator << precision) // (gamma.denominator << halvings)
    low, high = _series(small + 1, precision)[0], _series(small, precision)[1]
    for _ in range(halvings):
        low, high = (low * low) >> precision, ((high * high) >> precision) + 1
    shift = precision - bits
    return low >> shift, min(-(-high >> shift), 1 << bits)


def _series(x: int, precision: int) -> tuple[int, int]:
    """Bounds on 2^precision exp(-x / 2^precision) for x below 2^(precision - 8) + 2.

    Terms fall and alternate, so the rest is below the last term, which is 0 in the last place. Each term is rounded
    down twice and inherits less than one unit of the error of the term before.
    """
    total, term, count = 1 << precision, 1 << precision, 0
    while term:
        count += 1
        term = ((term * x) >> precision) // count
        total += -term if count % 2 else term
    error = 3 * count + 3
    return max(total - error, 0), total + error
