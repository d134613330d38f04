"""One Poisson-subsampled Gaussian step: its privacy loss on quadrature nodes, and rounded to a
grid.

Symbols:
    q, sigma   sample rate and noise multiplier       x      an output of the step
    phi        density of N(0, sigma^2), the law of x without the example
    R(x)     = log(1 - q + q exp((2 x - 1) / (2 sigma^2))); phi e^R is the density of x with the
             example

Removal of the example: x follows phi e^R and the loss is R. Addition: x follows phi and the loss is
-R. Only outputs in [-reach sigma, 1 + reach sigma] are described; `outside` bounds the probability
of all others.

No probability here is the difference of two larger ones. All are sums of positive terms with a
relative error near 1e-15, so they can be tilted by e^(theta R) and composed 10^8 times.
dp-accounting's masses are second differences and have absolute errors of about 1e-16 over the
grid's width.
"""

import math
from functools import lru_cache

import numpy as np
from jaxtyping import Float64

from fedlsg.accounting.events import AccountingError

Rule = Float64[np.ndarray, "n k"]
Numbers = Float64[np.ndarray, "*shape"]
Vector = Float64[np.ndarray, " n"]
Nodes = tuple[Vector, Vector]
MASS_ROUNDING = 2e-13
"""Relative error of a mass: of the quadrature, of exp at arguments up to 700, of a sum of positive
terms.
"""
LARGEST_REACH = 37.0  # exp(-37^2 / 2) is still a normal float


def outside(reach: float) -> float:
    """An upper bound of the probability of an output that is not described, with the example and
    without it.
    """
    return math.erfc(reach / math.sqrt(2)) * (1 + 1e-9)


def reach_for(probability: float) -> float:
    """A reach, a multiple of 1/4, beyond which there is at most this probability. Raises
    AccountingError below 1e-290.

    From erfc(x) <= exp(-x^2).
    """
    reach = math.ceil(4 * math.sqrt(-2 * math.log(min(probability, 0.5)))) / 4
    if reach > LARGEST_REACH:
        raise AccountingError(f"a probability of {probability:.3g} is below what float64 resolves")
    return reach


def log_ratio(x: Numbers, sample_rate: float, noise_multiplier: float) -> Numbers:
    """R(x), with a small relative error where R is near 0."""
    q = sample_rate
    z = (2 * x - 1) / (2 * noise_multiplier**2)
    if q == 1.0:
        return z
    change = q * np.expm1(np.minimum(z, 700.0))
    near = np.log1p(np.clip(change, -0.6, 0.6))
    return np.where(np.abs(change) < 0.5, near, np.logaddexp(math.log1p(-q), math.log(q) + z))


