"""Privacy events and bounds: the input of an accountant, and its result.

Symbols: q is ``sample_rate`` (Poisson inclusion probability of one example in one step), sigma is
``noise_multiplier`` (standard deviation of the noise over the joint L2 sensitivity), T is ``steps``.
Adjacency is add/remove of one example throughout; replacing one example counts as a removal and an addition
and is not what these numbers bound.
"""

import math
import operator
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


class AccountingError(ValueError):
    """A privacy loss that no accountant certifies, or a target that no setting reaches."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """``steps`` Poisson-subsampled Gaussian mechanisms with the same (q, sigma).

    ``noise_multiplier`` is the effective one: noise s.d. over the sensitivity of everything that is released
    in a step. A per-block clip that is entered with its per-block sigma understates epsilon; see the
    mechanism that made the noise.

    Raises: ValueError unless 0 < q <= 1, sigma is finite and positive, and steps is an integer >= 1.
    """

    sample_rate: float
    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "sample_rate", checked_sample_rate(self.sample_rate))
        object.__setattr__(self, "noise_multiplier", checked_noise_multiplier(self.noise_multiplier))
        object.__setattr__(self, "steps", checked_steps(self.steps))


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Epsilon as one accountant sees it: certified ``lower`` and ``upper``, best ``estimate`` between them."""

    lower: float
    estimate: float
    upper: float

    def __post_init__(self) -> None:
        if not 0 <= self.lower <= self.estimate <= self.upper < math.inf:
            raise AccountingError(f"expected 0 <= lower <= estimate <= upper < inf, got {self}")


@dataclass(frozen=True, kw_only=True)
class EpsilonBound:
    """Epsilon at one delta. ``upper`` is the certified number and the only one to report.

    ``accountant`` names whose interval this is: the one with the larger upper bound among those that
    answered. ``intervals`` holds every answer, ``failures`` the text of every accountant that failed, was
    refused or was not called; its key "agreement" is set where two intervals exclude each other.
    """

    lower: float
    estimate: float
    upper: float
    accountant: str
    intervals: dict[str, Interval]
    failures: dict[str, str]


def canonical(events: Iterable[Event]) -> tuple[Event, ...]:
    """The fewest events with exactly the same privacy loss, in a fixed order.

    Equal (q, sigma) are merged. All q = 1 events become one: T Gaussian mechanisms compose to a single one
    with sigma = (sum T_i / sigma_i^2)^(-1/2), exactly (Dong, Roth & Su 2022, Cor. 3.3).
    """
    counts: dict[tuple[float, float], int] = defaultdict(int)
    for event in events:
        counts[event.sample_rate, event.noise_multiplier] += event.steps
    precision = math.fsum(steps / sigma**2 for (q, sigma), steps in sorted(counts.items()) if q == 1)
    merged = [
        Event(sample_rate=q, noise_multiplier=sigma, steps=steps)
        for (q, sigma), steps in sorted(counts.items())
        if q < 1
    ]
    if precision > 0:
        merged.append(Event(sample_rate=1.0, noise_multiplier=precision**-0.5, steps=1))
    return tuple(merged)


def checked_sample_rate(sample_rate: float) -> float:
    if not 0 < sample_rate <= 1:
        raise ValueError(
            f"expected 0 < {sample_rate=} <= 1: the chance that one example enters a batch (1 = full batch)"
        )
    return float(sample_rate)


def checked_noise_multiplier(noise_multiplier: float) -> float:
    if not (noise_multiplier > 0 and math.isfinite(noise_multiplier)):
        raise ValueError(
            f"expected a finite {noise_multiplier=} > 0: without noise epsilon is infinite, with infinite noise"
            " nothing is learned; calibrate it to a target epsilon or use a mechanism that claims no privacy"
        )
    return float(noise_multiplier)


def checked_steps(steps: int) -> int:
    try:
        count = operator.index(steps)
    except TypeError:
        raise ValueError(f"expected an integer {steps=}: the number of noisy steps") from None
    if isinstance(steps, bool) or count < 1:
        raise ValueError(f"expected an integer {steps=} >= 1: an event without a step is left out, not entered")
    return count


def checked_delta(delta: float) -> float:
    if not 0 < delta < 1:
        raise ValueError(f"expected 0 < {delta=} < 1: take less than 1 / number of examples, such as 1e-5")
    return float(delta)


def checked_epsilon(epsilon: float) -> float:
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(
            f"expected a finite {epsilon=} > 0: the privacy budget; train without a mechanism for no privacy"
        )
    return float(epsilon)


def check_delta(delta: float, num_examples: int) -> None:
    """Refuse a delta at which publishing one example at random would count as private.

    Raises: ValueError unless 0 < delta < 1 / num_examples.
    """
    checked_delta(delta)
    if num_examples < 1:
        raise ValueError(f"expected {num_examples=} >= 1: a client without examples does not train")
    if delta >= 1 / num_examples:
        raise ValueError(
            f"expected {delta=} < 1 / {num_examples=} = {1 / num_examples:.3g}: at a larger delta releasing one whole"
            " example would pass as private; lower delta"
        )
