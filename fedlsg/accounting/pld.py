"""Epsilon from privacy loss distributions on a grid, composed under an exponential tilt; certified
from above.

Symbols: S is the sum of all steps' losses, K(theta) = log E[e^(theta S)], delta(epsilon) = E[(1 -
e^(epsilon - S))+], h the grid's width, T the number of steps, u = 2^-53. Removal and addition of an
example are two such sums: both are bounded, and the larger epsilon counts.

A step's loss is rounded to the grid by connect the dots (`step.rounded`), which lowers no delta.
Its masses p are tilted, p_theta(l) = p(l) e^(theta l) / E[e^(theta l)], with theta where the tail
at epsilon becomes the middle of the tilted law. T-fold convolution and tilt commute, so with g =
the T-fold convolution of p_theta

    delta(epsilon) = e^(K(theta) - theta epsilon) sum of g(s) e^(-theta (s - epsilon)) (1 -
    e^(epsilon - s))+.

g comes from one FFT, a power and the inverse. Its errors are absolute, about T u, next to a sum
that is of order 1: the factor in front, which is the Chernoff bound, carries the size of delta.
Without a tilt they would be absolute errors of delta, larger than any delta below 1e-11. What is
added to delta, at every epsilon:

* FFT. |f^ - f| <= e = `tilt.FFT_PASS_ROUNDING` log2(N) u for each coefficient of a law with sum 1,
  so that of the product is off by at most prod (|f^| + 2 e)^T - prod (|f^| + e)^T. The mean of that
  over frequencies, and e prod (|f^| + e)^T for the inverse, bound the error of every g(s); the sum
  of the weights turns it into one of delta. Where it is not small (large losses that are rare: the
  tilted law has no middle at epsilon), the transforms take extended precision.
* Aliasing. The transform is periodic: g(s) also has the mass at s + j N h. That only adds. What is
  above the window is missing there, and is added whole: P(S > top) <= e^(K(theta') - theta' top)
  for the best theta' (Chernoff).
* Outputs that are not described (`step.outside`), T times.
* Rounding of masses, T `step.MASS_ROUNDING` of delta. That of losses, a few u each, is added to
  epsilon.

h is chosen so that rounding to the grid costs `tilt.EPSILON_SHARE` of epsilon: by Hoeffding's lemma
it adds at most theta (1 + theta) h^2 / 8 to a step's K, on average 1 / 12.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fedlsg.accounting.events import AccountingError, Event, Interval
from fedlsg.accounting.step import MASS_ROUNDING
from fedlsg.accounting.tilt import (
    EPSILON_SHARE,
    MAX_WINDOW,
    Curve,
    Sum,
    TiltedGrid,
    plan,
    solve,
    tilted,
)

MANY, MOST_WORK = 16, 2**24
"""Above so many different events, the most points of the grid times events: about ten seconds."""


@lru_cache(maxsize=4096)  # by its arguments alone: never stale
def interval(events: tuple[Event, ...], delta: float) -> Interval:
    """Bounds on the larger epsilon of both directions of add/remove.

    ``estimate`` is the upper bound less the grid's error.
    Raises: AccountingError where the grid would not fit in memory, or float64 does not resolve
    delta.
    """
    removal = _bounds(Sum.of(events, delta, removal=True), delta, 0.0)
    most = largest_addition(events)
    if most <= removal.upper:
        return removal
    addition = _bounds(Sum.of(events, delta, removal=False), delta, removal.upper)
    return Interval(
        lower=max(removal.lower, addition.lower),
        estimate=max(removal.estimate, min(addition.estimate, most)),
        upper=max(removal.upper, min(addition.upper, most)),
    )


def largest_addition(events: Sequence[Event]) -> float:
    """The largest loss that addition can have: the sum of -log(1 - q) over steps."""
    if any(e.sample_rate == 1.0 for e in events):
        return math.inf
    return sum(-e.steps * math.log1p(-e.sample_rate) for e in events) * (1 + 1e-9)


@lru_cache(maxsize=4096)  # by its arguments alone: never stale
def chernoff(events: tuple[Event, ...], delta: float) -> float:
    """About epsilon, a few percent above it: the Renyi bound at the best real order, without a
    grid.
    """
    sums = [Sum.of(events, delta, removal=removal) for removal in (True, False)]
    return max(_saddle(total, delta)[1] for total in sums)


def _bounds(total: Sum, delta: float, other: float) -> Interval:
    """Bounds for one direction, on finer and finer grids until the grid costs little.

    ``other``: the upper bound of the other direction; this one need not be sharp below it.
    """
    theta, renyi = _saddle(total, delta)
    surely = renyi * (1 + 1e-6)
    if surely < other:
        return Interval(lower=0.0, estimate=0.0, upper=max(surely, 0.0))
    _, _, variance = total.moments(theta)
    theta = min(max(theta, 0.5 / math.sqrt(variance)), total.steepest / 2)
    scale = max(renyi, 0.1 * math.sqrt(variance))
    best: Interval | None = None
    before = math.inf
    for _ in range(12):
        try:
            grid = plan(total, delta, theta, scale)
            different = len(total.events)
            if different > MANY and grid.cells * different > MOST_WORK:
                raise AccountingError(
                    f"{different} different events on {grid.cells:,} points take minutes"
                )
            bounds, added = _composed(total, grid, delta)
        except AccountingError:  # a finer grid does not fit: the coarser one's answer holds
            if best is None:
                raise
            break
        best = bounds if best is None or bounds.upper < best.upper else best
        upper = bounds.upper
        fine = added <= 1.5 * EPSILON_SHARE * upper
        # `added` supposes a grid that is fine next to epsilon; where it is not, two widths must
        # agree.
        settled = upper >= 200 * grid.width or before - upper <= EPSILON_SHARE * upper
        if upper == 0 or (fine and settled) or grid.cells > MAX_WINDOW / 4:
            break
        before = upper
        scale *= 0.25 if fine else min(0.5, EPSILON_SHARE * upper / added)
    assert best is not None
    return best


def _saddle(total: Sum, delta: float) -> tuple[float, float]:
    """(theta, a bound of epsilon): Canonne, Kamath & Steinke 2020, proposition 12, at the best
    order 1 + theta.

    Guarantee: it is an upper bound. ``left_out`` is the error of the nodes in K: six nodes in an
    interval leave out a term of order 12 in theta. Outputs that are not described lower delta.
    """
    steepest = total.steepest
    log_delta = math.log(delta - total.outside)
    theta = solve(lambda t, k, mean: t * mean - k + math.log1p(t) + log_delta, total, steepest)
    left_out = 2e-16 * total.steps * (1 + 3 * theta / steepest) ** 12
    k = total.moments(theta)[0] + left_out + 1e-9
    return theta, (k - log_delta - math.log1p(theta)) / theta + math.log(theta / (1 + theta))


def _added(total: Sum, grid: TiltedGrid, fall: float) -> float:
    """About how much rounding to the grid adds to epsilon.

    ``fall``: - d log delta / d epsilon, there.
    """
    steep = max(grid.theta, fall)
    moved = min(grid.width, (1 + steep) * grid.width**2 / 12)
    return total.steps * moved * max(1.0, grid.theta / fall)


def _composed(total: Sum, grid: TiltedGrid, delta: float) -> tuple[Interval, float]:
    """Bounds on one grid, and about how much of the upper one the grid adds.

    The upper bound is where the composed delta, with all errors added, is ``delta``.
    """
    growth = math.expm1(MASS_ROUNDING * total.steps + 1e-9)
    target = (delta - total.outside - grid.above) / (1 + growth)
    curve = tilted(total, grid, np.float64)
    upper = curve.epsilon(target)
    # Rare large losses leave large errors (see FFT above). Extended precision takes up to a GB.
    if (
        total.steps > 1
        and grid.cells <= MAX_WINDOW // 2
        and not curve.fft_error(upper) <= 1e-4 * delta
    ):
        curve = tilted(total, grid, np.longdouble)
        upper = curve.epsilon(target)
    upper = upper * (1 + 1e-9) + total.rounding if upper > 0 else 0.0
    if not math.isfinite(upper):
        raise AccountingError(f"no finite epsilon on a grid of {grid.cells:,} points at {delta=}")
    lower = min(_lower(total, grid, curve, delta), upper)
    added = _added(total, grid, curve.fall(upper)) if upper > 0 else 0.0
    return Interval(lower=lower, estimate=max(upper - added, lower), upper=upper), added


def _lower(total: Sum, grid: TiltedGrid, curve: Curve, delta: float) -> float:
    """Certified lower bound of epsilon in this direction.

    S on the grid exceeds S by more than ``moved`` with a probability of at most delta / 100. Each
    loss moves within an interval of length h, by at most h^2 / 8 on average (Hoeffding's lemma,
    since the mean of e^-loss stays); the sum over steps is Hoeffding's inequality. Another 0.004
    delta is for aliasing: together less than the 0.015 by which delta is raised.
    """
    steps, width = total.steps, grid.width
    likely = steps * width**2 / 8 + width * math.sqrt(steps * math.log(100 / delta) / 2)
    moved = min(steps * width, likely)
    epsilon = curve.epsilon(delta * 1.015, errors=-1.0)
    if grid.aliased(epsilon) > 0.004 * delta:
        return 0.0
    return max(epsilon * (1 - 1e-9) - moved - total.rounding, 0.0)
