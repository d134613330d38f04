"""Privacy events and bounds: the input of an accountant, and its result.

Symbols: q is ``sample_rate`` (Poisson inclusion probability of one example in one step), sigma is
``noise_multiplier`` (standard deviation of the noise over the joint L2 sensitivity), T is
``steps``, Lambda is ``log_ratio``. Adjacency is add/remove of one example throughout; replacing one
example counts as a removal and an addition and is not what these numbers bound.

Lambda is for releases that are only nearly these mechanisms (discrete noise,
docs/discrete-noise.md). At every outcome the logarithm of the ratio of both laws is within
+-Lambda. If the mechanisms are (epsilon, delta)-private, the releases are (epsilon + 2 Lambda,
e^Lambda delta)-private. No accountant knows Lambda: ``split_log_ratio`` takes it out,
``smaller_delta`` is what the accountants are asked at, and ``add_log_ratio`` adds it to their
answer.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from fedlsg.accounting.checks import (
    checked_log_ratio,
    checked_noise_multiplier,
    checked_sample_rate,
    checked_steps,
)

LEAST_RATE, MOST_NOISE = 1e-30, 1e30
"""A smaller rate is raised to it, a larger sigma lowered to it: both lose more privacy."""
LEAST_NOISE = 1e-6
"""At or below this sigma full batches have an epsilon above 10^11: refused."""
EVENTS_SHOWN = 4
"""Events that a message lists."""
FINEST_LEVEL = 128.0
"""The finest grid of ``coarsen``: powers 2^(k/n) for integers k, n = 128."""


class AccountingError(ValueError):
    """A privacy loss that no accountant certifies, or a target that no setting reaches."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """``steps`` Poisson-subsampled Gaussian mechanisms with the same (q, sigma).

    sample_rate: q.
    noise_multiplier: sigma, the effective one: noise s.d. over the sensitivity of everything that
        is released in a step. The sigma of one block of a per-block clip understates epsilon; see
        the mechanism that made the noise.
    steps: T.
    log_ratio: Lambda of all ``steps`` together, 0 for Gaussian noise.

    Raises: ValueError unless 0 < q <= 1, sigma is finite and positive, steps is an integer >= 1,
    and Lambda is finite and not negative.
    """

    sample_rate: float
    noise_multiplier: float
    steps: int
    log_ratio: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sample_rate", checked_sample_rate(self.sample_rate))
        object.__setattr__(
            self, "noise_multiplier", checked_noise_multiplier(self.noise_multiplier)
        )
        object.__setattr__(self, "steps", checked_steps(self.steps))
        object.__setattr__(self, "log_ratio", checked_log_ratio(self.log_ratio))


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Epsilon by one accountant: certified ``lower`` and ``upper`` bounds, and an ``estimate``."""

    lower: float
    estimate: float
    upper: float

    def __post_init__(self) -> None:
        if not 0 <= self.lower <= self.estimate <= self.upper < math.inf:
            raise AccountingError(f"expected 0 <= lower <= estimate <= upper < inf, got {self}")


@dataclass(frozen=True, kw_only=True)
class EpsilonBound:
    """Epsilon at one delta.

    lower: a certified lower bound; 0 without one. Of events with a Lambda it is no bound of the
        release: see ``compose``.
    estimate: the best estimate.
    upper: the certified upper bound, and the only number to report.
    accountant: whose bound this is: "gaussian" (closed form), "pld", "renyi"; "prv" if only that
        was asked, "none" without events.
    witness: "prv" if prv-accountant answered and does not contradict it, else "unwitnessed".
    intervals: every answer, by accountant.
    failures: why an accountant failed, refused or was not asked, by its name.
    """

    lower: float
    estimate: float
    upper: float
    accountant: str
    witness: str = "unwitnessed"
    intervals: dict[str, Interval]
    failures: dict[str, str]


def canonical(events: Iterable[Event]) -> tuple[Event, ...]:
    """The fewest events with exactly the same privacy loss, in a fixed order.

    Equal (q, sigma) are merged. All q = 1 events become one: T Gaussian mechanisms compose to a
    single one with sigma = (sum T_i / sigma_i^2)^(-1/2), exactly (Dong, Roth & Su 2022, Cor. 3.3).
    Differs at numbers whose squares no float holds: q below ``LEAST_RATE`` moves up, sigma above
    ``MOST_NOISE`` down.

    Raises: ValueError for an event with a Lambda, which would be lost: ``split_log_ratio`` comes
    first. AccountingError for full batches almost without noise: an epsilon above 10^11.
    """
    events = check_plain(events)
    counts: dict[tuple[float, float], int] = defaultdict(int)
    for event in events:
        counts[max(event.sample_rate, LEAST_RATE), min(event.noise_multiplier, MOST_NOISE)] += (
            event.steps
        )
    full = [(steps, sigma) for (q, sigma), steps in sorted(counts.items()) if q == 1]
    precision = math.fsum(
        steps / sigma**2 if sigma > LEAST_NOISE else math.inf for steps, sigma in full
    )
    if precision > LEAST_NOISE**-2:
        raise AccountingError(
            f"no epsilon is certified of full batches with so little noise: {describe(events)}"
        )
    merged = [
        Event(sample_rate=q, noise_multiplier=sigma, steps=steps)
        for (q, sigma), steps in sorted(counts.items())
        if q < 1
    ]
    if precision > 0:
        merged.append(Event(sample_rate=1.0, noise_multiplier=precision**-0.5, steps=1))
    return tuple(merged)


