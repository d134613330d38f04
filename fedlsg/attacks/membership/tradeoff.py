"""Trade-off curves: how unlikely a claim lets an event become when one example is added or removed.

Symbols: x probability of an event on one data set; g(x) the least probability of the same event on a neighbour.
mu of Gaussian differential privacy (Dong, Roth, Su 2019); q, sigma, steps as in ``fedlsg.accounting``.
A claim "(epsilon, delta) for every epsilon of a curve" says g(x) = max over epsilon of the two lines of ``from_curve``.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

Least = Callable[[float], float]
"""g: from the probability of an event to the least probability that it has on a neighbouring data set."""

POINTS = 256
SMALLEST_DELTA = 1e-9
LARGEST_EPSILON = 500.0
SMALLEST_MU = 1e-12
FINEST, CELLS = 3e-3, 30_000
"""Grid of a privacy loss distribution: its width, or that of so many cells for one step's losses."""


def gaussian(mu: float) -> Least:
    """g of a mu-GDP mechanism: Phi(Phi^-1(x) - mu). One Gaussian step without subsampling has mu = 1 / sigma."""
    if not 0 <= mu < math.inf:
        raise ValueError(f"expected 0 <= {mu=} < inf")
    return lambda x: float(ndtr(ndtri(x) - mu))


def from_curve(epsilons: Float[np.ndarray, " n"], deltas: Float[np.ndarray, " n"]) -> Least:
    """g of a mechanism that is (epsilon_i, delta_i)-DP for every i, in both directions.

    P'(E) >= e^-eps (P(E) - delta), and the same of the complement: P'(E) >= 1 - delta - e^eps (1 - P(E)).
    Guarantee: convex, increasing, never above x; a claim with larger deltas gives a smaller g.
    """
    if epsilons.shape != deltas.shape or not len(epsilons) or bool((epsilons < 0).any()):
        raise ValueError(f"expected as many deltas as epsilons >= 0, got {len(epsilons)} and {len(deltas)}")
    shrink, grow = np.exp(-epsilons), np.exp(epsilons)
    slack = 1 - deltas

    def least(x: float) -> float:
        return max(0.0, float((shrink * (x - deltas)).max()), float((slack - grow * (1 - x)).max()))

    return least


@lru_cache(maxsize=1024)
def subsampled(*, sample_rate: float, noise_multiplier: float, steps: int, delta: float) -> tuple[Least, float]:
    """g of Poisson-subsampled Gaussian steps, and their epsilon at ``delta``, from their privacy loss distribution.

    Guarantee: the deltas are rounded up, so g claims no more than is true, and no audit against it accuses because of
    the grid. One step, or several, at q = 1 are Gaussian and exact: mu = sqrt(steps) / sigma.
    """
    if sample_rate == 1:
        mu = math.sqrt(steps) / noise_multiplier
        return gaussian(mu), gaussian_epsilon(mu, delta)
    reach = 0.5 / noise_multiplier**2 + 10 / noise_multiplier
    try:
        loss = pld.from_gaussian_mechanism(
            noise_multiplier,
            sampling_prob=sample_rate,
            value_discretization_interval=max(FINEST, reach / CELLS),
            use_connect_dots=True,
        ).self_compose(steps)
    except OverflowError:  # so little noise that the loss is beyond a float: a claim of nothing
        return (lambda x: 0.0), math.inf
    end = min(float(loss.get_epsilon_for_delta(SMALLEST_DELTA)), LARGEST_EPSILON)
    epsilons = np.linspace(0.0, max(end, 1e-6), POINTS)
    deltas = np.asarray(loss.get_delta_for_epsilon(epsilons.tolist()), dtype=np.float64)
    return from_curve(epsilons, deltas), float(loss.get_epsilon_for_delta(delta))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) of a mu-GDP mechanism (Dong, Roth, Su 2019, Corollary 2.13)."""
    if mu < SMALLEST_MU:
        return 0.0
    low = math.exp(min(epsilon + float(log_ndtr(-epsilon / mu - mu / 2)), 0.0))
    return max(0.0, float(ndtr(-epsilon / mu + mu / 2)) - low)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """epsilon at ``delta`` of a mu-GDP mechanism; infinite for an infinite mu."""
    if not 0 < delta < 1:
        raise ValueError(f"expected 0 < {delta=} < 1")
    if not math.isfinite(mu):
        return math.inf
    if mu <= 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    end = mu * mu / 2 + mu * (float(-ndtri(delta)) + 1)
    return float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, end, xtol=1e-10))
