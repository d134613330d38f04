"""Lower bounds on epsilon from guesses about which canaries were in the data of one run.

Each of m canaries is in the data with probability 1/2, in secret. An auditor who sees only the outputs guesses for some
of them whether they are in, and abstains from the others; c' guesses, c of them right. Too many right guesses
contradict a claim.

    one_run     Steinke, Nasr, Jagielski 2023, "Privacy Auditing with One (1) Training Run", Theorem 5.2
    f_dp        Mahloujifar, Melis, Chaudhuri 2024, "Auditing f-Differential Privacy in One Run", Algorithm 3

Both hold for every guesser and for canaries that disturb each other: only the power suffers. The number of guesses must
not depend on which are in; several numbers share the significance (``GUESSED``).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import expit
from scipy.stats import binom

from fedlsg.attacks.membership.tradeoff import Least

GUESSED = (1.0, 0.5, 0.2, 0.1, 0.05)
"""Shares of the canaries that are guessed; each has an equal part of the significance."""
LARGEST_EPSILON = 200.0


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """m canaries, c' guesses about them, c of which are right."""

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.guesses <= self.canaries or not self.canaries:
            raise ValueError(
                f"expected 0 <= {self.correct=} <= {self.guesses=} <= {self.canaries=}, and at least one canary"
            )


def guess(scores: Float[np.ndarray, " m"], included: Bool[np.ndarray, " m"], share: float) -> Guesses:
    """Guess "in" for the highest scores and "out" for the lowest, ``share`` of all in equal parts.

    ``included`` is only used to count what is right. Ties are broken by position.
    """
    m = len(scores)
    if included.shape != scores.shape:
        raise ValueError(f"expected as many inclusion bits as scores, got {included.shape} and {scores.shape}")
    half = max(1, round(share * m / 2))
    half = min(half, m // 2)
    order = np.argsort(scores, kind="stable")
    correct = int((~included[order[:half]]).sum() + included[order[m - half :]].sum())
    return Guesses(canaries=m, guesses=2 * half, correct=correct)


def one_run_p_value(seen: Guesses, epsilon: float, delta: float) -> float:
    """Bound on the probability of so many right guesses under (epsilon, delta)-DP.

    P[Bin(c', q) >= c] + 2 m delta max_i P[c > Bin >= c - i] / i with q = 1 / (1 + e^-epsilon).
    """
    q = float(expit(epsilon))
    tail = float(binom.sf(seen.correct - 1, seen.guesses, q))
    if delta == 0 or seen.correct == 0:
        return min(tail, 1.0)
    i = np.arange(1, seen.correct + 1)
    within = binom.sf(seen.correct - i - 1, seen.guesses, q) - tail
    return min(1.0, tail + 2 * seen.canaries * delta * float((within / i).max()))


def one_run_epsilon(seen: Guesses, delta: float, significance: float) -> float:
    """Largest refuted epsilon: with confidence 1 - ``significance`` the mechanism is not (epsilon, delta)-DP."""
    return largest(lambda epsilon: one_run_p_value(seen, epsilon, delta) < significance, LARGEST_EPSILON)


def f_dp_refuted(seen: Guesses, least: Least, significance: float) -> bool:
    """Whether so many right guesses have a probability below ``significance`` under the trade-off curve ``least``.

    With C the number of right guesses, r_i and h_i are the means over the canaries of P[this one right, C >= i] and
    P[this one wrong, C >= i]. Turning an inclusion bit makes the first event at i the second one at i - 1, so
    h_(i-1) >= g(r_i); and both grow by the same P[C = i], in proportion i to c' - i. From P[C >= c] = significance
    downwards the sum r_0 + h_0 must not pass c' / m.
    """
    m, total, c = seen.canaries, seen.guesses, seen.correct
    right, wrong = significance * c / m, significance * (total - c) / m
    for i in range(c - 1, -1, -1):
        grown = max(wrong, least(right))
        if grown == wrong:
            break
        right += i / (total - i) * (grown - wrong)
        wrong = grown
        if right + wrong > total / m:
            return True
    return right + wrong > total / m


def f_dp_p_value(seen: Guesses, least: Least) -> float:
    """The smallest significance at which the curve is refuted, within a factor of 1.01 and not below 1e-30."""
    low, high = math.log(1e-30), 0.0
    if f_dp_refuted(seen, least, math.exp(low)):
        return math.exp(low)
    if not f_dp_refuted(seen, least, 1.0 - 1e-12):
        return 1.0
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if f_dp_refuted(seen, least, math.exp(middle)) else (middle, high)
    return math.exp(high)


def largest(refuted: Callable[[float], bool], end: float, *, tolerance: float = 1e-4) -> float:
    """The largest argument in [0, end] that is refuted, 0 where none is, for a test that refutes all smaller ones."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < end and refuted(high):
        low, high = high, 2 * high
    high = min(high, end)
    while high - low > tolerance * max(1.0, low):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
