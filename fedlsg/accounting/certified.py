"""Epsilon of Poisson-subsampled Gaussian steps, certified and witnessed.

The reported epsilon is a certified upper bound: the closed form if every step takes the full batch
("gaussian"), else that of privacy loss distributions ("pld"), or the Renyi bound ("renyi") where
that is smaller or no grid fits. prv-accountant, another library, is the witness: where its lower
end exceeds the reported bound, one of the two is wrong, and nothing is reported.

The unit of privacy is one example, under add/remove adjacency. Disjoint clients compose in
parallel: take the maximum over clients, never a sum.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, replace
from types import ModuleType

from fedlsg.accounting import hints
from fedlsg.accounting.checks import checked_delta
from fedlsg.accounting.events import (
    AccountingError,
    EpsilonBound,
    Event,
    Interval,
    add_log_ratio,
    canonical,
    coarsen,
    describe,
    smaller_delta,
    split_log_ratio,
)
from fedlsg.accounting.exact_gaussian import gaussian_interval
from fedlsg.accounting.renyi_bound import renyi_interval
from fedlsg.config.foreign import explain_other_names
from fedlsg.user_code.short_traceback import short_traceback

Intervals = dict[str, Interval]

ACCOUNTANTS = ("prv", "pld")
SMALLEST_NOISE = 0.02
"""Noise multiplier below which no accountant is asked: one sampled step loses an epsilon of 1,000
or more.
"""
MAX_WITNESSED_SETTINGS = 8
"""Different (q, sigma) up to which the witness is asked: it takes a second for each."""
MAX_SETTINGS = 256
"""Different (q, sigma) from which events are merged to fewer that lose more."""
HOPELESS = 1e4
"""Sum of T (q / sigma)^2 from which many different settings have no bound on a grid: it takes
minutes, and epsilon is in the thousands.
"""


@short_traceback
@explain_other_names
def epsilon(
    *,
    sample_rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
    accountants: Sequence[str] = ACCOUNTANTS,
) -> EpsilonBound:
    """Epsilon at ``delta`` of T = ``steps`` Poisson-subsampled Gaussian steps on the same examples.

    ``sample_rate``: q, the chance that an example enters a step's batch, in (0, 1].
    ``noise_multiplier``: sigma, the noise's standard deviation over the L2 sensitivity of all that
    a step releases. Unit of privacy: one example, under add/remove adjacency.
    Guarantee: the true epsilon is not above ``.upper``, which is the number to report; see
    ``compose``.
    Source: Balle & Wang 2018 ("gaussian"); Doroshenko et al. 2022 ("pld"); Gopi et al. 2021 ("prv",
    the witness).
    Raises ValueError for a setting out of range; AccountingError if no accountant certifies a
    finite epsilon.
    """
    event = Event(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=steps)
    return compose([event], delta=delta, accountants=accountants)


def compose(
    events: Sequence[Event], *, delta: float, accountants: Sequence[str] = ACCOUNTANTS
) -> EpsilonBound:
    """Epsilon at ``delta`` of all events on the same examples; their order does not matter.

    Guarantee: the true epsilon is not above ``upper``, a bound that holds with its own rounding. It
    is at most .1 % above the true value where a grid fits: delta from 1e-2 to 1e-15, up to 10^7
    steps. ``witness`` is "prv" if prv-accountant answered and its interval allows ``upper``, else
    "unwitnessed"; ``failures`` says why.
    No events, no release: 0. ``accountants=("pld",)`` leaves out the witness, for searches and a
    progress display; the reported number takes both. Cost is bounded: more than
    ``MAX_WITNESSED_SETTINGS`` different (q, sigma) have no witness, more than ``MAX_SETTINGS`` are
    merged to fewer that lose more (``events.coarsen``): ``upper`` still holds, ``lower`` is 0.

    Events with a Lambda: the accountants are asked at delta e^-Lambda, Lambda the sum of all, and 2
    Lambda is added to every ``estimate`` and ``upper``. ``lower`` is then what they say of the
    Gaussian mechanisms at delta e^-Lambda. It is no lower bound of the release.

    Raises: ValueError for a setting out of range; AccountingError if no accountant certifies a
    finite epsilon, or if Lambda is so large that delta e^-Lambda is no normal float.
    """
    delta = checked_delta(delta)
    if not accountants or not set(accountants) <= set(ACCOUNTANTS):
        raise ValueError(f"expected {accountants=} among {ACCOUNTANTS}")
    plain, log_ratio = split_log_ratio(events)
    merged, delta = canonical(plain), smaller_delta(delta, log_ratio)
    if not merged:
        return EpsilonBound(
            lower=0.0, estimate=0.0, upper=0.0, accountant="none", intervals={}, failures={}
        )
    intervals: Intervals = {}
    failures = {name: "not asked" for name in ACCOUNTANTS if name not in accountants}
    for name in (name for name in ACCOUNTANTS if name in accountants):
        answer = _witness(merged, delta) if name == "prv" else _certified(merged, delta, failures)
        if isinstance(answer, str):
            failures[name] = answer
        else:
            intervals.update(answer)
    if not intervals or ("pld" in accountants and set(intervals) == {"prv"}):
        reasons = "; ".join(f"{name}: {text}" for name, text in failures.items())
        raise AccountingError(
            f"no accountant certifies an epsilon for {describe(merged)} at delta {delta:.6g}: give "
            f"a larger noise multiplier, or an epsilon in its place ({reasons})"
        )
    name = min(
        (name for name in intervals if name != "prv"),
        key=lambda name: intervals[name].upper,
        default="prv",
    )
    witness = _agreement(intervals, name, merged, delta)
    intervals = {name: _raised(interval, log_ratio) for name, interval in intervals.items()}
    best = intervals[name]
    return EpsilonBound(
        lower=best.lower,
        estimate=best.estimate,
        upper=best.upper,
        accountant=name,
        witness=witness,
        intervals=intervals,
        failures=failures,
    )


def _certified(
    events: tuple[Event, ...], delta: float, failures: dict[str, str]
) -> Intervals | str:
    """The certified bounds by their names, or why there is none.

    ``failures`` gets the reason if there is a Renyi bound alone.
    """
    if _full_batches(events):
        return {"gaussian": gaussian_interval(events[0].noise_multiplier, delta)}
    if min(e.noise_multiplier for e in events) < SMALLEST_NOISE:
        return f"not tried: a noise multiplier is below {SMALLEST_NOISE:g}"
    merged = len(events) > MAX_SETTINGS
    coarse = coarsen(events, MAX_SETTINGS)
    many = len(coarse) > MAX_WITNESSED_SETTINGS
    lost = math.fsum(e.steps * (e.sample_rate / e.noise_multiplier) ** 2 for e in coarse)
    answer: Interval | str = "not tried: epsilon is in the thousands"
    if not many or lost <= HOPELESS:
        answer = _answer("pld", coarse, delta)
    if isinstance(answer, str):
        failures["pld"] = answer
        return {"renyi": renyi_interval(coarsen(events, 4 * MAX_SETTINGS), delta)}
    pld = replace(answer, lower=0.0) if merged else answer
    # The Renyi bound of many events takes longer than this one, and is rarely smaller.
    if not merged and (many or _below_renyi(pld, coarse, delta)):
        return {"pld": pld}
    renyi = renyi_interval(coarsen(events, 4 * MAX_SETTINGS), delta)
    return {"pld": pld, "renyi": renyi} if renyi.upper < pld.upper else {"pld": pld}


def _below_renyi(bound: Interval, events: tuple[Event, ...], delta: float) -> bool:
    """Whether a bound is clearly below the Renyi bound of any order, so that none is computed."""
    least: float = _library("pld").chernoff(events, delta)
    return bound.upper * 1.01 < least


def _witness(events: tuple[Event, ...], delta: float) -> Intervals | str:
    """prv-accountant's interval, or why there is none."""
    if len(events) > MAX_WITNESSED_SETTINGS:
        return (
            f"not asked: {len(events)} different sample rates and noise multipliers, more than "
            f"{MAX_WITNESSED_SETTINGS}"
        )
    failure = ""

    def search() -> tuple[float, ...]:
        nonlocal failure
        answer = _answer("prv", events, delta)
        if isinstance(answer, str):
            failure = answer
            return ()
        return astuple(answer)

    def holds(hint: hints.Answer) -> bool:
        """Whether the interval overlaps the other accountant's: a contradiction is never taken from
        a hint.
        """
        other = _answer("pld", events, delta)
        ordered = len(hint) == 3 and 0 <= hint[0] <= hint[1] <= hint[2]
        return (
            ordered
            and not isinstance(other, str)
            and hint[0] <= other.upper
            and other.lower <= hint[2]
        )

    numbers = hints.checked(
        "witness", ([astuple(e) for e in events], delta), holds=holds, search=search
    )
    if failure:
        return failure
    lower, estimate, upper = numbers
    return {"prv": Interval(lower=lower, estimate=estimate, upper=upper)}


