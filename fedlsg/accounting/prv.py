"""Epsilon from privacy random variables (prv-accountant 0.2.0; Gopi, Lee & Wutschitz 2021).

The interval is certified by their Theorem 5.5 up to floating point. What differs from the library's
own class for users:

* The mean of a step's privacy loss, which recentres the grid, is integrated on nodes that follow
  the noise. The library's fixed nodes miss the kink at log(1 - q); it then raises "Discrete mean
  differs", or silently shifts epsilon by T times the error (its repair of 2023 is not on PyPI).
* The grid is widened to a size that the FFT likes (5 times faster). A size that is too large is
  refused before the grid is made. The grid reaches as far as their Remark 5.6 says: that needs a
  Renyi bound. Bisection finds about the best of the library's orders; every order is a bound.
* A step's distribution function is evaluated once for each end of a cell, and not where it is 0 or
  1.
"""

import math
import sys
import warnings
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from scipy.fft import next_fast_len

from fedlsg.accounting.events import AccountingError, Event, Interval


def _convolve(*args: Any, **options: Any) -> Any:
    """``scipy.signal.convolve``, imported on first use."""
    from scipy.signal import convolve

    return convolve(*args, **options)


# The library imports scipy.signal, which takes 0.3 s. Only events that differ need its convolution,
# so a stand-in has its place while the library is imported.
_SIGNAL = "scipy.signal"
if _SIGNAL not in sys.modules:
    stand_in = ModuleType(_SIGNAL)
    vars(stand_in)["convolve"] = _convolve
    sys.modules[_SIGNAL] = stand_in
try:
    from prv_accountant import PoissonSubsampledGaussianMechanism
    from prv_accountant.composers import Heterogeneous
    from prv_accountant.discretisers import CellCentred
    from prv_accountant.domain import Domain
    from prv_accountant.other_accountants import RDP
    from prv_accountant.privacy_random_variables import PrivacyRandomVariableTruncated
finally:
    if vars(sys.modules[_SIGNAL]).get("convolve") is _convolve:
        del sys.modules[_SIGNAL]

MAX_CELLS = 1_500_000
"""Most cells of a grid: about 4 seconds and 0.5 GB. Sigma = .3 over 10,000 steps would take 46 s
and 3.5 GB.
"""
MIN_DELTA = 1e-11
"""Least delta: the FFT's error must stay below delta_error, a thousandth of delta."""
SIGMA_RANGE = (0.05, 1e4)
"""Noise multipliers that are tested; the library hangs at 0, NaN and infinity."""
ERROR_SHARE = 0.005
"""Error of an interval as a share of epsilon."""
SMALLEST_ERROR, LARGEST_ERROR = 1e-4, 0.01
"""Limits of that error."""
ROUGH_ERROR = 0.1
"""Error of the first pass, which estimates a small epsilon."""
ORDERS = RDP([]).orders.tolist()
GAUSS_NODES, GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(20)


@lru_cache(maxsize=4096)  # by its arguments alone: never stale
def interval(events: tuple[Event, ...], delta: float) -> Interval:
    """Bounds on epsilon with an additive error near min(.01, .005 epsilon).

    Raises: AccountingError, with the reason, for a delta or noise out of range, for a grid that
    would be too large, and if the library fails on three grids.
    """
    if delta < MIN_DELTA:
        raise AccountingError(f"{delta=} is below {MIN_DELTA}, what its transform resolves")
    low, high = SIGMA_RANGE
    if not all(low <= e.noise_multiplier <= high for e in events):
        raise AccountingError(
            f"not tried: a noise multiplier is outside [{low}, {high:g}], where the library can "
            "hang"
        )
    # The Renyi bound is at most a third above epsilon: from here on the largest error is allowed.
    about = _renyi_epsilon(_steps_of(events), [e.steps for e in events], delta)
    if about < 1.5 * LARGEST_ERROR / ERROR_SHARE:
        about = _compose_on_three(events, delta, ROUGH_ERROR).estimate
    error = min(LARGEST_ERROR, max(SMALLEST_ERROR, ERROR_SHARE * about))
    return _compose_on_three(events, delta, error)


def _compose_on_three(events: Sequence[Event], delta: float, eps_error: float) -> Interval:
    """``_compose`` on one grid, and on two finer ones if the library fails.

    It fails where a step's whole mass is next to one cell's centre.
    """
    failures = []
    for finer in (1.0, 0.7, 0.45):
        try:
            return _compose(events, delta, finer * eps_error)
        except AccountingError:
            raise
        except (RuntimeError, ValueError, AssertionError, ArithmeticError, IndexError) as error:
            failures.append(f"{type(error).__name__}: {error}")
    raise AccountingError("; ".join(dict.fromkeys(failures)))


