"""Exact samples of the discrete Gaussian on the integers, with a real centre.

    P(x) = exp(-(x - c)^2 / (2 s^2)) / sum over integers y of exp(-(y - c)^2 / (2 s^2))

Symbols: c centre and s deviation, both in grid steps. c = n + f with an integer n and |f| <= 1/2;
x = n + k.

Source: rejection sampling with exact Bernoulli(exp(-gamma)) draws of Canonne, Kamath and Steinke
2020 (arXiv 2004.00010), sec. 5. It differs because the centre is real, and for speed:
- The envelope is a staircase of integer columns that covers exp(-(k - f)^2 / (2 s^2)) for every f
  (``Envelope``). Theirs is a discrete Laplace distribution, for an integer centre.
- A draw is a comparison of uniform bits with an enclosure of exp(-gamma). Theirs is a product of
  simpler draws.
- The first 16 bits of a point choose one of 65,536 equal cells of the staircase. A cell that is in
  one column, and below the curve of every f, needs no further bit and no centre: 97 % of the draws
  at s = 256 (``Draft``). For the rest, 47 more bits and a table in integers decide all but some
  1e-5 of the draws. These take more bits and integers of any length.
A centre in float64 is taken as the rational number that it is: no bit of it is lost.

Not covered: the time that a call takes depends on the samples, as with every rejection.

The staircase (``Envelope``), under which points are uniform: g(x) = exp(-x^2 / (2 s^2)), f in
[-1/2, 1/2], kappa the height of g in units. Column k has ceil(kappa max_f g(k - f)) units, the
maximum being at |k| - 1/2 (at 0 for k = 0). One more column, the tail, is for every |k| above
``reach``. All columns together have at most 2^63 units: a uniform word of 63 bits chooses a column
and a height in it. About s sqrt(2 pi) / (s sqrt(2 pi) + 1) of the points are below g.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float64, Int16, Int64, UInt
from torch import Tensor

from fedlsg.randomness import SecretStream

T = TypeVar("T")
GUARD_BITS = 20
"""Bits of the working precision in addition to those that are returned, and those that squaring
loses.
"""


def enclose_exp(gamma: Fraction, bits: int) -> tuple[int, int]:
    """Integers with low <= 2^bits exp(-gamma) <= high and high - low <= 2, for gamma >= 0, bits >=
    1.

    Integers only: gamma is halved h times until it is below 2^-8, its alternating Taylor series is
    summed between bounds, and both bounds are squared h times, rounded outwards.
    Raises ValueError for a negative gamma.
    """
    if gamma < 0:
        raise ValueError(f"expected gamma >= 0, got {float(gamma)}")
    if gamma >= bits:
        return 0, 1  # exp(-gamma) < 2^-gamma
    halvings = max(0, (gamma.numerator // gamma.denominator).bit_length() + 8)
    precision = bits + halvings + GUARD_BITS
    small = (gamma.numerator << precision) // (gamma.denominator << halvings)
    low, high = _series(small + 1, precision)[0], _series(small, precision)[1]
    for _ in range(halvings):
        low, high = (low * low) >> precision, ((high * high) >> precision) + 1
    shift = precision - bits
    return low >> shift, min(-(-high >> shift), 1 << bits)


def _series(x: int, precision: int) -> tuple[int, int]:
    """Bounds on 2^precision exp(-x / 2^precision) for x below 2^(precision - 8) + 2.

    Terms fall and alternate, so the rest is below the last term, which is 0. Each term is rounded
    down twice, and has less than one unit of the error of the term before: 3 units a term.
    """
    total, term, count = 1 << precision, 1 << precision, 0
    while term:
        count += 1
        term = ((term * x) >> precision) // count
        total += -term if count % 2 else term
    error = 3 * count + 3
    return max(total - error, 0), total + error


SMALLEST_DEVIATION, LARGEST_DEVIATION = Fraction(1, 4), Fraction(2**12)
"""Deviations s that are accepted, in grid steps."""
WORD_BITS = 63
"""Bits of a point under the staircase."""
CELL_POSITION_BITS = 30
"""Bits of the position between two nodes. With 24 bits of slope the product stays below 2^63."""
PRECISION_BITS = 80
"""Bits behind the point of g when the staircase and the table are made."""
CELL_CHOICE_BITS: Final = 16
"""Bits of a point that choose its cell."""
OPEN = -(2**15)
"""Value in ``Envelope.cells`` for a cell whose points need more bits."""


@dataclass(frozen=True, eq=False)
class Envelope:
    """The staircase, and the table of g, of one deviation.

    deviation: s.
    height: kappa.
    reach: the largest |k| with a column of its own.
    starts: the first unit of column -reach, ..., reach, and of the tail; last the first unit of no
        column.
    fraction: bits behind the point of x = |k - f| in the table.
    coarse: lowest bits of a height that the table leaves out.
    nodes: kappa g(i h) / 2^coarse at i = 0, 1, ..., with h = 2^(CELL_POSITION_BITS - fraction).
    drops: the difference from each node to the next.
    margin: the chord between two nodes is nearer than this to kappa g / 2^coarse.
    tail_block: L: in the tail the envelope halves every L integers.
    cells: for each cell the offset k of all its points, or OPEN.
    """

    deviation: Fraction
    height: int
    reach: int
    starts: Int64[np.ndarray, " columns"]
    fraction: int
    coarse: int
    nodes: Int64[np.ndarray, " nodes"]
    drops: Int64[np.ndarray, " nodes"]
    margin: int
    tail_block: int
    cells: Int16[np.ndarray, " cells"]


@lru_cache(maxsize=64)  # by its arguments alone: never stale
def envelope_of(deviation: Fraction) -> Envelope:
    """The staircase and the table of g for a deviation in grid steps.

    Raises ValueError outside of [1/4, 4096].
    """
    s = Fraction(deviation)
    if not SMALLEST_DEVIATION <= s <= LARGEST_DEVIATION:
        raise ValueError(
            f"expected a deviation of {SMALLEST_DEVIATION} to {LARGEST_DEVIATION} grid steps, got "
            f"{float(s):g}: change the grid step"
        )
    reach = -(-19 * s.numerator // (2 * s.denominator)) + 1  # 9.5 s: 2^-62 of the mass is beyond
    return staircase(s, reach)


def staircase(s: Fraction, reach: int) -> Envelope:
    """The envelope whose columns end at ``reach``. The law of the samples does not depend on it."""
    # bounds on g at 1/2, 3/2, ..., reach + 1/2
    lows, highs = zip(*(_heights(s, k + Fraction(1, 2)) for k in range(reach + 1)), strict=True)
    block = _tail_block(s, reach)
    # The columns 1, ..., reach of either side; the tail's blocks, L integers on either side, have
    # heights that halve: 2 L g (1 + 1/2 + ...) = 4 L g.
    sides, tail = highs[:-1], 4 * block * highs[-1]
    columns = len(sides) * 2 + 2
    height = (((1 << WORD_BITS) - columns) << PRECISION_BITS) // (
        (1 << PRECISION_BITS) + 2 * sum(sides) + tail
    )
    units = [-(-height * side >> PRECISION_BITS) for side in sides]  # rounded up
    weights = [*reversed(units), height, *units, -(-height * tail >> PRECISION_BITS)]
    starts = np.concatenate([[0], np.cumsum(np.array(weights, dtype=np.int64))])
    below = [height * low >> PRECISION_BITS for low in lows]  # min_f kappa g(k - f), k >= 0
    certain = np.array([*reversed(below[1:]), *below], dtype=np.int64)
    cells = _cells(starts, certain, reach)
    return Envelope(
        s, height, reach, starts, tail_block=block, cells=cells, **_table(s, height, reach)
    )


def _heights(s: Fraction, x: Fraction) -> tuple[int, int]:
    """Bounds on 2^PRECISION_BITS g(x)."""
    return enclose_exp((x / s) ** 2 / 2, PRECISION_BITS)


def _cells(
    starts: Int64[np.ndarray, " edges"], certain: Int64[np.ndarray, " columns"], reach: int
) -> Int16[np.ndarray, " cells"]:
    """k for each cell whose points are all in column k and below ``certain``, else OPEN.

    ``certain``: min_f kappa g(k - f) of each column but the tail.
    """
    size = 1 << (WORD_BITS - CELL_CHOICE_BITS)
    begin = np.arange(1 << CELL_CHOICE_BITS, dtype=np.int64) << (WORD_BITS - CELL_CHOICE_BITS)
    column = np.searchsorted(starts, begin, side="right") - 1
    inside = np.minimum(column, len(certain) - 1)  # neither the tail nor outside
    top = begin - starts[inside] + size
    k = inside - reach
    sure = (column == inside) & (top <= certain[inside]) & (np.abs(k) < -OPEN)
    return np.where(sure, k, OPEN).astype(np.int16)


def _tail_block(s: Fraction, reach: int) -> int:
    """The smallest power of two L with g(x + L) <= g(x) / 2 for x >= reach: L reach >= s^2 log 2.

    log 2 is rounded up to 0.7.
    """
    block = 1
    while block * reach * 10 < 7 * s * s:
        block *= 2
    return block


def _table(s: Fraction, height: int, reach: int) -> dict[str, Any]:
    """The fields of ``Envelope`` that are the table of g, with nodes at distances h in (s / 512, s
    / 256].

    |g''| <= 1 / s^2, so a chord is within h^2 / (8 s^2) of g. |g'| < 1 / s bounds the effect of the
    bits of x that are cut off. The other 5 units: a node is less than 2 too low, the product with
    the slope less than 1, and bits of the height are cut off.
    """
    # the power of two h: s is in [2^(exponent + 8), 2^(exponent + 9))
    if s >= 1:
        exponent = (s.numerator // s.denominator).bit_length() - 9
    else:
        exponent = -9 - (s < Fraction(1, 2))
    h = Fraction(2) ** exponent
    fraction = CELL_POSITION_BITS - exponent
    coarse = max(0, height.bit_length() - 32)
    count = int((reach + 3) / h) + 2  # the last columns, tail and outside, are above reach
    nodes = [
        (enclose_exp((i * h / s) ** 2 / 2, PRECISION_BITS)[0] * height) >> (PRECISION_BITS + coarse)
        for i in range(count)
    ]
    values = np.array(nodes, dtype=np.int64)
    scale = Fraction(height, 1 << coarse)
    error = scale * (h / s) ** 2 / 8 + scale / s / (1 << fraction)
    drops = values - np.append(values[1:], 0)
    margin = -int(-error // 1) + 5  # rounded up
    return {
        "fraction": fraction,
        "coarse": coarse,
        "nodes": values,
        "drops": drops,
        "margin": margin,
    }


LARGEST_CENTRE = 2.0**61
"""Largest magnitude of a centre, in grid steps: sums with a sample fit into int64."""
BLOCK_SAMPLES = 2**16
"""Samples of one block: they stay in the processor's cache. A longer vector has several."""
WORTH_THREADS = 2**20
"""Samples from which as many threads as torch has draw blocks; the samples are the same."""


