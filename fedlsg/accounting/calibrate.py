"""Inverting an epsilon bound: the smallest noise multiplier, the largest number of steps.

Both searches take two functions: ``cheap`` finds the neighbourhood, ``reported`` (both accountants, seconds a
call) has the last word. They differ by a fraction of a percent whose size hardly changes nearby, so one or two
corrections settle it. Both return infinity where nothing certifies an epsilon, which counts as beyond any target.
"""

import math
from collections.abc import Callable

SMALLEST_SIGMA, LARGEST_SIGMA = 0.05, 1e6
SIGMA_TOLERANCE = 1e-4
MAX_STEPS = 10**8

Bound = Callable[[float], float]
StepsBound = Callable[[int], float]


class OutOfReachError(ValueError):
    """No argument in the searched range meets the target, or all of them do."""


def smallest_sigma(cheap: Bound, reported: Bound, target: float) -> float:
    """The smallest sigma with ``reported(sigma) <= target``, to SIGMA_TOLERANCE; both bounds fall with sigma.

    Guarantee: the returned sigma meets the target by ``reported``'s own answer, not by extrapolation.

    Raises: OutOfReachError.
    """
    sigma = crossing(cheap, target, *_bracket(cheap, target))
    near, further = cheap(sigma), cheap(sigma * 1.02)
    if not 0 < further <= near < math.inf:
        raise OutOfReachError("epsilon falls to 0 here, within delta alone: raise epsilon, or lower delta")
    slope = min(math.log(further / near) / math.log(1.02), -0.05)
    too_small, enough = 0.0, math.inf
    for _ in range(30):
        found = reported(sigma)
        if found <= target:
            enough = min(enough, sigma)
            if found >= target * (1 + 0.8 * SIGMA_TOLERANCE * slope):
                return sigma
        else:
            too_small = max(too_small, sigma)
        if enough <= too_small * (1 + SIGMA_TOLERANCE):
            return enough
        # Aim a third of the tolerance inside the target: one correction then usually ends the search.
        step = (found / target) ** (-1 / slope) * (1 + SIGMA_TOLERANCE / 3) if 0 < found < math.inf else 1.01
        if too_small < sigma * step < enough:
            sigma *= step
        else:
            sigma = math.sqrt(too_small * enough) if too_small > 0 and enough < math.inf else sigma * 1.01
    raise OutOfReachError("no noise multiplier satisfies both accountants: change the target")


def largest_steps(cheap: StepsBound, reported: StepsBound, target: float) -> int:
    """The largest n with ``reported(n) <= target``, at most MAX_STEPS, 0 if there is none; both bounds rise with n.

    Guarantee: ``reported`` was called at n and at n + 1 (unless n is MAX_STEPS).
    """
    if cheap(1) > target:
        return 0
    end = 1
    while end < MAX_STEPS and cheap(end) <= target:
        end = min(8 * end, MAX_STEPS)
    steps = end
    if cheap(end) > target:
        steps = round(crossing(lambda n: cheap(max(1, round(n))), target, max(1, end // 8), end))
    within, beyond = 0, MAX_STEPS + 1
    for attempt in range(80):
        steps = min(max(steps, within + 1), beyond - 1)
        found = reported(steps)
        if found <= target:
            within = steps
        else:
            beyond = steps
        if beyond - within == 1:
            return within
        if attempt >= 6 or not 0 < found < math.inf:
            steps = (within + beyond) // 2
        else:  # epsilon grows about like the square root of steps: one correction ends next to the root
            steps = round(steps * (target / found) ** 2) + (0 if found > target else 1)
    raise AssertionError("a bracket of 10^8 integers is halved at most 27 times")


def crossing(function: Bound, target: float, low: float, high: float) -> float:
    """About where a monotone function crosses ``target`` between ``low`` and ``high``, searched in logarithms.

    The accountants' own steps of 1e-4 make a finer root pointless.
    """

    from scipy.optimize import brentq  # a quarter of a second, and most processes never search

    def excess(log_x: float) -> float:
        return math.log(min(max(function(math.exp(log_x)), 1e-9), 1e9) / target)

    log_low, log_high = math.log(low), math.log(high)
    if excess(log_low) * excess(log_high) > 0:
        return low
    return math.exp(brentq(excess, log_low, log_high, xtol=1e-4))


def _bracket(cheap: Bound, target: float) -> tuple[float, float]:
    """Two sigmas at most a factor of 2 apart, the lower one above the target and the higher one within it."""
    low = high = 1.0
    while cheap(high) > target:
        if (low := high) >= LARGEST_SIGMA:
            raise OutOfReachError("no noise multiplier up to 1e6 meets it: raise epsilon or delta")
        high *= 2
    while cheap(low) <= target:
        if (high := low) <= SMALLEST_SIGMA:
            raise OutOfReachError("it is met almost without noise: lower epsilon or delta")
        low = max(low / 2, SMALLEST_SIGMA)
    return low, high