def outputs_at(r: Vector, sample_rate: float, noise_multiplier: float) -> Vector:
    """The x with R(x) = r, minus infinity where r is not above log(1 - q)."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inside = np.expm1(r) / sample_rate
        z = np.where(r > 30, r - math.log(sample_rate), np.log1p(np.maximum(inside, -1.0)))
    return noise_multiplier**2 * z + 0.5


@lru_cache(maxsize=256)  # by its arguments alone: never stale
def nodes(sample_rate: float, noise_multiplier: float, reach: float) -> Nodes:
    """(R, log of phi times the weight) at Gauss-Legendre nodes: E[f(R)] without the example is a
    sum over them.
    """
    edges = _edges(noise_multiplier, reach)
    return _log_nodes(edges, sample_rate, noise_multiplier)


def _log_nodes(edges: Vector, sample_rate: float, noise_multiplier: float) -> Nodes:
    """As ``nodes``, six in each interval between the edges."""
    x, weight = _legendre(edges[:-1], edges[1:], 6)
    log_weight = _log_phi(x, noise_multiplier) + np.log(weight)
    return log_ratio(x, sample_rate, noise_multiplier).ravel(), log_weight.ravel()


def rounded(
    sample_rate: float, noise_multiplier: float, reach: float, width: float, most: int
) -> tuple[int, Vector]:
    """(k, m): m[i] is the log of the mass without the example at R = (k + i) width, a grid's point.

    Connect the dots (Doroshenko et al. 2022, algorithm 1): each cell's outputs go to its two ends
    so that their probability with the example and without it both stay. An output at R then becomes
    a random end, and neither direction's hockey-stick divergence falls, at any epsilon and after
    any composition, because the original pair of laws is a post-processing of the new one. With the
    example the mass at r is e^r times that without it.

    Guarantee: the two masses of a cell are integrals of expm1(R - r) over expm1(width), so both are
    positive sums.

    Raises: AccountingError if there would be more than ``most`` points, or if the masses do not sum
    to 1.
    """
    fixed = _edges(noise_multiplier, reach)
    low, high = log_ratio(fixed[[0, -1]], sample_rate, noise_multiplier)
    first, last = math.floor(low / width), math.ceil(high / width)
    if last - first >= most:
        raise AccountingError(
            f"one step's grid would have {last - first + 1:,} points, more than {most:,}"
        )
    if first == last:
        last += 1
    inner = outputs_at(np.arange(first + 1, last) * width, sample_rate, noise_multiplier)
    inner = np.clip(inner, fixed[0], fixed[-1])
    edges = np.sort(np.concatenate([inner, fixed]))
    starts, ends, lengths = edges[:-1], edges[1:], np.diff(edges)
    cells = np.searchsorted(inner, (ends + starts) / 2, side="right")
    wide = lengths > 0.03 * (fixed[1] - fixed[0])
    # Times e^scale, so that what is likely only with the example does not underflow: phi e^R stays
    # below phi's maximum.
    count = last - first
    scale = np.maximum(np.arange(first, last) * width, 0.0)
    down, up = np.zeros(count), np.zeros(count)
    for part, order in ((wide, 6), (~wide & (lengths > 0), 3)):
        cell = cells[part]
        x, weight = _legendre(starts[part], ends[part], order)
        r = log_ratio(x, sample_rate, noise_multiplier) - ((first + cell) * width)[:, None]
        mass = np.exp(_log_phi(x, noise_multiplier) + scale[cell][:, None]) * weight
        r = np.clip(r, 0.0, width)
        upwards = (mass * np.expm1(r)).sum(axis=1) / math.expm1(width)
        downwards = (mass * np.expm1(r - width)).sum(axis=1) / math.expm1(-width)
        up += np.bincount(cell, upwards, count)
        down += np.bincount(cell, downwards, count)
    with np.errstate(divide="ignore"):
        low, high = np.log(down) - scale, np.log(up) - scale
    log_masses = np.logaddexp(np.append(low, -np.inf), np.append(-np.inf, high))
    # without the example, and with it
    for gained in (0.0, (first + np.arange(len(log_masses))) * width):
        total = np.exp(log_masses + gained).sum()
        if not 1 - outside(reach) - 1e-12 <= total <= 1 + 1e-12:
            raise AccountingError(f"the masses of one step sum to {total!r}: its quadrature failed")
    return first, log_masses


def _edges(noise_multiplier: float, reach: float) -> Vector:
    """Equal intervals over all described outputs, in each of which log phi and R change by at most
    1.
    """
    sigma = noise_multiplier
    span = 2 * reach * sigma + 1
    intervals = math.ceil(span * (reach * sigma + 2) / sigma**2)
    return np.linspace(-reach * sigma, 1 + reach * sigma, intervals + 1)


def _legendre(low: Vector, high: Vector, order: int) -> tuple[Rule, Rule]:
    """Nodes and weights in each interval."""
    at, weight = _rule(order)
    half = (high - low)[:, None] / 2
    return low[:, None] + half * (1 + at), half * weight


_rule = lru_cache(np.polynomial.legendre.leggauss)
"""By its arguments alone: never stale."""


def _log_phi(x: Numbers, noise_multiplier: float) -> Numbers:
    return -0.5 * (x / noise_multiplier) ** 2 - math.log(noise_multiplier * math.sqrt(2 * math.pi))


def log_expectations(
    sample_rate: float, noise_multiplier: float, orders: tuple[float, ...]
) -> Float64[np.ndarray, " orders"]:
    """log E[e^(order R)] without the example, for orders of at most 10: all outputs that matter, by
    quadrature.
    """
    sigma = noise_multiplier
    low, high = -14 * sigma, max(orders) + 14 * sigma
    count = math.ceil((high - low) * (14 + (2 * max(orders) + 1) / sigma) / sigma)
    edges = np.linspace(low, high, min(count, 20_000) + 1)
    exponents, log_weights = _log_nodes(edges, sample_rate, sigma)
    return np.array([log_sum(order * exponents + log_weights) for order in orders])


def log_sum(terms: Vector) -> float:
    """log sum e^terms."""
    largest = terms.max()
    return float(largest + math.log(np.exp(terms - largest).sum()))
