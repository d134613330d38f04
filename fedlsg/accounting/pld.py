"""Epsilon from privacy loss distributions on a grid, composed under an exponential tilt; certified from above.

Symbols: S is the sum of all steps' losses, K(theta) = log E[e^(theta S)], delta(epsilon) = E[(1 - e^(epsilon - S))+],
h the grid's width, T the number of steps, u = 2^-53. Removal and addition of an example are two such sums: both are
bounded, and the larger epsilon counts.

A step's loss is rounded to the grid by connect the dots (`step.rounded`), which lowers no delta. Its masses p are
tilted, p_theta(l) = p(l) e^(theta l) / E[e^(theta l)], with theta where the tail at epsilon becomes the middle of the
tilted law. T-fold convolution and tilt commute, so with g = the T-fold convolution of p_theta

    delta(epsilon) = e^(K(theta) - theta epsilon) sum over s > epsilon of g(s) e^(-theta (s - epsilon)) (1 - e^(epsilon - s)).

g comes from one FFT, a power and the inverse. Its errors are absolute, about T u, next to a sum that is of order 1:
the factor in front, which is the Chernoff bound, carries the size of delta. Without a tilt they would be absolute
errors of delta, and nothing below 1e-11 could be told. What is added to delta, at every epsilon:

* FFT. |f^ - f| <= ROUNDING log2(N) u for each coefficient of a law with sum 1, so that of the product is off by at most
  prod (|f^| + 2 e)^T - prod (|f^| + e)^T. Its mean over frequencies, and the same again for the inverse, bounds the
  error of every g(s); the geometric sum of the weights turns it into one of delta.
* Aliasing. The transform is periodic: g(s) also has the mass at s + j N h. That only adds. What is above the window is
  missing there, and is added whole: P(S > top) <= e^(K(theta') - theta' top) for the best theta' (Chernoff).
* Outputs that are not described (`step.outside`), T times.
* Rounding of masses, T `step.MASS_ROUNDING` of delta. That of losses, a few u each, is added to epsilon.

h is chosen so that rounding to the grid costs TIGHTNESS of epsilon: by Hoeffding's lemma it adds at most
theta (1 + theta) h^2 / 8 to a step's K, on average 1 / 12.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy.fft import irfft, next_fast_len, rfft

from fedlsg.accounting.events import AccountingError, Event, Interval
from fedlsg.accounting.step import MASS_ROUNDING, nodes, outside, reach_for, rounded

Vector = Float64[np.ndarray, " n"]

TIGHTNESS = 3e-4  # of epsilon, given up to the grid
SMALL_SHARE = 1e-7  # of delta, given up to what is outside the window and to outputs that are not described
ALIASED = 1e-6  # of the tilted law, may be above the window's length
MAX_CELLS, MAX_WINDOW = 2**22, 2**23  # of one step, and of the composition: two seconds and 500 MB
COARSEST = 1.0
ROUNDING = 10.0  # pocketfft's passes: additions, twiddles and products, at most 10 u each


@lru_cache(maxsize=4096)
def upper_bound(events: tuple[Event, ...], delta: float) -> float:
    """Certified upper bound on epsilon, about 1e-4 (relative) above the exact value at most."""
    return interval(events, delta).upper


@lru_cache(maxsize=4096)
def interval(events: tuple[Event, ...], delta: float) -> Interval:
    """Bounds on epsilon in both directions of add/remove; ``estimate`` is the upper bound less the grid's error.

    Raises: AccountingError where the grid would not fit in memory, or float64 does not resolve delta.
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
    """What addition can lose at most: -log(1 - q) a step, whatever the output."""
    if any(e.sample_rate == 1.0 for e in events):
        return math.inf
    return sum(-e.steps * math.log1p(-e.sample_rate) for e in events) * (1 + 1e-9)


@lru_cache(maxsize=4096)
def chernoff(events: tuple[Event, ...], delta: float) -> float:
    """About epsilon, a few percent above it: the Renyi bound at the best real order, without a grid."""
    return max(_saddle(Sum.of(events, delta, removal=removal), delta)[1] for removal in (True, False))


