"""Epsilon from privacy loss distributions (dp-accounting), rounded so that the answer is never below the
truth.

The upper bound discretises pessimistically by connect-the-dots (Doroshenko et al. 2022), the lower one
optimistically by privacy buckets (Koskela et al. 2020). The first errs by O(h^2) in the grid width h, the
second by about T h / 2, so the lower bound is a loose one for many steps; that it costs one more pass, and is
certified, is its merit.
"""

import math
from collections.abc import Sequence
from functools import lru_cache, reduce

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld

from fedlsg.accounting.events import AccountingError, Event, Interval

MIN_DELTA = 1e-11  # float64 convolutions carry absolute errors of about 1e-15 a unit of mass
MAX_CELLS = 1_000_000  # of one step's grid; building it is a Python loop of about a microsecond a cell
MAX_COMPOSED_CELLS = 30_000_000
COARSEST, FINEST, RATIO = 1e-2, 1e-6, 3.0
MAX_WIDTH = 1.0  # a grid that must be coarser than this belongs to an epsilon in the thousands


@lru_cache(maxsize=4096)
def upper_bound(events: tuple[Event, ...], delta: float) -> float:
    """Certified upper bound on epsilon, within about 1e-4 (relative) of the limit of an ever finer grid."""
    return _refine(events, delta)[0]


@lru_cache(maxsize=4096)
def interval(events: tuple[Event, ...], delta: float) -> Interval:
    """Bounds on epsilon; ``estimate`` is the upper bound extrapolated to h = 0.

    Raises: AccountingError where the grid would not fit in memory, or delta is below what float64 resolves.
    """
    upper, estimate, width = _refine(events, delta)
    lower = min(_epsilon(events, delta, width, pessimistic=False), upper)
    return Interval(lower=lower, estimate=min(max(estimate, lower), upper), upper=upper)


def _refine(events: Sequence[Event], delta: float) -> tuple[float, float, float]:
    """(upper bound, extrapolated estimate, grid width): refine until the O(h^2) error is below 1e-4 of
    epsilon.

    Every width gives a valid upper bound, so stopping early costs tightness and never validity; the smallest
    is kept.
    """
    if delta < MIN_DELTA:
        raise AccountingError(f"{delta=} is below {MIN_DELTA}, what float64 convolutions resolve")
    width = _coarsest_width(events)
    best, previous = math.inf, math.inf
    error, best_width = math.inf, width
    while width >= FINEST and _step_loss_range(events) / width <= MAX_CELLS:
        bound = _epsilon(events, delta, width, pessimistic=True)
        if bound < best:
            best, best_width = bound, width
        error = abs(previous - bound) / (RATIO**2 - 1)
        if error <= max(1e-4 * bound, 1e-5) and bound < math.inf:
            break
        previous, width = bound, width / RATIO
    if not math.isfinite(best):
        raise AccountingError(f"no grid up to {MAX_CELLS:,} cells gives a finite epsilon at {delta=}")
    return best, best - error if math.isfinite(error) else best, best_width


def _epsilon(events: Sequence[Event], delta: float, width: float, *, pessimistic: bool) -> float:
    try:
        parts = [
            pld.from_gaussian_mechanism(
                event.noise_multiplier,
                sampling_prob=event.sample_rate,
                value_discretization_interval=width,
                pessimistic_estimate=pessimistic,
                use_connect_dots=pessimistic,
            ).self_compose(event.steps)
            for event in events
        ]
        epsilon = float(reduce(lambda one, other: one.compose(other), parts).get_epsilon_for_delta(delta))
    except OverflowError:  # the library's tail bound overflows where the grid is far coarser than a step's loss
        epsilon = math.inf if pessimistic else 0.0
    if np.isnan(epsilon):
        raise AccountingError(f"the privacy loss distribution is not a number at grid width {width:g}")
    return epsilon if epsilon > 0 else 0.0


def _step_loss_range(events: Sequence[Event]) -> float:
    """Largest privacy loss of one step inside the library's truncation at 10 standard deviations (mass e^-50)."""
    return max(0.5 / e.noise_multiplier**2 + 10 / e.noise_multiplier for e in events)


def _coarsest_width(events: Sequence[Event]) -> float:
    """Where to start: 0.01, or wider where a step's or the composed grid would not fit; refused beyond
    MAX_WIDTH.

    The composed range is Bernstein's bound on the summed losses: mean at most q / (2 sigma^2) a step,
    variance at most q range^2, tail e^-35.
    """
    largest = _step_loss_range(events)
    mean = sum(e.steps * e.sample_rate * 0.5 / e.noise_multiplier**2 for e in events)
    variance = sum(e.steps * e.sample_rate * _step_loss_range([e]) ** 2 for e in events)
    total = mean + math.sqrt(70 * variance) + 12 * largest
    width = max(COARSEST, 2 * largest / MAX_CELLS, total / MAX_COMPOSED_CELLS)
    if width > MAX_WIDTH:
        raise AccountingError(f"a privacy loss of up to {total:.3g} does not fit the grid: raise the noise multiplier")
    return width
