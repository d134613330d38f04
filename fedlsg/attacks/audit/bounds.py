"""Lower bounds on epsilon from guesses of one run's canaries, and trade-off curves to refute.

A trade-off curve says how unlikely a claim lets an event become when one example is added or
removed.
Symbols: x probability of an event on one data set; g(x) the least probability of the same event on
a neighbour. mu of Gaussian differential privacy (Dong, Roth, Su 2019); q, sigma, steps as in
``fedlsg.accounting``. A claim "(epsilon, delta) for every epsilon of a curve" says g(x) = max over
epsilon of the two lines of ``from_curve``.

Each of m canaries is in the data with probability 1/2, in secret. An auditor who sees only the
outputs guesses for some of them whether they are in, and abstains from the others; c' guesses, c of
them right. Too many right guesses contradict a claim.

    one_run     Steinke, Nasr, Jagielski 2023, "Privacy Auditing with One (1) Training Run", Theorem
                5.2
    f_dp        Mahloujifar, Melis, Chaudhuri 2024, "Auditing f-Differential Privacy in One Run",
                Algorithm 3

Both hold for every guesser and for canaries that disturb each other: only the power suffers. The
number of guesses must not depend on which are in; several numbers share the significance
(``GUESSED_SHARES``).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import brentq
from scipy.special import expit, log_ndtr, ndtr, ndtri
from scipy.stats import binom

from fedlsg.extras import of_extra

with of_extra("attacks", "audits and membership attacks"):
    from dp_accounting.pld import privacy_loss_distribution as pld

TradeOff = Callable[[float], float]
"""g: from the probability of an event to the least probability that it has on a neighbouring data
set.
"""

POINTS = 256
"""Values of epsilon at which a curve is computed."""
SMALLEST_DELTA = 1e-9
"""A curve ends at the epsilon of this delta."""
END_OF_CURVE = 500.0
"""The largest epsilon of a curve."""
SMALLEST_MU = 1e-12
"""A smaller mu counts as perfect privacy."""
FINEST = 3e-3
"""Width of the grid of a privacy loss distribution, at least."""
CELLS = 30_000
"""Cells of that grid for one step's losses, at most."""


def gaussian(mu: float) -> TradeOff:
    """g of a mu-GDP mechanism: Phi(Phi^-1(x) - mu).

    One Gaussian step without subsampling has mu = 1 / sigma.
    """
    if not 0 <= mu < math.inf:
        raise ValueError(f"expected 0 <= {mu=} < inf")
    return lambda x: float(ndtr(ndtri(x) - mu))


def from_curve(epsilons: Float[np.ndarray, " n"], deltas: Float[np.ndarray, " n"]) -> TradeOff:
    """g of a mechanism that is (epsilon_i, delta_i)-DP for every i, in both directions.

    P'(E) >= e^-eps (P(E) - delta), and the same of the complement: P'(E) >= 1 - delta - e^eps (1 -
    P(E)).
    Guarantee: convex, increasing, never above x; a claim with larger deltas gives a smaller g.
    """
    if epsilons.shape != deltas.shape or not len(epsilons) or bool((epsilons < 0).any()):
        raise ValueError(
            f"expected as many deltas as epsilons >= 0, got {len(epsilons)} epsilons from "
            f"{epsilons.min(initial=0.0):g} on and {len(deltas)} deltas"
        )
    shrink, grow = np.exp(-epsilons), np.exp(epsilons)
    slack = 1 - deltas

    def least(x: float) -> float:
        return max(0.0, float((shrink * (x - deltas)).max()), float((slack - grow * (1 - x)).max()))

    return least