@dataclass(frozen=True, kw_only=True)
class Sum:
    """The sum of all steps' losses in one direction; ``nodes``: each event's losses, and logs of their weights."""

    events: tuple[Event, ...]
    removal: bool
    reach: float
    nodes: tuple[tuple[Vector, Vector], ...]

    @classmethod
    def of(cls, events: Sequence[Event], delta: float, *, removal: bool) -> "Sum":
        reach = reach_for(SMALL_SHARE * delta / sum(e.steps for e in events))
        each = []
        for e in events:
            ratio, log_weight = nodes(e.sample_rate, e.noise_multiplier, reach)
            each.append((ratio, log_weight + ratio) if removal else (-ratio, log_weight))
        return cls(events=tuple(events), removal=removal, reach=reach, nodes=tuple(each))

    @property
    def steps(self) -> int:
        return sum(e.steps for e in self.events)

    @property
    def outside(self) -> float:
        """An upper bound of the probability that some output is not described."""
        return self.steps * outside(self.reach)

    @property
    def steepest(self) -> float:
        """The largest theta at which the sum over nodes is E[e^(theta loss)], to 1e-8: e^(theta loss) must not change
        by more than e^3 between two of the intervals in which the nodes are.
        """
        return min(
            3 * (self.reach * e.noise_multiplier + 2) / -math.expm1(math.log1p(-e.sample_rate) - float(np.abs(loss).max()))
            if e.sample_rate < 1
            else 3 * (self.reach * e.noise_multiplier + 2)
            for e, (loss, _) in zip(self.events, self.nodes, strict=True)
        )

    @property
    def rounding(self) -> float:
        """An upper bound of the error of S: each loss has a few units in its last place."""
        return sum(e.steps * 1e-15 * float(np.abs(loss).max()) for e, (loss, _) in zip(self.events, self.nodes, strict=True))

    def moments(self, theta: float) -> tuple[float, float, float]:
        """K, K' and K'' at theta: log E[e^(theta S)], and mean and variance of the tilted S."""
        total, mean, variance = 0.0, 0.0, 0.0
        for e, (loss, log_weight) in zip(self.events, self.nodes, strict=True):
            exponent = theta * loss + log_weight
            peak = exponent.max()
            weight = np.exp(exponent - peak)
            mass = weight.sum()
            middle = float(weight @ loss / mass)
            total += e.steps * (peak + math.log(mass))
            mean += e.steps * middle
            variance += e.steps * float(weight @ (loss - middle) ** 2 / mass)
        return total, mean, variance

    def rounded(self, event: Event, width: float) -> tuple[int, Vector]:
        """(k, m): log masses of one step's loss at k width, (k + 1) width, ..."""
        first, log_mass = rounded(event.sample_rate, event.noise_multiplier, self.reach, width, MAX_CELLS)
        if self.removal:
            return first, log_mass + (first + np.arange(len(log_mass))) * width
        return -(first + len(log_mass) - 1), log_mass[::-1]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a sum is composed: the tilt, the grid's width, and a window [bottom, bottom + cells) in widths.

    ``above``: an upper bound of P(S > the window). ``chernoff``: (t, log E[e^(t S)] or more) with t > theta, for the
    bound of what aliasing adds to delta.
    """

    theta: float
    width: float
    bottom: int
    cells: int
    above: float
    chernoff: tuple[float, float]

    def aliased(self, epsilon: float) -> float:
        """An upper bound of the sum over j != 0 of e^(j theta N h) delta(epsilon + j N h), which is what aliasing adds."""
        period = self.cells * self.width
        t, log_mean = self.chernoff
        first, ratio = log_mean - t * (epsilon + period) + self.theta * period, math.exp((self.theta - t) * period)
        if first > 0 or ratio > 0.5 or self.theta * period < 1:
            return 1.0
        return 2 * (math.exp(first) + math.exp(-self.theta * period))


def _bounds(total: Sum, delta: float, other: float) -> Interval:
    """Bounds for one direction; ``other``: what the other direction has, below which this one need not be sharp."""
    theta, chernoff = _saddle(total, delta)
    if chernoff * (1 + 1e-6) < other:
        return Interval(lower=0.0, estimate=0.0, upper=max(chernoff * (1 + 1e-6), 0.0))
    _, _, variance = total.moments(theta)
    theta = min(max(theta, 0.5 / math.sqrt(variance)), total.steepest / 2)
    scale = max(chernoff, 0.1 * math.sqrt(variance))
    best: Interval | None = None
    before = math.inf
    for _ in range(12):
        try:
            plan = _plan(total, delta, theta, scale)
            found, added = _composed(total, plan, delta)
        except AccountingError:  # a finer grid does not fit: the coarser one's answer holds
            if best is None:
                raise
            break
        best = found if best is None or found.upper < best.upper else best
        fine = added <= 1.5 * TIGHTNESS * found.upper
        # `added` supposes a grid that is fine next to epsilon; where it is not, two widths must agree.
        settled = found.upper >= 200 * plan.width or before - found.upper <= TIGHTNESS * found.upper
        if found.upper == 0 or (fine and settled) or plan.cells > MAX_WINDOW / 4:
            break
        before = found.upper
        scale *= 0.25 if fine else min(0.5, TIGHTNESS * found.upper / added)
    assert best is not None
    return best


def _saddle(total: Sum, delta: float) -> tuple[float, float]:
    """(theta, a bound of epsilon): Canonne, Kamath & Steinke 2020, proposition 12, at the best order 1 + theta."""
    theta = _solve(lambda t, k, mean: t * mean - k + math.log1p(t) + math.log(delta), total, 1e15)
    k = total.moments(theta)[0]
    return theta, (k - math.log(delta) - math.log1p(theta)) / theta + math.log(theta / (1 + theta))


def _added(total: Sum, plan: Plan, fall: float) -> float:
    """About how much rounding to the grid adds to epsilon, where log delta falls by ``fall`` for each unit of it."""
    steep = max(plan.theta, fall)
    return total.steps * min(plan.width, (1 + steep) * plan.width**2 / 12) * max(1.0, plan.theta / fall)


def _plan(total: Sum, delta: float, theta: float, scale: float) -> Plan:
    """Width and window for an epsilon near ``scale``."""
    steps = total.steps
    width = max(TIGHTNESS * scale / steps, math.sqrt(12 * TIGHTNESS * scale / (steps * (1 + theta))))
    width = min(width, COARSEST)
    share, steepest = math.log(SMALL_SHARE * delta), total.steepest
    k, mean, variance = total.moments(theta)
    while True:
        grid = steps * width**2 / 8  # K(t) rises by at most (t + t^2) of it
        spread = math.sqrt(variance + 2 * grid)
        # P(S > top) <= SMALL_SHARE delta, and of the tilted law at most ALIASED is `beyond` it.
        high = _solve(lambda t, k, mean: t * mean + grid * t**2 - k + share, total, steepest)  # noqa: B023
        k_high = total.moments(high)[0] + grid * (high + high**2)
        top = (k_high - share) / high
        far = _solve(lambda t, k_t, mean: (t - theta) * mean - k_t + k + math.log(ALIASED), total, steepest, theta)
        k_far = total.moments(far)[0] + grid * (far + far**2)
        beyond = (k_far - k - math.log(ALIASED)) / (far - theta)
        bottom = mean - 4 * spread
        length = max(top - bottom, beyond - mean + spread, (math.log(1e4) - math.log(delta)) / theta) + 2 * width
        if length <= width * MAX_WINDOW:
            break
        width *= max(1.05, length / (width * MAX_WINDOW))
        if width > COARSEST:
            raise AccountingError(f"the loss of {steps:,} steps does not fit a grid: raise the noise multiplier")
    cells = next_fast_len(max(math.ceil(length / width), 64), real=True)
    start = math.floor(bottom / width)
    above = math.exp(min(k_high + 1e-8 * steps - high * (start + cells - 1) * width, 0.0))
    return Plan(theta=theta, width=width, bottom=start, cells=cells, above=above, chernoff=(far, k_far))


def _composed(total: Sum, plan: Plan, delta: float) -> tuple[Interval, float]:
    """Epsilon where the composed delta, with all errors added, is ``delta``; and about how much of it is the grid's."""
    growth = math.expm1(MASS_ROUNDING * total.steps + 1e-9)
    target = (delta - total.outside - plan.above) / (1 + growth)
    curve = _tilted(total, plan, np.float64)
    upper = curve.epsilon(target)
    if total.steps > 1 and not curve.noise(upper) <= 1e-4 * delta:  # rare large losses: the tilted law has no middle there
        curve = _tilted(total, plan, np.longdouble)
        upper = curve.epsilon(target)
    upper = upper * (1 + 1e-9) + total.rounding if upper > 0 else 0.0
    if not math.isfinite(upper):
        raise AccountingError(f"no finite epsilon on a grid of {plan.cells:,} points at {delta=}")
    lower = _lower(total, plan, curve, delta)
    added = _added(total, plan, curve.fall(upper)) if upper > 0 else 0.0
    return Interval(lower=min(lower, upper), estimate=max(upper - added, min(lower, upper)), upper=upper), added