def discrete_gaussian(
    centres: Float64[Tensor, " d"], deviation: Fraction, stream: SecretStream
) -> Int64[Tensor, " d"]:
    """One independent sample for each centre, in grid steps.

    Guarantee: if the stream's bits were uniform, the law would be exactly P(x), for each centre as
    the rational number that the float64 is. No floating-point number is computed from random bits,
    or compared with them.
    Raises ValueError for a centre that is not finite or beyond 2^61, and for a deviation outside of
    [1/4, 4096] steps.
    """
    if centres.dtype != torch.float64:
        raise ValueError(
            f"expected centres in float64, got {centres.dtype}: convert them, which is exact"
        )
    if not bool((centres.abs() <= LARGEST_CENTRE).all()):
        raise ValueError(
            "expected finite centres of at most 2^61 grid steps: plan the grid for larger values"
        )
    envelope = envelope_of(Fraction(deviation))
    values = centres.detach().cpu().numpy()
    samples = np.empty(len(values), dtype=np.int64)

    def draw(place: slice, block_stream: SecretStream) -> None:
        nearest = np.rint(values[place])
        # The difference of a float64 and the nearest integer is exact.
        fractions = values[place] - nearest
        samples[place] = nearest.astype(np.int64) + offsets(fractions, envelope, block_stream)

    in_blocks(len(values), stream, draw)
    return torch.from_numpy(samples)


