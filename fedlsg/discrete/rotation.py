"""A public random rotation that spreads a vector evenly, so that the largest |value| is small next to the norm.

Symbols: d values, p the largest power of two <= d, H the Walsh-Hadamard matrix of order p over sqrt(p), S and S'
diagonal matrices of random signs. The first p values become H S x. If p < d, the last p values then become H S' of
themselves. The two windows overlap, so every value is in one, and nothing is padded: the rotated vector has d values.

Source: randomised Hadamard transform of Ailon and Chazelle 2009, as in Kairouz, Liu and Steinke 2021 (arXiv
2102.06387), sec. 4. Differs: overlapping windows in place of padding to a power of two (up to twice the values).
The signs are public: they hide nothing, and only save bits.
"""

import math

import torch
from jaxtyping import Float, Float64, Int8
from torch import Tensor

from fedlsg.randomness import check_cpu


def window(values: int) -> int:
    """p, the largest power of two that is at most ``values``."""
    if values < 1:
        raise ValueError(f"expected {values=} >= 1")
    return 1 << (values.bit_length() - 1)


def random_signs(values: int, generator: torch.Generator) -> Int8[Tensor, " signs"]:
    """The signs S, and S' where there is a second window, from a public generator."""
    check_cpu(generator)
    p = window(values)
    return torch.randint(2, (p if p == values else 2 * p,), generator=generator, dtype=torch.int8) * 2 - 1


def rotate(values: Float[Tensor, " d"], signs: Int8[Tensor, " signs"]) -> Float64[Tensor, " d"]:
    """The rotated vector, in float64.

    Guarantee: it is an orthogonal map up to ``rounding_error`` times the norm. Over the signs each coordinate is
    sub-Gaussian with variance proxy |x|^2 / p.
    Raises ValueError for signs of another length.
    """
    p = _checked_window(values, signs)
    rotated = values.detach().cpu().double()
    for first, own in _windows(len(values), p, signs):
        rotated = rotated.clone()
        rotated[first : first + p] = hadamard(rotated[first : first + p] * own)
    return rotated


def unrotate(rotated: Float[Tensor, " d"], signs: Int8[Tensor, " signs"]) -> Float64[Tensor, " d"]:
    """The inverse of ``rotate``: H is its own inverse, and so are the signs."""
    p = _checked_window(rotated, signs)
    values = rotated.detach().cpu().double()
    for first, own in reversed(_windows(len(rotated), p, signs)):
        values = values.clone()
        values[first : first + p] = hadamard(values[first : first + p]) * own
    return values


def hadamard(x: Float64[Tensor, " p"]) -> Float64[Tensor, " p"]:
    """The fast Walsh-Hadamard transform of p = 2^n values over sqrt(p): n passes of sums and differences."""
    p, half = len(x), 1
    while half < p:
        pairs = x.view(-1, 2, half)
        x = torch.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], dim=1).view(p)
        half *= 2
    scaled: Tensor = x * p**-0.5
    return scaled


def rounding_error(values: int) -> float:
    """Largest |error| of ``rotate`` in float64 over the norm of its input, and of one further product.

    Each pass is sqrt(2) times an orthogonal map, and each of its results has a relative error of 2^-53 at most. So a
    window of 2^n values has n passes of that error, and 2 for the product with 1 / sqrt(p).
    """
    passes = window(values).bit_length() - 1
    return (2 * (passes + 3) + 2) * 2.0**-53 * (1 + 1e-6)


def largest_rotated(sensitivity: float, examples: int, values: int, failure: float) -> float:
    """Bound that no rotated coordinate of a sum of ``examples`` vectors of norm ``sensitivity`` exceeds in size.

    It fails with probability ``failure`` at most over the signs, for every vector chosen without them: Hoeffding's
    P(|y_i| > a) <= 2 exp(-a^2 p / (2 |x|^2)) for each of d coordinates, with |x| <= ``examples`` times ``sensitivity``.
    """
    if not 0 < failure < 1:
        raise ValueError(f"expected 0 < {failure=} < 1")
    spread = math.sqrt(2 * math.log(2 * values / failure) / window(values))
    return sensitivity * examples * min(1.0, spread)


def _windows(values: int, p: int, signs: Tensor) -> list[tuple[int, Tensor]]:
    return [(0, signs[:p])] if p == values else [(0, signs[:p]), (values - p, signs[p:])]


def _checked_window(values: Tensor, signs: Tensor) -> int:
    p = window(len(values))
    if len(signs) != (p if p == len(values) else 2 * p):
        raise ValueError(f"expected the signs for {len(values)} values, got {len(signs)}")
    return p
