"""The grid of a secure sum: its step, its modulus, each client's share of the noise, and the
rotation before it.

Symbols: D step, b bits, K clients, h the clients whose noise counts, s_k deviation of one client's
noise in steps, r deviation of the rounding in steps (``bound``), C largest norm of an example, d
values. A sender draws a discrete Gaussian of deviation s_k around x / D and sends it modulo 2^b.
The receiver adds modulo 2^b, and multiplies by D. Both are post-processing of the sum: values that
wrap around are wrong, which costs accuracy and never privacy.

A public random rotation spreads a vector evenly, so that the largest |value| is small next to the
norm. p is the largest power of two <= d, H the Walsh-Hadamard matrix of order p over sqrt(p), S and
S' diagonal matrices of random signs. The first p values become H S x. If p < d, the last p values
then become H S' of themselves. The two windows overlap, so every value is in one, and nothing is
padded: the rotated vector has d values.

Source: randomised Hadamard transform of Ailon and Chazelle 2009, as in Kairouz, Liu and Steinke
2021 (arXiv 2102.06387), sec. 4. Differs: overlapping windows in place of padding to a power of two
(up to twice the values).
The signs are public: they hide nothing, and only save bits.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import torch
from jaxtyping import Float, Float64, Int8, Int64
from torch import Tensor

from fedlsg.noise.sampler import LARGEST_DEVIATION, SMALLEST_DEVIATION, discrete_gaussian
from fedlsg.randomness import SecretStream, check_cpu
from fedlsg.secure_sum.discrete.bound import ripple

MOST_BITS = 52
"""Most bits of a sum, which is then exact in float64."""

SHARE_PARTS = 64
"""s_k is a multiple of 1 / 64 step: a rational number with a small numerator."""


@dataclass(frozen=True, kw_only=True)
class DiscreteGrid:
    """Public constants of a sum.

    step: D, in the unit of the values.
    bits: b.
    share: s_k, equal for all clients.
    contributors: h.
    clients: K >= h.
    """

    step: float
    bits: int
    share: Fraction
    contributors: int
    clients: int

    def __post_init__(self) -> None:
        if not 0 < self.step < math.inf:
            raise ValueError(f"expected a finite step={self.step} > 0")
        if not 1 < self.bits <= MOST_BITS:
            raise ValueError(
                f"expected 2 to {MOST_BITS} bits, got bits={self.bits}: take fewer steps in the "
                "share"
            )
        if not SMALLEST_DEVIATION <= self.share <= LARGEST_DEVIATION:
            raise ValueError(
                f"expected a share of 1/4 to 4096 steps, got share={float(self.share):g}"
            )
        check_counts(self.contributors, self.clients)

    @property
    def modulus(self) -> int:
        """2^bits."""
        return 1 << self.bits

    def noise_std(self, rounding: float = 0.0) -> float:
        """Deviation sqrt(h s_k^2 - r^2) D of the noise of the h clients; ``rounding``: r."""
        left = self.contributors * self.share**2 - Fraction(rounding) ** 2
        if left <= 0:
            raise ValueError(f"expected {rounding=} below the deviation of the sum in steps")
        return math.sqrt(left) * self.step


def check_counts(contributors: int, clients: int) -> None:
    """Raise ValueError unless 1 <= contributors <= clients."""
    if not 1 <= contributors <= clients:
        raise ValueError(
            f"expected 1 <= {contributors=} <= {clients=}: the honest clients that surely answer, "
            "of all that may"
        )


def plan_grid(
    *,
    noise_std: float,
    contributors: int,
    clients: int,
    largest_sum: float,
    values: int,
    rounding: float = 0.0,
    floor: Fraction = Fraction(4),
    failure: float = 1e-9,
    least_bits: int = 2,
) -> DiscreteGrid:
    """The grid with the fewest bits, and of those the finest.

    noise_std: deviation that the noise of the sum must have, in the values' unit, after r^2 is
        subtracted.
    contributors: h = m - t, the honest survivors that are certain; only their noise counts.
    clients: K, the most that may be summed: their noise needs room.
    largest_sum: largest |sum| of the values without noise (``largest_rotated``).
    values: d.
    rounding: r.
    floor: least s_k, in steps.
    failure: probability that a coordinate may wrap around.
    least_bits: the grid has at least so many.
    Guarantee: ``grid.noise_std(rounding) >= noise_std``. If no value of the sum is above
    ``largest_sum``, some coordinate wraps around with probability ``failure`` at most. The noise of
    K clients has, for every centre and e = ``ripple(s_k)``, the tail
        P(|noise| > a) <= 2 ((1 + e) / (1 - e))^K exp(-a^2 / (2 K s_k^2)).
    Raises ValueError for settings out of range, or more than 52 bits.
    """
    check_counts(contributors, clients)
    if not (0 < noise_std < math.inf and 0 <= largest_sum < math.inf):
        raise ValueError(f"expected a finite {noise_std=} > 0 and a finite {largest_sum=} >= 0")
    if not (0 < failure < 1 and values >= 1 and 0 <= rounding**2 < contributors * floor**2):
        raise ValueError(
            f"expected 0 < {failure=} < 1, {values=} >= 1 and {rounding=} below the noise of the "
            "sum"
        )
    e = ripple(float(floor))
    widest = noise_std / math.sqrt(contributors * floor**2 - Fraction(rounding) ** 2)
    tails = math.log(2 * values / failure) + clients * math.log1p(2 * e / (1 - e))
    reach = largest_sum + widest * float(floor) * math.sqrt(2 * clients * tails)
    bits = max(least_bits, math.ceil(math.log2(2 * reach / widest + 2)))
    if bits > MOST_BITS:
        raise ValueError(
            f"a sum of up to {largest_sum:g} at noise {noise_std:g} needs {bits} bits, above "
            f"{MOST_BITS}"
        )
    finest = 2 * reach / (2**bits - 2)
    parts = math.floor(
        math.sqrt(((noise_std / finest) ** 2 + rounding**2) / contributors) * SHARE_PARTS
    )
    share = max(Fraction(floor), Fraction(parts, SHARE_PARTS))
    precision = contributors * share**2 - Fraction(rounding) ** 2
    step = noise_std / math.sqrt(precision)
    while Fraction(step) ** 2 * precision < Fraction(noise_std) ** 2 * (1 + Fraction(1, 2**50)):
        step = math.nextafter(step, math.inf)
    return DiscreteGrid(
        step=step, bits=bits, share=share, contributors=contributors, clients=clients
    )


def most_examples(expected: float, limit: int, failure: float) -> int:
    """A number of examples that Poisson batches exceed with probability ``failure`` at most.

    ``expected``: u, the expected number in all batches together.

    Chernoff: P(N >= n) <= exp(-u) (e u / n)^n for the sum N of independent draws with mean u, n >
    u. Never above ``limit``, the number of examples that there are.
    """
    if not (expected > 0 and 0 < failure < 1 and limit >= 1):
        raise ValueError(f"expected {expected=} > 0, {limit=} >= 1 and 0 < {failure=} < 1")

    def rare(n: int) -> bool:
        return n > expected and n - expected + n * math.log(expected / n) <= math.log(failure)

    return bisect_left(range(1, limit + 1), True, key=rare)


def encode(
    values: Float[Tensor, " d"], grid: DiscreteGrid, stream: SecretStream
) -> Int64[Tensor, " d"]:
    """One client's integers in [0, 2^bits): its values in steps plus its share of the noise.

    Guarantee: the law is that of ``discrete_gaussian`` around values / D as float64 computes it
    (one rounding, which ``release.charge`` counts). Values are not rounded to the grid before the
    noise, so the sensitivity stays C.
    Raises ValueError for values that are not finite, or beyond 2^61 steps.
    """
    samples = discrete_gaussian(values.detach().cpu().double() / grid.step, grid.share, stream)
    return samples.bitwise_and_(grid.modulus - 1)


def add_modulo(parts: Iterable[Int64[Tensor, " d"]], grid: DiscreteGrid) -> Int64[Tensor, " d"]:
    """The sum modulo 2^bits of the clients' integers."""
    total: Tensor | None = None
    for part in parts:
        total = part.clone() if total is None else total.add_(part).bitwise_and_(grid.modulus - 1)
    if total is None:
        raise ValueError("expected the integers of one client at least")
    return total