def _lower(total: Sum, plan: Plan, curve: "_Curve", delta: float) -> float:
    """Certified lower bound: S on the grid exceeds S by more than ``moved`` with a probability of a hundredth of delta.

    Each loss moves within an interval of length h, by at most h^2 / 8 on average (Hoeffding's lemma, since the mean of
    e^-loss stays); the sum over steps is Hoeffding's inequality.
    """
    steps = total.steps
    moved = min(steps * plan.width, steps * plan.width**2 / 8 + plan.width * math.sqrt(steps * math.log(100 / delta) / 2))
    found = curve.epsilon(delta * 1.015, errors=-1.0)
    if plan.aliased(found) > 0.004 * delta:
        return 0.0
    return max(found * (1 - 1e-9) - moved - total.rounding, 0.0)


def unit(dtype: type[np.floating[Any]]) -> float:
    """u of a number format: the largest relative error of one rounding."""
    return float(np.finfo(dtype).eps) / 2


def _tilted(total: Sum, plan: Plan, dtype: type[np.floating[Any]]) -> "_Curve":
    """The tilted masses in the window; transforms and powers in ``dtype``, whose unit bounds their errors."""
    log_front, centre = 0.0, 0
    each = ROUNDING * unit(dtype) * math.log2(plan.cells)
    size = plan.cells // 2 + 1
    magnitude, phase, worst, nearly = (np.zeros(size, dtype=dtype) for _ in range(4))
    with np.errstate(divide="ignore", under="ignore"):
        for event in total.events:
            first, log_mass = total.rounded(event, plan.width)
            at = np.arange(first, first + len(log_mass))
            exponent = log_mass + at * (plan.theta * plan.width)
            peak = float(exponent.max())
            weight = np.exp(exponent - peak)
            mass = float(weight.sum())
            log_front += event.steps * (peak + math.log(mass))
            if total.steps == 1:  # no transform, no error
                inside = (at >= plan.bottom) & (at < plan.bottom + plan.cells)
                masses = np.bincount(at[inside] - plan.bottom, weight[inside] / mass, plan.cells)
                return _Curve(log_front=log_front, tilted=masses, error=0.0, plan=plan)
            middle = round(float(weight @ at / mass))
            centre += event.steps * middle
            found = rfft(np.bincount((at - middle) % plan.cells, weight / mass, plan.cells).astype(dtype))
            size_of = np.abs(found)
            magnitude += event.steps * np.log(size_of)
            phase += event.steps * np.angle(found)
            nearly += event.steps * np.log(size_of + each)
            worst += event.steps * np.log(size_of + 2 * each)
        grown = worst - nearly
        powers = np.where(grown < 1, np.exp(nearly) * np.expm1(np.minimum(grown, 1)), np.exp(worst))
        error = float(2 * (powers + each * np.exp(nearly)).sum() / plan.cells)
        power = np.exp(magnitude) * (np.cos(phase) + 1j * np.sin(phase))
    masses = irfft(power, plan.cells).astype(np.float64)
    moved = np.roll(masses, -((plan.bottom - centre) % plan.cells))
    return _Curve(log_front=log_front, tilted=moved, error=error, plan=plan)