def in_blocks(
    count: int, stream: SecretStream, draw: Callable[[slice, SecretStream], T]
) -> list[T]:
    """The results of ``draw(block, stream of the block)`` for all blocks of ``count`` places.

    Several blocks have streams of their own, whose keys are drawn from ``stream``: threads may draw
    them in any order.
    """
    if count <= BLOCK_SAMPLES:
        return [draw(slice(0, count), stream)] if count else []
    places = [
        slice(begin, min(begin + BLOCK_SAMPLES, count)) for begin in range(0, count, BLOCK_SAMPLES)
    ]
    keys = stream.words(4 * len(places)).reshape(-1, 4)
    return in_threads(count, draw, places, [SecretStream(key.tobytes()) for key in keys])


def in_threads(count: int, work: Callable[..., T], *each: Iterable[Any]) -> list[T]:
    """``list(map(work, *each))``, by several threads from WORTH_THREADS samples on."""
    threads = torch.get_num_threads() if count >= WORTH_THREADS else 1
    if threads == 1:
        return list(map(work, *each))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, *each))


class Draft(NamedTuple):
    """Samples of a block that need no centre.

    k: the offset of each sample; OPEN at ``places``.
    places: samples that are still to be decided.
    cells: the first 16 bits of their points.
    stream: gives all further bits of the block.
    """

    k: Int16[np.ndarray, " count"]
    places: Int64[np.ndarray, " open"]
    cells: UInt[np.ndarray, " open"]
    stream: SecretStream