def _full_batches(events: tuple[Event, ...]) -> bool:
    """Whether all merged events are one Gaussian mechanism."""
    return len(events) == 1 and events[0].sample_rate == 1.0


def _answer(name: str, events: tuple[Event, ...], delta: float) -> Interval | str:
    """One accountant's interval, or why there is none; an unforeseen error of a library is a
    refusal.
    """
    library = _library(name)
    try:
        answer: Interval = library.interval(events, delta)
        return answer
    except AccountingError as error:
        return str(error)
    except (
        ArithmeticError,
        ValueError,
        RuntimeError,
        AssertionError,
        IndexError,
        MemoryError,
    ) as error:
        return f"{type(error).__name__}: {error}"


def _library(name: str) -> ModuleType:
    """An accountant's module, imported on first use: its libraries take a second, and most clients
    never need it.
    """
    if name == "prv":
        from fedlsg.accounting import prv as accountant_prv

        return accountant_prv
    from fedlsg.accounting import pld as accountant_pld

    return accountant_pld


def _agreement(intervals: Intervals, name: str, events: tuple[Event, ...], delta: float) -> str:
    """The witness of the reported bound ``name``: "prv", or "unwitnessed" without another answer.

    Raises: AccountingError if prv's lower end exceeds the bound: one of the two is wrong.
    """
    if name == "prv" or "prv" not in intervals:
        return "unwitnessed"
    prv, reported = intervals["prv"], intervals[name]
    if prv.lower > reported.upper * (1 + 1e-9):
        raise AccountingError(
            f"two accountants contradict each other for {describe(events)} at delta {delta:.6g}: "
            f"{name} says that epsilon is at most {reported.upper:.6g}, prv that it is at least "
            f"{prv.lower:.6g}. No epsilon is reported: take another noise multiplier or number of "
            "steps, and report these numbers as a bug"
        )
    return "prv"


