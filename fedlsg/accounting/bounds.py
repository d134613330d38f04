"""Epsilon of Poisson-subsampled Gaussian steps from two accountants, and its inverses in sigma and in steps.

Every number is computed by prv-accountant and by dp-accounting's privacy loss distributions; both intervals are
kept and the larger upper bound is the epsilon. Unit of privacy: one example, add/remove adjacency. Disjoint
clients compose in parallel: take the maximum over clients, never a sum. Results are cached by value.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType

from fedlsg.accounting import renyi as accountant_renyi
from fedlsg.accounting.calibrate import OutOfReachError, largest_steps, smallest_sigma
from fedlsg.accounting.events import (
    AccountingError,
    EpsilonBound,
    Event,
    Interval,
    canonical,
    checked_delta,
    checked_epsilon,
    checked_log_ratio,
    checked_noise_multiplier,
    checked_sample_rate,
    checked_steps,
    in_words,
    raised,
    smaller_delta,
    split,
    sum_up,
)

ACCOUNTANTS = ("prv", "pld")
SMALLEST_DELTA = 1e-11
"""What both accountants resolve. Below it the closed Renyi bound is what is reported, a tenth to a quarter higher."""


def epsilon(
    *, sample_rate: float, noise_multiplier: float, steps: int, delta: float, accountants: Sequence[str] = ACCOUNTANTS
) -> EpsilonBound:
    """Epsilon at ``delta`` of T = ``steps`` Poisson-subsampled Gaussian steps on the same examples.

    ``sample_rate``: q, the chance that an example enters a step's batch, in (0, 1]. ``noise_multiplier``: sigma, the
    noise's standard deviation over the L2 sensitivity of all that a step releases. Unit of privacy: one example, under
    add/remove adjacency.
    Guarantee: the true epsilon is not above ``.upper``, which is the number to report; see ``compose``.
    Source: Gopi et al. 2021, Theorem 5.5 ("prv"); Doroshenko et al. 2022 ("pld").
    Raises ValueError for a setting out of range; AccountingError if no accountant certifies a finite epsilon.
    """
    event = Event(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=steps)
    return compose([event], delta=delta, accountants=accountants)


def compose(events: Sequence[Event], *, delta: float, accountants: Sequence[str] = ACCOUNTANTS) -> EpsilonBound:
    """Epsilon at ``delta`` of all events on the same examples; their order does not matter.

    Guarantee: ``upper`` is the larger upper bound of the accountants that answered, each of which certifies
    that the true epsilon is not above its own. Below `SMALLEST_DELTA` it is the Renyi bound ("renyi").
    No events, no release: 0. ``accountants=("pld",)`` suffices for a progress display; the reported number takes both.

    Events with a Lambda: the accountants are asked at delta e^-Lambda, Lambda the sum of all, and 2 Lambda is added to
    every ``estimate`` and ``upper``. ``lower`` is then what they say of the Gaussian mechanisms at delta e^-Lambda. It
    is no lower bound of the release.

    Raises: ValueError for a setting out of range; AccountingError if no accountant certifies a finite epsilon, or if
    Lambda is so large that delta e^-Lambda is no normal float.
    """
    delta = checked_delta(delta)
    if not accountants or not set(accountants) <= set(ACCOUNTANTS):
        raise ValueError(f"expected {accountants=} among {ACCOUNTANTS}")
    plain, log_ratio = split(events)
    merged, delta = canonical(plain), smaller_delta(delta, log_ratio)
    if not merged:
        return EpsilonBound(lower=0.0, estimate=0.0, upper=0.0, accountant="none", intervals={}, failures={})
    intervals: dict[str, Interval] = {}
    failures = {name: "not asked" for name in ACCOUNTANTS if name not in accountants}
    for name in (name for name in ACCOUNTANTS if name in accountants):
        answer = _answer(name, merged, delta)
        if isinstance(answer, Interval):
            intervals[name] = answer
        else:
            failures[name] = answer
    if not intervals and delta < SMALLEST_DELTA:
        intervals["renyi"] = accountant_renyi.interval(merged, delta)
    if not intervals:
        reasons = "; ".join(f"{name}: {text}" for name, text in failures.items())
        raise AccountingError(
            f"no accountant certifies an epsilon for {in_words(merged)} at delta {delta:.6g}: give a larger noise "
            f"multiplier, or an epsilon in its place ({reasons})"
        )
    if disagreement := _disagreement(intervals):
        failures["agreement"] = disagreement
    name = max(intervals, key=lambda name: intervals[name].upper)
    intervals = {name: _raised(interval, log_ratio) for name, interval in intervals.items()}
    best = intervals[name]
    return EpsilonBound(
        lower=best.lower,
        estimate=best.estimate,
        upper=best.upper,
        accountant=name,
        intervals=intervals,
        failures=failures,
    )


@lru_cache(maxsize=256)
def calibrate_noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    besides: tuple[Event, ...] = (),
    log_ratio: float = 0.0,
) -> float:
    """Smallest sigma whose reported epsilon (both accountants, upper bound) is within ``epsilon``.

    ``sample_rate``: q in (0, 1]; ``steps``: T; sigma is the noise's standard deviation over the L2 sensitivity.
    ``besides`` are events on the same examples at noise of their own (a pruning round): the epsilon is that of the
    composition of the steps with them, which is less than the sum of the two epsilons. ``log_ratio``: Lambda of all
    ``steps`` together.

    Guarantee: ``epsilon(noise_multiplier=sigma, ...).upper <= epsilon`` (``compose`` of all events) for the returned
    sigma, with every Lambda included, and a sigma smaller by 1e-4 of it exceeds the target. The root is found on the
    cheap accountant, then moved along its slope until both agree.

    Raises: ValueError for a setting out of range; AccountingError for a target that no sigma in [0.05, 1e6]
    meets, or that is met without noise, or that 2 Lambda alone exceeds.
    """
    target, delta = checked_epsilon(epsilon), checked_delta(delta)
    q, steps, log_ratio = checked_sample_rate(sample_rate), checked_steps(steps), checked_log_ratio(log_ratio)

    def events(sigma: float) -> list[Event]:
        return [Event(sample_rate=q, noise_multiplier=sigma, steps=steps, log_ratio=log_ratio), *besides]

    if (added := raised(0.0, split(events(1.0))[1])) >= target:
        raise AccountingError(f"{epsilon=} is not above {added:.3g}, what discrete noise adds: take a finer grid")

    try:
        return smallest_sigma(
            lambda sigma: _cheap_or_inf(events(sigma), delta), lambda sigma: upper_or_inf(events(sigma), delta), target
        )
    except OutOfReachError as error:
        raise AccountingError(f"{epsilon=} for {sample_rate=}, {steps=}, {delta=}: {error}") from None


@lru_cache(maxsize=256)
def max_steps(
    *,
    epsilon: float,
    delta: float,
    sample_rate: float,
    noise_multiplier: float,
    besides: tuple[Event, ...] = (),
    log_ratio: float = 0.0,
) -> int:
    """Largest number of steps whose reported epsilon, with ``besides``, is within ``epsilon``; 0 where one exceeds it.

    ``log_ratio``: Lambda of one step; n steps have n times as much.
    Guarantee: n steps are within the budget and n + 1 are not (or n is the search's end, 10^8). What no
    accountant certifies counts as beyond the budget.

    Raises: ValueError for a setting out of range.
    """
    target, delta = checked_epsilon(epsilon), checked_delta(delta)
    q, sigma = checked_sample_rate(sample_rate), checked_noise_multiplier(noise_multiplier)
    each = checked_log_ratio(log_ratio)

    def events(steps: int) -> list[Event]:
        whole = Event(sample_rate=q, noise_multiplier=sigma, steps=steps, log_ratio=sum_up([steps * each]))
        return [whole, *besides]

    return largest_steps(
        lambda steps: _cheap_or_inf(events(steps), delta), lambda steps: upper_or_inf(events(steps), delta), target
    )


def _answer(name: str, events: tuple[Event, ...], delta: float) -> Interval | str:
    """One accountant's interval, or why there is none; an unforeseen error of a library is a refusal."""
    library = _library(name)
    try:
        answer: Interval = library.interval(events, delta)
        return answer
    except AccountingError as error:
        return str(error)
    except (ArithmeticError, ValueError, RuntimeError, AssertionError, IndexError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"


def _library(name: str) -> ModuleType:
    """An accountant's module, imported on first use: its libraries take a second, and most clients never need it."""
    if name == "prv":
        from fedlsg.accounting import prv as accountant_prv

        return accountant_prv
    from fedlsg.accounting import pld as accountant_pld

    return accountant_pld


def _disagreement(intervals: dict[str, Interval]) -> str:
    """Text where two intervals exclude each other; PLD's loose lower bound is replaced by its estimate less .1 %."""
    if len(intervals) < 2:
        return ""
    prv, pld = intervals["prv"], intervals["pld"]
    if prv.lower <= pld.upper and prv.upper >= pld.estimate * 0.999:
        return ""
    return (
        f"prv [{prv.lower:.6g}, {prv.upper:.6g}] and pld [{pld.lower:.6g}, {pld.upper:.6g}] (estimate"
        f" {pld.estimate:.6g}) exclude each other: one of them misses the truth, the larger upper bound is reported"
    )


def _raised(interval: Interval, log_ratio: float) -> Interval:
    """``estimate`` and ``upper`` with 2 Lambda."""
    estimate, upper = raised(interval.estimate, log_ratio), raised(interval.upper, log_ratio)
    return Interval(lower=interval.lower, estimate=estimate, upper=upper)


def _cheap_or_inf(events: Sequence[Event], delta: float) -> float:
    plain, log_ratio = split(events)
    try:
        delta = smaller_delta(delta, log_ratio)
        if delta < SMALLEST_DELTA:
            return raised(accountant_renyi.interval(canonical(plain), delta).upper, log_ratio)
        return raised(_library("pld").upper_bound(canonical(plain), delta), log_ratio)
    except AccountingError:
        return math.inf


def upper_or_inf(events: Sequence[Event], delta: float, accountants: Sequence[str] = ACCOUNTANTS) -> float:
    """The certified upper bound of ``compose``, infinite if there is none."""
    try:
        return compose(events, delta=delta, accountants=accountants).upper
    except AccountingError:
        return math.inf
