"""The sum of all steps' losses in one direction, and how it is composed: tilt, grid and window. See pld.py.

Everything here is a sum over a few thousand nodes a step, whatever the number of steps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from jaxtyping import Float64
from scipy.fft import next_fast_len

from fedlsg.accounting.events import AccountingError, Event
from fedlsg.accounting.step import nodes, outside, reach_for, rounded

Vector = Float64[np.ndarray, " n"]

TIGHTNESS = 3e-4  # of epsilon, given up to the grid
SMALL_SHARE = 1e-7  # of delta, given up to what is outside the window and to outputs that are not described
ALIASED = 1e-6  # of the tilted law, may be above the window's length
MAX_CELLS, MAX_WINDOW = 2**22, 2**23  # of one step, and of the composition: seconds and 500 MB
COARSEST = 1.0


@dataclass(frozen=True, eq=False)
class Loss:
    """One step's loss in one direction: its values and the logs of their weights; ``largest`` of their sizes.

    A search asks for the moments at the same few hundred theta, whatever the number of steps: they are kept.
    """

    values: Vector
    log_weights: Vector
    largest: float
    known: dict[float, tuple[float, float, float]] = field(default_factory=dict)

    def moments(self, theta: float) -> tuple[float, float, float]:
        """log E[e^(theta loss)], and mean and variance of the tilted loss."""
        if theta not in self.known:
            exponent = theta * self.values + self.log_weights
            peak = exponent.max()
            weight = np.exp(exponent - peak)
            mass = weight.sum()
            mean = float(weight @ self.values / mass)
            variance = float(weight @ (self.values - mean) ** 2 / mass)
            self.known[theta] = float(peak + math.log(mass)), mean, variance
        return self.known[theta]


@lru_cache(maxsize=256)
def loss(sample_rate: float, noise_multiplier: float, reach: float, removal: bool) -> Loss:
    """The loss of one step, of outputs up to ``reach``."""
    ratio, log_weight = nodes(sample_rate, noise_multiplier, reach)
    largest = float(np.abs(ratio).max())
    return Loss(ratio, log_weight + ratio, largest) if removal else Loss(-ratio, log_weight, largest)


@dataclass(frozen=True, kw_only=True)
class Sum:
    """The sum of all steps' losses in one direction; ``losses``: of one step of each event."""

    events: tuple[Event, ...]
    removal: bool
    reach: float
    losses: tuple[Loss, ...]

    @classmethod
    def of(cls, events: Sequence[Event], delta: float, *, removal: bool) -> "Sum":
        reach = reach_for(SMALL_SHARE * delta / sum(e.steps for e in events))
        each = tuple(loss(e.sample_rate, e.noise_multiplier, reach, removal) for e in events)
        return cls(events=tuple(events), removal=removal, reach=reach, losses=each)

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
            3 * (self.reach * e.noise_multiplier + 2) / -math.expm1(math.log1p(-e.sample_rate) - one.largest)
            if e.sample_rate < 1
            else 3 * (self.reach * e.noise_multiplier + 2)
            for e, one in zip(self.events, self.losses, strict=True)
        )

    @property
    def rounding(self) -> float:
        """An upper bound of the error of S: each loss has a few units in its last place."""
        return sum(e.steps * 1e-15 * one.largest for e, one in zip(self.events, self.losses, strict=True))

    def moments(self, theta: float) -> tuple[float, float, float]:
        """K, K' and K'' at theta: log E[e^(theta S)], and mean and variance of the tilted S."""
        total, mean, variance = 0.0, 0.0, 0.0
        for e, one in zip(self.events, self.losses, strict=True):
            log_mean, middle, spread = one.moments(theta)
            total += e.steps * log_mean
            mean += e.steps * middle
            variance += e.steps * spread
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
        """Bound of what aliasing adds: the sum over j != 0 of e^(j theta N h) delta(epsilon + j N h)."""
        period = self.cells * self.width
        t, log_mean = self.chernoff
        first, ratio = log_mean - t * (epsilon + period) + self.theta * period, math.exp((self.theta - t) * period)
        if first > 0 or ratio > 0.5 or self.theta * period < 1:
            return 1.0
        return 2 * (math.exp(first) + math.exp(-self.theta * period))


def plan(total: Sum, delta: float, theta: float, scale: float) -> Plan:
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
        high = solve(lambda t, k, mean: t * mean + grid * t**2 - k + share, total, steepest)  # noqa: B023
        k_high = total.moments(high)[0] + grid * (high + high**2)
        top = (k_high - share) / high
        far = solve(lambda t, k_t, mean: (t - theta) * mean - k_t + k + math.log(ALIASED), total, steepest, theta)
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


def solve(excess: Callable[[float, float, float], float], total: Sum, largest: float, least: float = 0.0) -> float:
    """A theta above ``least`` where ``excess(theta, K, K')``, which rises with theta, is about 0."""
    low, high = math.log(1e-12), math.log(largest - least)
    while high - low > 0.01:
        middle = (low + high) / 2
        theta = least + math.exp(middle)
        k, mean, _ = total.moments(theta)
        low, high = (middle, high) if excess(theta, k, mean) < 0 else (low, middle)
    return least + math.exp((low + high) / 2)
