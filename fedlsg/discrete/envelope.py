"""The staircase under which the discrete Gaussian sampler throws its points, and exp(-gamma) between two integers.

Symbols: s deviation, g(x) = exp(-x^2 / (2 s^2)), f in [-1/2, 1/2] the fraction of the centre, k an integer offset,
kappa the height of g in units. Column k has ceil(kappa max_f g(k - f)) units, the maximum being at |k| - 1/2 (at 0 for
k = 0). One more column holds every |k| above ``reach``. All columns together have at most 2^63 units: a uniform word of
63 bits chooses a column and a height in it. About s sqrt(2 pi) / (s sqrt(2 pi) + 1) of the points are below g.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from jaxtyping import Int64

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


SMALLEST_DEVIATION, LARGEST_DEVIATION = Fraction(1, 4), Fraction(2**12)
WORD = 63
CELL = 30
"""Bits of the position in a cell between two nodes. With 24 bits of slope the product stays below 2^63."""
PRECISION = 80
GUIDE = 12
"""Bits of the number of cells in the table of columns."""


@dataclass(frozen=True, eq=False)
class Envelope:
    """Constants of one deviation s. ``height`` is kappa; node i is kappa g(i h) / 2^coarse, h = 2^(CELL - fraction)."""

    deviation: Fraction
    height: int
    reach: int
    starts: Int64[np.ndarray, " columns"]  # the first unit of column -reach, ..., reach, of the tail, of no column
    fraction: int  # bits of x = |k - f| behind the point
    coarse: int  # bits of a height that the table does not have
    nodes: Int64[np.ndarray, " nodes"]
    drops: Int64[np.ndarray, " nodes"]  # from a node to the next
    margin: int  # the chord between nodes is closer than this to kappa g / 2^coarse
    tail_block: int  # L: in the tail the envelope halves every L integers

    def columns(self, units: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
        """The column, from 0, in which each unit lies: a table of equal cells says it, but for cells with an edge.

        Guarantee: the same as ``searchsorted(starts, units, side="right") - 1``.
        """
        first, last = self._guide
        cells = units >> (WORD - GUIDE)
        found: np.ndarray = first[cells]
        several = np.flatnonzero(last[cells] != found)
        found[several] = np.searchsorted(self.starts, units[several], side="right") - 1
        return found

    @cached_property
    def _guide(self) -> tuple[Int64[np.ndarray, " cells"], Int64[np.ndarray, " cells"]]:
        """The columns of the first and of the last unit of each cell."""
        edges = np.arange(1 << GUIDE, dtype=np.int64) << (WORD - GUIDE)
        ends = edges + ((1 << (WORD - GUIDE)) - 1)
        first, last = (np.searchsorted(self.starts, units, side="right") - 1 for units in (edges, ends))
        return first, last


@lru_cache(maxsize=64)
def envelope_of(deviation: Fraction) -> Envelope:
    """The staircase and the table of g for a deviation in grid steps.

    Raises ValueError outside of [1/4, 4096].
    """
    s = Fraction(deviation)
    if not SMALLEST_DEVIATION <= s <= LARGEST_DEVIATION:
        raise ValueError(
            f"expected a deviation of {SMALLEST_DEVIATION} to {LARGEST_DEVIATION} grid steps, got {float(s):g}:"
            " change the grid step"
        )
    return staircase(s, -(-19 * s.numerator // (2 * s.denominator)) + 1)  # beyond 9.5 s: less than 2^-62 of the mass


def staircase(s: Fraction, reach: int) -> Envelope:
    """The envelope whose columns end at ``reach``. The law of the samples does not depend on it."""
    sides = [_upper(s, Fraction(2 * k - 1, 2)) for k in range(1, reach + 1)]
    block = _tail_block(s, reach)
    tail = 4 * block * _upper(s, Fraction(2 * reach + 1, 2))
    columns = len(sides) * 2 + 2
    height = (((1 << WORD) - columns) << PRECISION) // ((1 << PRECISION) + 2 * sum(sides) + tail)
    units = [-(-height * side >> PRECISION) for side in sides]
    weights = [*reversed(units), height, *units, -(-height * tail >> PRECISION)]
    starts = np.concatenate([[0], np.cumsum(np.array(weights, dtype=np.int64))])
    return Envelope(s, height, reach, starts, tail_block=block, **_table(s, height, reach))


def _upper(s: Fraction, x: Fraction) -> int:
    """At least 2^PRECISION g(x)."""
    return enclose_exp((x / s) ** 2 / 2, PRECISION)[1]


def _tail_block(s: Fraction, reach: int) -> int:
    """The smallest power of two L with g(x + L) <= g(x) / 2 for x >= reach: L reach >= s^2 log 2."""
    block = 1
    while block * reach * 10 < 7 * s * s:
        block *= 2
    return block


def _table(s: Fraction, height: int, reach: int) -> dict[str, Any]:
    """Nodes of kappa g at distances h in (s / 512, s / 256], and how far the chords between them can be off.

    |g''| <= 1 / s^2, so a chord is within h^2 / (8 s^2) of g. |g'| < 1 / s bounds the effect of the bits of x that are
    cut off. A node is less than 2 units too low, the product with the slope less than 1.
    """
    exponent = (s.numerator // s.denominator).bit_length() - 9 if s >= 1 else -9 - (s < Fraction(1, 2))
    h = Fraction(2) ** exponent
    fraction = CELL - exponent
    coarse = max(0, height.bit_length() - 32)
    count = int((reach + 1) / h) + 2
    nodes = [(enclose_exp((i * h / s) ** 2 / 2, PRECISION)[0] * height) >> (PRECISION + coarse) for i in range(count)]
    values = np.array(nodes, dtype=np.int64)
    scale = Fraction(height, 1 << coarse)
    error = scale * (h / s) ** 2 / 8 + scale / s / (1 << fraction)
    drops = values - np.append(values[1:], 0)
    margin = -int(-error // 1) + 5
    return {"fraction": fraction, "coarse": coarse, "nodes": values, "drops": drops, "margin": margin}