def decode(total: Int64[Tensor, " d"], grid: DiscreteGrid) -> Float64[Tensor, " d"]:
    """The sum of the clients' values with noise, from the sum of their integers modulo 2^bits.

    Integers from 2^(bits - 1) on stand for negative numbers.

    Raises ValueError for integers outside of [0, 2^bits).
    """
    if len(total) and (int(total.min()) < 0 or int(total.max()) >= grid.modulus):
        raise ValueError(f"expected integers in [0, 2^{grid.bits})")
    signed = torch.where(total >= grid.modulus // 2, total - grid.modulus, total)
    return signed.double() * grid.step


def window(values: int) -> int:
    """p, the largest power of two that is at most ``values``."""
    if values < 1:
        raise ValueError(f"expected {values=} >= 1")
    return 1 << (values.bit_length() - 1)


def random_signs(values: int, generator: torch.Generator) -> Int8[Tensor, " signs"]:
    """The signs S and, if there is a second window, S', from a public generator."""
    check_cpu(generator)
    bits = torch.randint(2, (_count_signs(values),), generator=generator, dtype=torch.int8)
    return bits * 2 - 1


def rotate(values: Float[Tensor, " d"], signs: Int8[Tensor, " signs"]) -> Float64[Tensor, " d"]:
    """The rotated vector, in float64.

    Guarantee: it is an orthogonal map up to ``rounding_error`` times the norm. Over the signs each
    coordinate is sub-Gaussian with variance proxy |x|^2 / p.
    Raises ValueError for signs of another length.
    """
    _check_signs(values, signs)
    p = window(len(values))
    rotated = values.detach().cpu().double()
    for first, window_signs in _windows(len(values), signs):
        rotated = rotated.clone()
        rotated[first : first + p] = hadamard(rotated[first : first + p] * window_signs)
    return rotated


def unrotate(rotated: Float[Tensor, " d"], signs: Int8[Tensor, " signs"]) -> Float64[Tensor, " d"]:
    """The inverse of ``rotate``: H is its own inverse, and so are the signs."""
    _check_signs(rotated, signs)
    p = window(len(rotated))
    values = rotated.detach().cpu().double()
    for first, window_signs in reversed(_windows(len(rotated), signs)):
        values = values.clone()
        values[first : first + p] = hadamard(values[first : first + p]) * window_signs
    return values


def hadamard(x: Float64[Tensor, " p"]) -> Float64[Tensor, " p"]:
    """The fast Walsh-Hadamard transform of p = 2^n values over sqrt(p): n passes of sums and
    differences.
    """
    p, half = len(x), 1
    while half < p:
        pairs = x.view(-1, 2, half)
        x = torch.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], dim=1).view(p)
        half *= 2
    scaled: Tensor = x * p**-0.5
    return scaled


