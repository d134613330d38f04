"""The privacy loss of one Poisson-subsampled Gaussian step, on quadrature nodes and on a grid.

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
"""Relative error of a mass, by quadrature, by exp at arguments up to 700, and by a sum of positive
terms."""
PIECE_ORDER, FULL_ORDER = 3, 6
"""Gauss-Legendre nodes in an interval that is cut short by cells, and in a whole one."""
LONG_PIECE = 0.03
"""Share of an interval of ``_edges`` from which a piece of it takes FULL_ORDER nodes."""
LARGEST_REACH = 37.0  # exp(-37^2 / 2) is still a normal float


def outside(reach: float) -> float:
    """An upper bound of the probability of an output that is not described, with the example or
    without it.
    """
    return math.erfc(reach / math.sqrt(2)) * (1 + 1e-9)  # 1e-9: the rounding of erfc


def reach_for(probability: float) -> float:
    """The least multiple of 1/4 beyond which outputs have at most this probability.

    It follows from erfc(x) <= exp(-x^2). Raises AccountingError for a probability below 1e-290.
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
    """(R, log of phi times the weight) at Gauss-Legendre nodes.

    E[f(R)] without the example is the sum of f(R) phi weight over them.
    """
    edges = _edges(noise_multiplier, reach)
    return _log_nodes(edges, sample_rate, noise_multiplier)


def _log_nodes(edges: Vector, sample_rate: float, noise_multiplier: float) -> Nodes:
    """As ``nodes``, FULL_ORDER in each interval between the edges."""
    x, weight = _legendre(edges[:-1], edges[1:], FULL_ORDER)
    log_weight = _log_phi(x, noise_multiplier) + np.log(weight)
    return log_ratio(x, sample_rate, noise_multiplier).ravel(), log_weight.ravel()


def rounded(
    sample_rate: float, noise_multiplier: float, reach: float, width: float, most: int
) -> tuple[int, Vector]:
    """(k, m): m[i] is the log of the mass without the example at R = (k + i) width, a grid's point.

    Connect the dots (Doroshenko et al. 2022, algorithm 1): each cell's outputs go to its two ends
    so that their probability stays, with the example and without it. With the example the mass at r
    is e^r times that without it. The original pair of laws is a post-processing of the new one. So
    neither direction's hockey-stick divergence falls, at any epsilon and after any composition.

    Of a mass at R in the cell from r to r + width, the share expm1(R - r) / expm1(width) goes to
    the upper end, and expm1(R - r - width) / expm1(-width) to the lower one.
    Guarantee: both are sums of positive terms.

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
    log_down, log_up = _log_shares(fixed, sample_rate, noise_multiplier, first, last, width)
    log_masses = np.logaddexp(np.append(log_down, -np.inf), np.append(-np.inf, log_up))
    log_ratios = (first + np.arange(len(log_masses))) * width
    for log_masses_here in (log_masses, log_masses + log_ratios):  # without the example, and with
        total = np.exp(log_masses_here).sum()
        if not 1 - outside(reach) - 1e-12 <= total <= 1 + 1e-12:
            raise AccountingError(f"the masses of one step sum to {total!r}: its quadrature failed")
    return first, log_masses


def _log_shares(
    fixed: Vector,
    sample_rate: float,
    noise_multiplier: float,
    first: int,
    last: int,
    width: float,
) -> tuple[Vector, Vector]:
    """Logs of what each cell gives to its lower and to its upper end: see ``rounded``.

    Cell i is from (first + i) width to the next point; ``fixed`` are the edges of the quadrature.
    """
    inner = outputs_at(np.arange(first + 1, last) * width, sample_rate, noise_multiplier)
    inner = np.clip(inner, fixed[0], fixed[-1])
    edges = np.sort(np.concatenate([inner, fixed]))
    starts, ends, lengths = edges[:-1], edges[1:], np.diff(edges)
    cells = np.searchsorted(inner, (ends + starts) / 2, side="right")
    long = lengths > LONG_PIECE * (fixed[1] - fixed[0])
    # Times e^scale, so that what is likely only with the example does not underflow: phi e^R stays
    # below phi's maximum.
    count = last - first
    scale = np.maximum(np.arange(first, last) * width, 0.0)
    down, up = np.zeros(count), np.zeros(count)
    for part, order in ((long, FULL_ORDER), (~long & (lengths > 0), PIECE_ORDER)):
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
        return np.log(down) - scale, np.log(up) - scale


def _edges(noise_multiplier: float, reach: float) -> Vector:
    """Ends of equal intervals over all described outputs, in which log phi and R change by at most
    1.

    The slopes of log phi and of R in x are at most (reach sigma + 1) / sigma^2 and 1 / sigma^2.
    """
    sigma = noise_multiplier
    span = 2 * reach * sigma + 1
    intervals = math.ceil(span * (reach * sigma + 2) / sigma**2)
    return np.linspace(-reach * sigma, 1 + reach * sigma, intervals + 1)


def _legendre(low: Vector, high: Vector, order: int) -> tuple[Rule, Rule]:
    """``order`` nodes and weights in each interval from ``low`` to ``high``."""
    node, weight = _rule(order)  # of the interval from -1 to 1
    half = (high - low)[:, None] / 2
    return low[:, None] + half * (1 + node), half * weight


_rule = lru_cache(np.polynomial.legendre.leggauss)
"""By its arguments alone: never stale."""


def _log_phi(x: Numbers, noise_multiplier: float) -> Numbers:
    return -0.5 * (x / noise_multiplier) ** 2 - math.log(noise_multiplier * math.sqrt(2 * math.pi))


def log_expectations(
    sample_rate: float, noise_multiplier: float, orders: tuple[float, ...]
) -> Float64[np.ndarray, " orders"]:
    """log E[e^(order R)] without the example, by quadrature, for orders of at most 10.

    Under e^(order R) phi, outputs have a mean of at most ``order`` and a deviation of about sigma:
    those within 14 sigma are enough. In an interval log phi and order R change by about 1.
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