def draft(count: int, envelope: Envelope, stream: SecretStream) -> Draft:
    """Draw the first 16 bits of ``count`` points, and decide those that need no more."""
    cells = stream.words(count, bits=CELL_CHOICE_BITS)
    k = envelope.cells.take(cells)
    places = np.flatnonzero(k == OPEN)
    return Draft(k, places, cells[places], stream)


def offsets(
    fractions: Float64[np.ndarray, " count"], envelope: Envelope, stream: SecretStream
) -> Int64[np.ndarray, " count"]:
    """k for every f of a block."""
    first = draft(len(fractions), envelope, stream)
    k = first.k.astype(np.int64)
    if len(first.places):
        k[first.places] = settle(first, fractions[first.places], envelope)
    return k


def settle(
    first: Draft, fractions: Float64[np.ndarray, " open"], envelope: Envelope
) -> Int64[np.ndarray, " open"]:
    """k for every f at ``first.places``: more bits of its point, and a new point if it is above the
    curve.
    """
    stream = first.stream
    fractions = np.where(fractions == fractions, fractions, 0.0)  # NaN, of sums that are not finite
    cut = np.floor(fractions * 2.0**envelope.fraction).astype(np.int64)  # an exact product
    rest = (stream.words(len(cut)) >> np.uint64(64 - WORD_BITS + CELL_CHOICE_BITS)).view(np.int64)
    points = (first.cells.astype(np.int64) << (WORD_BITS - CELL_CHOICE_BITS)) | rest
    column = envelope.starts.searchsorted(points, side="right") - 1
    k = column - envelope.reach
    height = points - envelope.starts[column]
    accepted, undecided = compare(k, height, cut, envelope)
    for i in np.flatnonzero(undecided):
        f = Fraction(float(fractions[i]))
        offset = decide(int(k[i]), int(height[i]), f, envelope, stream)
        accepted[i] = offset is not None
        k[i] = 0 if offset is None else offset
    rejected = np.flatnonzero(~accepted)
    if len(rejected):
        k[rejected] = offsets(fractions[rejected], envelope, stream)
    return k


def compare(
    k: Int64[np.ndarray, " n"],
    height: Int64[np.ndarray, " n"],
    cut: Int64[np.ndarray, " n"],
    envelope: Envelope,
) -> tuple[np.ndarray, np.ndarray]:
    """(accepted, undecided): points that are below kappa g(k - f), and points too near to it.

    ``cut`` is f, rounded down to the table's fixed point. Guarantee: an accepted point is below the
    curve, and one that is neither accepted nor undecided is above it, for every f that is cut to
    the same number.
    """
    x = np.abs((k << envelope.fraction) - cut)
    node = x >> CELL_POSITION_BITS
    curve = envelope.nodes[node] - (
        (envelope.drops[node] * (x & ((1 << CELL_POSITION_BITS) - 1))) >> CELL_POSITION_BITS
    )
    coarse = height >> envelope.coarse
    room = curve - coarse
    accepted, undecided = room > envelope.margin, np.abs(room) <= envelope.margin
    outside = k > envelope.reach
    if outside.any():  # once in 2^60 points
        accepted &= ~outside
        undecided[outside] = k[outside] == envelope.reach + 1
    return accepted, undecided


def decide(
    k: int, height: int, f: Fraction, envelope: Envelope, stream: SecretStream
) -> int | None:
    """The offset if the point is below the curve, else None: exact, with as many bits as it needs.

    In the tail the offset is drawn here: its sign is a bit, the block j has probability 2^-(j + 1),
    the place in the block is uniform over L. So an integer of block j has a share of 1 / (2^(j + 2)
    L) in the tail's units, and the point is compared with kappa g times the inverse.
    """
    factor = 1
    if k > envelope.reach:
        word, block = int(stream.words(1)[0]), 0
        sign = 1 if word & 1 else -1
        while int(stream.words(1)[0]) & 1:
            block += 1
        place = (word >> 1) % envelope.tail_block
        k = sign * (envelope.reach + 1 + block * envelope.tail_block + place)
        factor = envelope.tail_block << (block + 2)
    gamma = ((k - f) / envelope.deviation) ** 2 / 2
    return k if below(height, envelope.height * factor, gamma, stream) else None


def below(height: int, scale: int, gamma: Fraction, stream: SecretStream) -> bool:
    """Whether height + U < scale exp(-gamma), for U uniform in [0, 1), of which bits are drawn
    until the answer is certain.
    """
    bits = 0
    while True:
        bits += 64
        height = (height << 64) | int(stream.words(1)[0])
        precision = bits + scale.bit_length()
        low, high = enclose_exp(gamma, precision)
        if (height + 1) << precision <= low * (scale << bits):
            return True
        if height << precision >= high * (scale << bits):
            return False