def _raised(interval: Interval, log_ratio: float) -> Interval:
    """The interval whose ``estimate`` and ``upper`` have 2 Lambda added."""
    estimate = add_log_ratio(interval.estimate, log_ratio)
    upper = add_log_ratio(interval.upper, log_ratio)
    return Interval(lower=interval.lower, estimate=estimate, upper=upper)


def rough(events: Sequence[Event], delta: float) -> float:
    """About epsilon, a few percent above it, in a few milliseconds: the start of a search."""
    plain, log_ratio = split_log_ratio(events)
    try:
        merged = canonical(plain)
        if _full_batches(merged):
            return certified_or_inf(events, delta)
        if min(e.noise_multiplier for e in merged) < SMALLEST_NOISE:
            return math.inf
        merged = coarsen(merged, MAX_SETTINGS)
        return add_log_ratio(
            _library("pld").chernoff(merged, smaller_delta(delta, log_ratio)), log_ratio
        )
    except AccountingError:
        return math.inf


def certified_or_inf(events: Sequence[Event], delta: float) -> float:
    """``upper_or_inf`` without the witness."""
    return upper_or_inf(events, delta, ("pld",))


def upper_or_inf(
    events: Sequence[Event], delta: float, accountants: Sequence[str] = ACCOUNTANTS
) -> float:
    """The certified upper bound of ``compose``, infinite if there is none."""
    try:
        return compose(events, delta=delta, accountants=accountants).upper
    except AccountingError:
        return math.inf
