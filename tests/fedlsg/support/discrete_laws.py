"""Exact laws of discrete Gaussians and of their sums in one dimension, in fixed point from mpmath.
An oracle.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import reduce

import mpmath
import numpy as np
from scipy import stats

from fedlsg.secure_sum.discrete.bound import ROUNDED_UP, rounding_ripple, sum_ripple

BITS = 400
WIDTHS = 22
"""Deviations on either side: what is left out is below exp(-240)."""

Law = tuple[int, list[int]]
"""The first integer, and 2^BITS times the probabilities from there on."""


def gaussian_law(centre: Fraction | float, deviation: Fraction | float) -> Law:
    """The discrete Gaussian around a real centre, as a rational number."""
    c, s = Fraction(centre), Fraction(deviation)
    reach = int(WIDTHS * s) + 2
    first = round(c) - reach
    with mpmath.workprec(BITS + 40):
        weights = [
            mpmath.exp(-exact(((x - c) / s) ** 2 / 2)) for x in range(first, first + 2 * reach + 1)
        ]
        total = mpmath.fsum(weights)
        return first, [int(mpmath.ldexp(w / total, BITS)) for w in weights]


def exact(x: Fraction) -> mpmath.mpf:
    return mpmath.mpf(x.numerator) / x.denominator


def add(one: Law, other: Law) -> Law:
    """The law of the sum of independent integers."""
    total = [0] * (len(one[1]) + len(other[1]) - 1)
    for i, p in enumerate(one[1]):
        for j, q in enumerate(other[1]):
            total[i + j] += p * q
    return one[0] + other[0], [p >> BITS for p in total]


def sum_law(centres: Sequence[Fraction | float], deviations: Sequence[Fraction | float]) -> Law:
    return reduce(add, (gaussian_law(c, s) for c, s in zip(centres, deviations, strict=True)))


def common(one: Law, other: Law) -> list[tuple[int, int]]:
    """Both probabilities of every integer that either law has."""
    first = min(one[0], other[0])
    last = max(one[0] + len(one[1]), other[0] + len(other[1]))
    return [(at(one, x), at(other, x)) for x in range(first, last)]


def at(law: Law, x: int) -> int:
    return law[1][x - law[0]] if 0 <= x - law[0] < len(law[1]) else 0


def variation(one: Law, other: Law) -> mpmath.mpf:
    return mpmath.ldexp(mpmath.mpf(sum(abs(p - q) for p, q in common(one, other))), -BITS - 1)


def hockey_stick(one: Law, other: Law, epsilon: float) -> float:
    """The smallest delta at epsilon, the larger of both directions: no accountant may claim
    less.
    """
    factor = int(mpmath.ldexp(mpmath.exp(epsilon), 64))
    pairs = common(one, other)
    sums = [
        sum(max((p << 64) - factor * q, 0) for p, q in order)
        for order in (pairs, [(q, p) for p, q in pairs])
    ]
    return float(mpmath.ldexp(mpmath.mpf(max(sums)), -BITS - 64))


def gaussian_delta(epsilon: float, noise_multiplier: float) -> float:
    """delta of the Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""
    a, b = 1 / (2 * noise_multiplier), epsilon * noise_multiplier
    return float(stats.norm.cdf(a - b) - np.exp(epsilon) * stats.norm.cdf(-a - b))


def chi_square(samples: np.ndarray, law: Law) -> float:
    """p-value of the samples under the law; integers with fewer than 8 expected samples are
    joined.
    """
    expected = np.array([float(mpmath.ldexp(p, -BITS)) for p in law[1]]) * len(samples)
    assert samples.min() >= law[0]
    assert samples.max() < law[0] + len(expected)
    found = np.bincount(samples - law[0], minlength=len(expected)).astype(float)
    cells = np.minimum(np.cumsum(expected) // 8, (expected.sum() - 8) // 8).astype(int)
    found, expected = np.bincount(cells, found), np.bincount(cells, expected)
    kept = expected > 0
    return float(
        stats.chisquare(found[kept], expected[kept] * found.sum() / expected[kept].sum()).pvalue
    )


def total_variation(deviations: Sequence[float], rounding: float) -> float:
    """tau of docs/discrete-noise.md: how far one coordinate of the sum is from the rounded Gaussian
    at most.
    """
    ripples = sum_ripple(deviations), rounding_ripple(rounding, math.hypot(*deviations))
    return min(ROUNDED_UP * sum(e / (2 * (1 - e)) if e < 1 else 1.0 for e in ripples), 1.0)