@dataclass(frozen=True, kw_only=True)
class _Curve:
    """delta(epsilon) of the tilted masses in a window; ``error``: bound of the error of each of them."""

    log_front: float
    tilted: Vector
    error: float
    plan: Plan

    def at(self, i: int, errors: float = 1.0) -> float:
        """delta at the grid's point i of the window, with the bound of FFT errors added (or with -1 taken off)."""
        theta, h = self.plan.theta, self.plan.width
        distance = h * np.arange(1, len(self.tilted) - i)
        seen = int(np.searchsorted(theta * distance, 60.0)) if theta * h * len(distance) > 60 else len(distance)
        distance = distance[:seen]
        weight = np.exp(-theta * distance) * -np.expm1(-distance)
        # Beyond 60 / theta a weight is below e^-60: all masses together are at most 1 and the error's share.
        rest = math.exp(-60.0) if seen < len(self.tilted) - i - 1 else 0.0
        found = float(weight @ self.tilted[i + 1 : i + 1 + seen]) + errors * (self.error * float(weight.sum()) + rest)
        point = (self.plan.bottom + i) * h
        return found * math.exp(min(self.log_front - theta * point, 700.0))

    def noise(self, epsilon: float) -> float:
        """What the bound of FFT errors adds to delta near ``epsilon``."""
        if not math.isfinite(epsilon):
            return math.inf
        i = min(max(math.floor(epsilon / self.plan.width) - self.plan.bottom, 0), len(self.tilted) - 3)
        return self.at(i) - self.at(i, 0.0)

    def fall(self, epsilon: float) -> float:
        """- d log delta / d epsilon near ``epsilon``."""
        i = min(max(math.floor(epsilon / self.plan.width) - self.plan.bottom, 0), len(self.tilted) - 3)
        before, after = self.at(i), self.at(i + 1)
        return max(math.log(before / after) / self.plan.width, 1e-9) if 0 < after < before < math.inf else self.plan.theta

    def epsilon(self, delta: float, errors: float = 1.0) -> float:
        """Smallest epsilon >= 0 with delta(epsilon) <= delta: between two points of the grid delta is linear in e^epsilon."""
        if not delta > 0:
            return math.inf if errors > 0 else 0.0
        low, high = max(-self.plan.bottom, 0) - 1, len(self.tilted) - 1
        if low >= 0 and (high <= low + 1 or self.at(low + 1, errors) <= delta):
            return 0.0
        low = max(low, 0)
        if self.at(low, errors) <= delta:  # it is below the window
            return max((self.plan.bottom + low) * self.plan.width, 0.0) if errors > 0 else 0.0
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.at(middle, errors) <= delta else (middle, high)
        start = (self.plan.bottom + low) * self.plan.width
        before, after = self.at(low, errors), self.at(high, errors)
        if errors > 0 and not after <= delta < before < math.inf:
            return math.inf
        share = (before - delta) / (before - after) if before > after else 1.0
        return max(start + math.log1p(min(share, 1.0) * math.expm1(self.plan.width)), 0.0)


def _solve(excess: Callable[[float, float, float], float], total: Sum, largest: float, least: float = 0.0) -> float:
    """A theta above ``least`` where ``excess(theta, K, K')``, which rises with theta, is about 0."""
    low, high = math.log(1e-12), math.log(largest - least)
    while high - low > 0.01:
        middle = (low + high) / 2
        theta = least + math.exp(middle)
        k, mean, _ = total.moments(theta)
        low, high = (middle, high) if excess(theta, k, mean) < 0 else (low, middle)
    return least + math.exp((low + high) / 2)
