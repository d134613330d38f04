"""Inverting an epsilon bound: the smallest noise multiplier, the largest number of steps.

A search takes two functions of its argument: ``cheap`` gives about epsilon in milliseconds, and
``reported`` the epsilon that counts. They differ by a few percent, which hardly change nearby. Both
return infinity where nothing certifies an epsilon, which counts as beyond any target. Results are
kept in memory, and as ``hints`` for other processes.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import astuple
from functools import lru_cache

from fedlsg.accounting import hints
from fedlsg.accounting.certified import certified_or_inf, compose, rough
from fedlsg.accounting.checks import (
    checked_delta,
    checked_epsilon,
    checked_log_ratio,
    checked_noise_multiplier,
    checked_sample_rate,
    checked_steps,
)
from fedlsg.accounting.events import AccountingError, Event, add_log_ratio, split_log_ratio, sum_up
from fedlsg.config.foreign import explain_other_names

SMALLEST_SIGMA, LARGEST_SIGMA = 0.05, 1e6
"""Noise multipliers between which a search looks."""
SIGMA_TOLERANCE = 1e-4
"""Relative error of a noise multiplier that is found."""
MAX_STEPS = 10**8
"""Most steps that a search answers."""

Bound = Callable[[float], float]
"""Epsilon, or about that, as a function of the noise multiplier."""
StepsBound = Callable[[int], float]
"""The same as a function of the number of steps."""


OUT_OF_RANGE = "no noise multiplier up to 1e6 meets it: raise epsilon or delta"
ALMOST_WITHOUT_NOISE = "it is met almost without noise: lower epsilon or delta"


class OutOfReachError(ValueError):
    """No noise multiplier in the searched range meets the target, or all of them do."""


@lru_cache(maxsize=256)  # by its arguments alone: never stale
@explain_other_names
def calibrate_noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    besides: tuple[Event, ...] = (),
    log_ratio: float = 0.0,
) -> float:
    """Smallest sigma whose reported epsilon (the certified upper bound) is within ``epsilon``.

    ``sample_rate``: q in (0, 1]; ``steps``: T; sigma is the noise's standard deviation over the L2
    sensitivity. ``besides`` are events on the same examples at noise of their own (a pruning
    round): the epsilon is that of the composition of the steps with them, which is less than the
    sum of the two epsilons. ``log_ratio``: Lambda of all ``steps`` together.

    Guarantee: ``epsilon(noise_multiplier=sigma, ...).upper <= epsilon`` (``compose`` of all events)
    for the returned sigma, with every Lambda included, and a sigma smaller by 1e-4 of it exceeds
    the target. The search asks for the certified bound, the witness is asked once, about the
    result.

    Raises: ValueError for a setting out of range; AccountingError for a target that no sigma in
    [0.05, 1e6] meets, or that is met without noise, or that 2 Lambda alone exceeds, or if the
    witness contradicts the result.
    """
    sigma = _calibrated(epsilon, delta, sample_rate, steps, besides, log_ratio)
    event = Event(sample_rate=sample_rate, noise_multiplier=sigma, steps=steps, log_ratio=log_ratio)
    compose([event, *besides], delta=delta)
    return sigma


def calibrate_each(
    settings: Collection[tuple[float, int]],
    *,
    epsilon: float,
    delta: float,
    besides: tuple[Event, ...] = (),
    log_ratio: float = 0.0,
) -> dict[tuple[float, int], float]:
    """``calibrate_noise_multiplier`` of several clients, by (sample_rate, steps).

    Differs: the witness, which takes longer than the search, is asked about the smallest and the
    largest of ``settings`` alone.
    """
    ordered = sorted(set(settings))
    for q, steps in {*ordered[:1], *ordered[-1:]}:
        calibrate_noise_multiplier(
            epsilon=epsilon,
            delta=delta,
            sample_rate=q,
            steps=steps,
            besides=besides,
            log_ratio=log_ratio,
        )
    return {
        (q, steps): _calibrated(epsilon, delta, q, steps, besides, log_ratio)
        for q, steps in ordered
    }


@lru_cache(maxsize=4096)  # by its arguments alone: never stale
def _calibrated(
    epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    besides: tuple[Event, ...],
    log_ratio: float,
) -> float:
    """The search of ``calibrate_noise_multiplier``, without the witness."""
    target, delta = checked_epsilon(epsilon), checked_delta(delta)
    q = checked_sample_rate(sample_rate)
    steps = checked_steps(steps)
    log_ratio = checked_log_ratio(log_ratio)

    def events(sigma: float) -> list[Event]:
        return [
            Event(sample_rate=q, noise_multiplier=sigma, steps=steps, log_ratio=log_ratio),
            *besides,
        ]

    def reported(sigma: float) -> float:
        return certified_or_inf(events(sigma), delta)

    added = add_log_ratio(0.0, split_log_ratio(events(1.0))[1])
    if added >= target:
        raise AccountingError(
            f"{epsilon=} is not above {added:.3g}, what discrete noise adds: take a finer grid"
        )

    def holds(hint: hints.Answer) -> bool:
        """Whether the guarantee holds of an earlier answer."""
        return (
            len(hint) == 1
            and (sigma := hint[0]) > 0
            and (reported(sigma) <= target < reported(sigma * (1 - SIGMA_TOLERANCE)))
        )

    try:
        (smallest,) = hints.checked(
            "sigma",
            (target, delta, q, steps, [astuple(e) for e in besides], log_ratio),
            holds=holds,
            search=lambda: (
                smallest_sigma(lambda sigma: rough(events(sigma), delta), reported, target),
            ),
        )
    except OutOfReachError as error:
        raise AccountingError(
            f"{epsilon=} for {sample_rate=}, {steps=}, {delta=}: {error}"
        ) from None
    return smallest


@lru_cache(maxsize=4096)  # by its arguments alone: never stale
def max_steps(
    *,
    epsilon: float,
    delta: float,
    sample_rate: float,
    noise_multiplier: float,
    besides: tuple[Event, ...] = (),
    log_ratio: float = 0.0,
) -> int:
    """Largest number of steps whose reported epsilon, with ``besides``, is within ``epsilon``.

    0 if one step exceeds it.
    ``log_ratio``: Lambda of one step; n steps have n times as much.
    Guarantee: n steps are within the budget and n + 1 are not (or n is the search's end, 10^8).
    What no accountant certifies counts as beyond the budget.

    Raises: ValueError for a setting out of range.
    """
    target, delta = checked_epsilon(epsilon), checked_delta(delta)
    q, sigma = checked_sample_rate(sample_rate), checked_noise_multiplier(noise_multiplier)
    ratio_of_step = checked_log_ratio(log_ratio)

    def events(steps: int) -> list[Event]:
        ratio_of_steps = sum_up([steps * ratio_of_step])
        event = Event(sample_rate=q, noise_multiplier=sigma, steps=steps, log_ratio=ratio_of_steps)
        return [event, *besides]

    def reported(steps: int) -> float:
        return certified_or_inf(events(steps), delta)

    def holds(hint: hints.Answer) -> bool:
        """Whether the guarantee holds of an earlier answer."""
        return (
            len(hint) == 1
            and 1 <= (n := int(hint[0])) < MAX_STEPS
            and reported(n) <= target < reported(n + 1)
        )

    (most,) = hints.checked(
        "steps",
        (target, delta, q, sigma, [astuple(e) for e in besides], ratio_of_step),
        holds=holds,
        search=lambda: (
            largest_steps(lambda steps: rough(events(steps), delta), reported, target),
        ),
    )
    return int(most)


def smallest_sigma(cheap: Bound, reported: Bound, target: float) -> float:
    """The smallest sigma with ``reported(sigma) <= target``, to SIGMA_TOLERANCE.

    Both bounds fall with sigma. Newton's method on log epsilon as a function of log sigma; it stays
    between the largest sigma that is too small and the smallest one that is enough.
    Guarantee: ``reported`` itself, and no extrapolation, was asked about the returned sigma.

    Raises: OutOfReachError.
    """
    try:
        sigma = crossing(cheap, target, *_bracket(cheap, target))
    except OutOfReachError:  # with ``besides``, the cheap bound alone may be above the target
        sigma = crossing(reported, target, *_bracket(reported, target))
    slope = -1.0  # d log epsilon / d log sigma, from the last two finite answers
    previous_sigma, previous_epsilon = 0.0, 0.0
    too_small, enough = 0.0, math.inf
    for _ in range(100):
        epsilon = reported(sigma)
        if 0 < epsilon < math.inf:
            if previous_sigma not in (0.0, sigma):
                change = math.log(epsilon / previous_epsilon)
                slope = min(max(change / math.log(sigma / previous_sigma), -50.0), -0.05)
            previous_sigma, previous_epsilon = sigma, epsilon
        if epsilon <= target:
            enough = min(enough, sigma)
            # by the slope, sigma is at most 0.3 tolerances above the smallest one
            if epsilon >= target * (1 + 0.3 * SIGMA_TOLERANCE * slope):
                return sigma
            if sigma <= SMALLEST_SIGMA:
                raise OutOfReachError(ALMOST_WITHOUT_NOISE)
        else:
            too_small = max(too_small, sigma)
            if sigma >= LARGEST_SIGMA:
                raise OutOfReachError(OUT_OF_RANGE)
        if enough <= too_small * (1 + 0.5 * SIGMA_TOLERANCE):
            return enough
        sigma = _next_sigma(sigma, epsilon, target, slope, too_small, enough)
    raise OutOfReachError("the search for a noise multiplier does not end: change the target")


def _next_sigma(
    sigma: float, epsilon: float, target: float, slope: float, too_small: float, enough: float
) -> float:
    """The sigma to try next: a Newton step, else the bracket's middle, else twice or half of it.

    ``epsilon``: at ``sigma``. ``too_small`` is 0, and ``enough`` infinite, if no such sigma is
    known.
    """
    low, high = too_small or min(SMALLEST_SIGMA, sigma), min(enough, LARGEST_SIGMA)
    if 0 < epsilon < math.inf:
        # A tenth of the tolerance inside the target: one or two corrections then end the search.
        newton: float = sigma * ((epsilon / target) ** (-1 / slope) * (1 + SIGMA_TOLERANCE / 10))
        if low < newton < high:
            return newton
    if too_small and enough < math.inf:
        return math.sqrt(low * high)
    return max(sigma / 2, SMALLEST_SIGMA) if epsilon <= target else min(sigma * 2, LARGEST_SIGMA)


def largest_steps(cheap: StepsBound, reported: StepsBound, target: float) -> int:
    """The largest n <= MAX_STEPS with ``reported(n) <= target``; 0 if one step exceeds it.

    Both bounds rise with n.
    Guarantee: ``reported`` was called at n and at n + 1 (unless n is 0 or MAX_STEPS).
    """
    if cheap(1) > target and reported(1) > target:  # the cheap bound is loosest at few steps
        return 0
    end = 1
    while end < MAX_STEPS and cheap(end) <= target:
        end = min(8 * end, MAX_STEPS)
    steps = end
    if end > 1 and cheap(end) > target:
        steps = round(crossing(lambda n: cheap(max(1, round(n))), target, max(1, end // 8), end))
    within, beyond = 0, MAX_STEPS + 1
    for attempt in range(80):
        steps = min(max(steps, within + 1), beyond - 1)
        epsilon = reported(steps)
        if epsilon <= target:
            within = steps
        else:
            beyond = steps
        if beyond - within == 1:
            return within
        if attempt >= 6 or not 0 < epsilon < math.inf:
            steps = (within + beyond) // 2
        else:  # epsilon grows about like the square root of the number of steps
            steps = round(steps * (target / epsilon) ** 2) + (0 if epsilon > target else 1)
    raise AssertionError("a bracket of 10^8 integers is halved at most 27 times")


def crossing(function: Bound, target: float, low: float, high: float) -> float:
    """About where a monotone function crosses ``target`` between ``low`` and ``high``.

    It is searched in logarithms, to 1 %: a start for the search by ``reported``. ``low`` where the
    function does not cross.
    """
    from scipy.optimize import brentq  # a quarter of a second, and most processes never search

    def excess(log_x: float) -> float:
        return math.log(min(max(function(math.exp(log_x)), 1e-9), 1e9) / target)

    log_low, log_high = math.log(low), math.log(high)
    if excess(log_low) * excess(log_high) > 0:
        return low
    return math.exp(brentq(excess, log_low, log_high, xtol=1e-2))


def _bracket(cheap: Bound, target: float) -> tuple[float, float]:
    """Two sigmas at most a factor of 2 apart: epsilon is above the target at the lower one only."""
    low = high = 1.0
    while cheap(high) > target:
        low = high
        if low >= LARGEST_SIGMA:
            raise OutOfReachError(OUT_OF_RANGE)
        high *= 2
    while cheap(low) <= target:
        high = low
        if high <= SMALLEST_SIGMA:
            raise OutOfReachError(ALMOST_WITHOUT_NOISE)
        low = max(low / 2, SMALLEST_SIGMA)
    return low, high


def forget() -> None:
    """Empty this process's memory of searches, for measurements and for tests that plant errors."""
    for cached in (calibrate_noise_multiplier, _calibrated, max_steps):
        cached.cache_clear()