def describe(events: Iterable[Event]) -> str:
    """The first EVENTS_SHOWN events for a message: "noise_multiplier=0.5 (40 steps at sample rate
    0.1)".
    """
    events = tuple(events)
    words = [
        f"noise_multiplier={event.noise_multiplier:.4g} ({event.steps} "
        f"step{'' if event.steps == 1 else 's'} at sample rate {event.sample_rate:.4g})"
        for event in events[:EVENTS_SHOWN]
    ]
    if len(events) > EVENTS_SHOWN:
        words.append(f"{len(events) - EVENTS_SHOWN} more")
    return " and ".join(words)


def split_log_ratio(events: Iterable[Event]) -> tuple[tuple[Event, ...], float]:
    """The same events without Lambda, and the sum of their Lambdas, rounded up."""
    events = tuple(events)
    plain = tuple(replace(event, log_ratio=0.0) if event.log_ratio else event for event in events)
    return plain, sum_up(event.log_ratio for event in events)


def sum_up(log_ratios: Iterable[float]) -> float:
    """The sum of Lambdas, rounded up; 0 if all are 0.

    It is at most the largest float, which ``smaller_delta`` refuses.
    """
    try:
        total = math.fsum(log_ratios)
    except OverflowError:
        total = math.inf
    return min(math.nextafter(total, math.inf), sys.float_info.max) if total else 0.0


def smaller_delta(delta: float, log_ratio: float) -> float:
    """delta e^-Lambda, rounded down: the accountants' delta, so that the release has ``delta``.

    Raises: AccountingError if that is not a normal float. Lambda is then in the hundreds.
    """
    if not log_ratio:
        return delta
    smaller = delta * math.exp(-log_ratio) * (1 - 1e-15)
    if not smaller >= sys.float_info.min:
        raise AccountingError(
            f"no epsilon is certified at {delta=} with {log_ratio=}: the noise is too far from "
            "Gaussian noise; take a finer grid"
        )
    return smaller


def add_log_ratio(epsilon: float, log_ratio: float) -> float:
    """epsilon + 2 Lambda, rounded up."""
    return math.nextafter(epsilon + 2 * log_ratio, math.inf) if log_ratio else epsilon


def check_plain(events: Iterable[Event]) -> tuple[Event, ...]:
    """The events. Raises ValueError if one has a Lambda."""
    events = tuple(events)
    if any(event.log_ratio for event in events):
        raise ValueError(
            f"expected events with log_ratio=0, got {events}: split them first, and add 2 log_ratio"
        )
    return events


def coarsen(events: tuple[Event, ...], most: int) -> tuple[Event, ...]:
    """At most ``most`` different (q, sigma) that lose at least as much privacy.

    They are on a grid of powers of two, 2^(k/n) for integers k, with the first n (``level``) of 128
    / 1.25^i that leaves so few. Epsilon rises with q and falls with sigma, so q moves up and sigma
    down. Full batches become one event of one step; of others the number of steps stays. Few events
    stay as they are.
    The events have no Lambda, and no noise multiplier below 1e-30.
    """
    fewer_events, level = events, FINEST_LEVEL
    while len(fewer_events) > most:
        fewer_events = canonical(
            replace(
                event,
                sample_rate=min(grid_up(event.sample_rate, level), 1.0),
                noise_multiplier=grid_down(event.noise_multiplier, level),
            )
            for event in events
        )
        level /= 1.25
    return fewer_events


def grid_up(value: float, level: float) -> float:
    """The lowest point of the grid that is not below a positive value."""
    k = math.floor(math.log2(value) * level) - 1
    while (point := math.exp2(k / level)) < value:
        k += 1
    return point


def grid_down(value: float, level: float) -> float:
    """The highest point of the grid that is not above a positive value."""
    k = math.ceil(math.log2(value) * level) + 1
    while (point := math.exp2(k / level)) > value:
        k -= 1
    return point