def _compose(events: Sequence[Event], delta: float, eps_error: float) -> Interval:
    """Theorem 5.5 on one grid: mesh = eps_error / sqrt(T / 2 log(12 / delta_error)), delta_error =
    delta / 1000.
    """
    mechanisms, steps = _steps_of(events), [e.steps for e in events]
    delta_error = delta / 1000
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        half_width = _half_width(mechanisms, steps, eps_error, delta_error)
        mesh = eps_error / math.sqrt(sum(steps) / 2 * math.log(12 / delta_error))
        domain = _domain(half_width, mesh)
        ends = domain.t_min(), domain.t_max()
        losses = [_TruncatedLoss(mechanism, *ends) for mechanism in mechanisms]
        parts = [CellCentred().discretise(loss, domain) for loss in losses]
        composed = Heterogeneous(parts).compute_composition(steps)
        lower, estimate, upper = composed.compute_epsilon(delta, delta_error, eps_error)
    if not math.isfinite(upper):
        raise AccountingError(f"prv-accountant returned [{lower}, {upper}]")
    return Interval(lower=max(lower, 0.0), estimate=max(estimate, 0.0), upper=max(upper, 0.0))


def _half_width(
    mechanisms: "list[_Step]", steps: list[int], eps_error: float, delta_error: float
) -> float:
    """Half of the grid's length, as the library's ``compute_safe_domain_size``: Remark 5.6."""
    once = [_renyi_epsilon([step], [1], delta_error / 8 / sum(steps)) for step in mechanisms]
    return max(_renyi_epsilon(mechanisms, steps, delta_error / 4), *once, eps_error) + 3


def _renyi_epsilon(mechanisms: "list[_Step]", steps: list[int], delta: float) -> float:
    """The library's Renyi bound at about the best of its orders.

    From the smallest order on, the bound falls, then rises: bisection finds the minimum.
    """

    @lru_cache  # for this call only
    def bound(place: int) -> float:
        with np.errstate(all="ignore"):
            _, _, upper = RDP(mechanisms, [ORDERS[place]]).compute_epsilon(delta, steps)
        return float(upper)

    low, high = 0, len(ORDERS) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) <= bound(middle + 1) else (middle + 1, high)
    return bound(low)


def _domain(half_width: float, mesh: float) -> Domain:
    """A grid over [-half_width, half_width] that has 0 and a size that is even and quick for an
    FFT.
    """
    needed = 2 * half_width / mesh + 3
    if not needed <= MAX_CELLS:
        raise AccountingError(
            f"not tried: its grid would have {needed:,.0f} cells, more than {MAX_CELLS:,}"
        )
    size = next_fast_len(math.ceil(needed), real=True)
    while size % 2:
        size = next_fast_len(size + 1, real=True)
    # half a cell inside the last node, so that the library's rounding is unambiguous
    edge = (size / 2 - 1.5) * mesh
    return Domain.create_aligned(-edge, edge, mesh)


class _Step(PoissonSubsampledGaussianMechanism):
    """A step whose Renyi divergences are remembered: a grid asks for each of them several times."""

    def rdp(self, alpha: float) -> float:
        return _renyi(float(self.p), float(self.sigma), float(alpha))


def _steps_of(events: Sequence[Event]) -> list[_Step]:
    return [_Step(e.sample_rate, e.noise_multiplier) for e in events]


@lru_cache(maxsize=65536)  # by its arguments alone: never stale; some of 150 orders a setting
def _renyi(sample_rate: float, noise_multiplier: float, order: float) -> float:
    return float(PoissonSubsampledGaussianMechanism(sample_rate, noise_multiplier).rdp(order))


class _TruncatedLoss(PrivacyRandomVariableTruncated):
    """A step's privacy loss, truncated to the grid, with its mean integrated to about 1e-17."""

    def probability(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The masses of adjacent cells from ``a`` to ``b``, relative to that of the grid.

        Outputs that are further than 12 standard deviations from both centres have less than 1e-32.
        """
        edges = np.clip(np.append(a, b[-1]), self.t_min, self.t_max)
        low, high = self._losses(2)
        below = np.where(edges < low, 0.0, np.ones(len(edges), np.longdouble))
        between = (edges >= low) & (edges <= high)
        below[between] = self.prv.cdf(edges[between])
        return np.asarray(np.diff(below) / self.remaining_mass)

    def mean(self) -> float:
        """E[loss] = integral of (1 - F) above 0 less the integral of F below it, F the truncated
        loss's cdf.

        20-point Gauss-Legendre between the losses of 257 equally spaced outputs, 0 and the grid's
        ends: between two such nodes F is smooth.
        """
        ends = self.t_min, self.t_max
        nodes = np.unique(np.clip([*ends, 0.0, *self._losses(257)], *ends))
        half = np.diff(nodes)[:, None] / 2
        t = (nodes[1:] + nodes[:-1])[:, None] / 2 + half * GAUSS_NODES
        below = self.cdf(t)
        tails = np.where(t > 0, 1 - below, -below)
        return np.float64((tails * GAUSS_WEIGHTS * half).sum()).item()

    def _losses(self, count: int) -> np.ndarray:
        """Losses of equally spaced outputs that reach 12 standard deviations past either centre."""
        sigma, q = float(self.prv.sigma), float(self.prv.p)
        outputs = np.linspace(-12 * sigma, 1 + 12 * sigma, count)
        without = math.log1p(-q) if q < 1 else -math.inf
        with_example = math.log(q) + (2 * outputs - 1) / (2 * sigma**2)
        return np.asarray(np.logaddexp(without, with_example))