@lru_cache(maxsize=1024)  # by its arguments alone: never stale
def subsampled(
    *, sample_rate: float, noise_multiplier: float, steps: int, delta: float
) -> tuple[TradeOff, float]:
    """g of Poisson-subsampled Gaussian steps, and their epsilon at ``delta``.

    Both from the steps' privacy loss distribution.
    Guarantee: the deltas are rounded up, so g claims no more than is true, and no audit against it
    accuses because of the grid. One step, or several, at q = 1 are Gaussian and exact: mu =
    sqrt(steps) / sigma.
    """
    if sample_rate == 1:
        mu = math.sqrt(steps) / noise_multiplier
        return gaussian(mu), gaussian_epsilon(mu, delta)
    # the loss at 10 standard deviations: the grid of one step covers it
    reach = 0.5 / noise_multiplier**2 + 10 / noise_multiplier
    try:
        loss = pld.from_gaussian_mechanism(
            noise_multiplier,
            sampling_prob=sample_rate,
            value_discretization_interval=max(FINEST, reach / CELLS),
            use_connect_dots=True,
        ).self_compose(steps)
    except OverflowError:  # so little noise that the loss is beyond a float: a claim of nothing
        return (lambda x: 0.0), math.inf
    end = min(float(loss.get_epsilon_for_delta(SMALLEST_DELTA)), END_OF_CURVE)
    epsilons = np.linspace(0.0, max(end, 1e-6), POINTS)
    deltas = np.asarray(loss.get_delta_for_epsilon(epsilons.tolist()), dtype=np.float64)
    return from_curve(epsilons, deltas), float(loss.get_epsilon_for_delta(delta))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) of a mu-GDP mechanism (Dong, Roth, Su 2019, Corollary 2.13)."""
    if mu < SMALLEST_MU:
        return 0.0
    low = math.exp(min(epsilon + float(log_ndtr(-epsilon / mu - mu / 2)), 0.0))
    return max(0.0, float(ndtr(-epsilon / mu + mu / 2)) - low)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """epsilon at ``delta`` of a mu-GDP mechanism; infinite for an infinite mu."""
    if not 0 < delta < 1:
        raise ValueError(f"expected 0 < {delta=} < 1")
    if not math.isfinite(mu):
        return math.inf
    if mu <= 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    end = mu * mu / 2 + mu * (float(-ndtri(delta)) + 1)
    return float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, end, xtol=1e-10))


GUESSED_SHARES = (1.0, 0.5, 0.2, 0.1, 0.05)
"""Shares of the canaries that are guessed; each has an equal part of the significance."""
LARGEST_REFUTED = 200.0
"""The largest epsilon that is tested."""


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """m canaries, c' guesses about them, c of which are right."""

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.guesses <= self.canaries or not self.canaries:
            raise ValueError(
                f"expected 0 <= {self.correct=} <= {self.guesses=} <= {self.canaries=}, and at "
                "least one canary"
            )


def guess(
    scores: Float[np.ndarray, " m"], included: Bool[np.ndarray, " m"], share: float
) -> Guesses:
    """Guess "in" for the highest scores and "out" for the lowest, ``share`` of all in equal parts.

    ``included`` is only used to count what is right. Ties are broken by position.
    """
    m = len(scores)
    if included.shape != scores.shape:
        raise ValueError(
            f"expected as many inclusion bits as scores, got {included.shape} and {scores.shape}"
        )
    half = max(1, round(share * m / 2))
    half = min(half, m // 2)
    order = np.argsort(scores, kind="stable")
    correct = int((~included[order[:half]]).sum() + included[order[m - half :]].sum())
    return Guesses(canaries=m, guesses=2 * half, correct=correct)


def one_run_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Bound on the probability of so many right guesses under (epsilon, delta)-DP.

    P[Bin(c', p) >= c] + 2 m delta max_i P[c > Bin >= c - i] / i with p = 1 / (1 + e^-epsilon).
    """
    p = float(expit(epsilon))
    tail = float(binom.sf(guesses.correct - 1, guesses.guesses, p))
    if delta == 0 or guesses.correct == 0:
        return min(tail, 1.0)
    i = np.arange(1, guesses.correct + 1)
    within = binom.sf(guesses.correct - i - 1, guesses.guesses, p) - tail
    return min(1.0, tail + 2 * guesses.canaries * delta * float((within / i).max()))


def one_run_epsilon(guesses: Guesses, delta: float, significance: float) -> float:
    """The largest epsilon that the guesses refute at a significance; 0 if none is, which claims
    nothing.

    With confidence 1 - ``significance`` the mechanism is not (epsilon, delta)-DP for a result above
    0.
    """
    return largest_refuted(
        lambda epsilon: one_run_p_value(guesses, epsilon, delta) < significance, LARGEST_REFUTED
    )


def f_dp_refuted(guesses: Guesses, least: TradeOff, significance: float) -> bool:
    """Whether the guesses are less probable than ``significance`` under a trade-off curve.

    least: g of the curve.
    With C the number of right guesses, r_i and h_i are the means over the canaries of P[this one
    right, C >= i] and P[this one wrong, C >= i]. Turning an inclusion bit makes the first event at
    i the second one at i - 1, so h_(i-1) >= g(r_i); and both grow by the same P[C = i], in
    proportion i to c' - i. From P[C >= c] = significance downwards the sum r_0 + h_0 must not pass
    c' / m.
    """
    m, total, c = guesses.canaries, guesses.guesses, guesses.correct
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


def f_dp_p_value(guesses: Guesses, least: TradeOff) -> float:
    """The smallest significance at which the curve is refuted.

    Within a factor of 1.01, and not below 1e-30.
    """
    low, high = math.log(1e-30), 0.0
    if f_dp_refuted(guesses, least, math.exp(low)):
        return math.exp(low)
    if not f_dp_refuted(guesses, least, 1.0 - 1e-12):
        return 1.0
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (
            (low, middle) if f_dp_refuted(guesses, least, math.exp(middle)) else (middle, high)
        )
    return math.exp(high)


def largest_refuted(
    refuted: Callable[[float], bool], end: float, *, tolerance: float = 1e-4
) -> float:
    """The largest argument in [0, end] that is refuted; 0 if none is.

    refuted: a test that refutes all smaller arguments, too.
    """
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