def rounding_error(values: int) -> float:
    """Largest |error| of ``rotate`` and one further product in float64, over the norm of the input.

    Each pass is sqrt(2) times an orthogonal map, and each of its results has a relative error of
    2^-53 at most. So each of at most two windows of 2^n values has n such errors, and at most 3 for
    the product with 1 / sqrt(p). The further product has at most 2. 1e-6 covers higher orders.
    """
    passes = window(values).bit_length() - 1
    return (2 * (passes + 3) + 2) * 2.0**-53 * (1 + 1e-6)


def largest_rotated(sensitivity: float, examples: int, values: int, failure: float) -> float:
    """A bound of all rotated coordinates of a sum of ``examples`` vectors of norm ``sensitivity``.

    It fails with probability ``failure`` at most over the signs, for every vector that does not
    depend on them: Hoeffding's P(|y_i| > a) <= 2 exp(-a^2 p / (2 |x|^2)) for each of d coordinates,
    with |x| <= ``examples`` times ``sensitivity``.
    """
    if not 0 < failure < 1:
        raise ValueError(f"expected 0 < {failure=} < 1")
    spread = math.sqrt(2 * math.log(2 * values / failure) / window(values))
    return sensitivity * examples * min(1.0, spread)


def _windows(values: int, signs: Tensor) -> list[tuple[int, Tensor]]:
    """The first position of each window, and its signs."""
    p = window(values)
    return [(0, signs[:p])] if p == values else [(0, signs[:p]), (values - p, signs[p:])]


def _count_signs(values: int) -> int:
    """Signs for so many values: p, or 2 p if there are two windows."""
    p = window(values)
    return p if p == values else 2 * p


def _check_signs(values: Tensor, signs: Tensor) -> None:
    """Raise ValueError for another number of signs."""
    if len(signs) != _count_signs(len(values)):
        raise ValueError(f"expected the signs for {len(values)} values, got {len(signs)}")
