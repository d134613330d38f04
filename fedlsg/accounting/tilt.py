"""The sum of all steps' losses in one direction: its tilt, grid and window, and delta(epsilon) by
one FFT. See pld.py.

Everything but the transform is a sum over a few thousand nodes a step, whatever the number of
steps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy.fft import irfft, next_fast_len, rfft

from fedlsg.accounting.events import AccountingError, Event
from fedlsg.accounting.step import nodes, outside, reach_for, rounded

Vector = Float64[np.ndarray, " n"]

EPSILON_SHARE = 3e-4  # of epsilon, given up to the grid
# of delta, given up to what is outside the window and to outputs that are not described
SMALL_SHARE = 1e-7
ALIASED_SHARE = 1e-6  # of the tilted law, may be above the window's length
MAX_CELLS, MAX_WINDOW = 2**22, 2**23  # of one step, and of the composition: seconds and 500 MB
COARSEST_WIDTH = 1.0
FFT_PASS_ROUNDING = 10.0  # pocketfft's passes: additions, twiddles and products, at most 10 u each


@dataclass(frozen=True, eq=False)
class Loss:
    """One step's loss in one direction: its values and the logs of their weights; ``largest`` of
    their sizes.

    A search asks for the moments at the same few hundred theta, whatever the number of steps: they
    are kept.
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


@lru_cache(maxsize=256)  # by its arguments alone: never stale
def loss(sample_rate: float, noise_multiplier: float, reach: float, removal: bool) -> Loss:
    """The loss of one step, of outputs up to ``reach``."""
    ratio, log_weight = nodes(sample_rate, noise_multiplier, reach)
    largest = float(np.abs(ratio).max())
    if removal:
        return Loss(ratio, log_weight + ratio, largest)
    return Loss(-ratio, log_weight, largest)


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
        """The largest theta at which the sum over nodes is E[e^(theta loss)], to 1e-8: e^(theta
        loss) must not change by more than e^3 between two of the intervals in which the nodes are.
        """
        thetas = []
        for event, loss in zip(self.events, self.losses, strict=True):
            theta = 3 * (self.reach * event.noise_multiplier + 2)
            if event.sample_rate < 1:
                theta /= -math.expm1(math.log1p(-event.sample_rate) - loss.largest)
            thetas.append(theta)
        return min(thetas)

    @property
    def rounding(self) -> float:
        """An upper bound of the error of S: each loss has a few units in its last place."""
        pairs = zip(self.events, self.losses, strict=True)
        return sum(event.steps * 1e-15 * loss.largest for event, loss in pairs)

    def moments(self, theta: float) -> tuple[float, float, float]:
        """K, K' and K'' at theta: log E[e^(theta S)], and mean and variance of the tilted S."""
        total, mean, variance = 0.0, 0.0, 0.0
        for event, loss in zip(self.events, self.losses, strict=True):
            log_mean, middle, spread = loss.moments(theta)
            total += event.steps * log_mean
            mean += event.steps * middle
            variance += event.steps * spread
        return total, mean, variance

    def rounded(self, event: Event, width: float) -> tuple[int, Vector]:
        """(k, m): log masses of one step's loss at k width, (k + 1) width, ..."""
        first, log_mass = rounded(
            event.sample_rate, event.noise_multiplier, self.reach, width, MAX_CELLS
        )
        if self.removal:
            return first, log_mass + (first + np.arange(len(log_mass))) * width
        return -(first + len(log_mass) - 1), log_mass[::-1]


@dataclass(frozen=True, kw_only=True)
class TiltedGrid:
    """How a sum is composed: the tilt, the grid's width, and a window [bottom, bottom + cells) in
    widths.

    ``above``: an upper bound of P(S > the window).
    ``chernoff``: (t, log E[e^(t S)] or more) with t > theta, for the bound of what aliasing adds to
        delta.
    """

    theta: float
    width: float
    bottom: int
    cells: int
    above: float
    chernoff: tuple[float, float]

    def aliased(self, epsilon: float) -> float:
        """Bound of what aliasing adds: the sum over j != 0 of e^(j theta N h) delta(epsilon + j N
        h).
        """
        period = self.cells * self.width
        t, log_mean = self.chernoff
        first = log_mean - t * (epsilon + period) + self.theta * period
        ratio = math.exp((self.theta - t) * period)
        if first > 0 or ratio > 0.5 or self.theta * period < 1:
            return 1.0
        return 2 * (math.exp(first) + math.exp(-self.theta * period))


def plan(total: Sum, delta: float, theta: float, scale: float) -> TiltedGrid:
    """Width and window for an epsilon near ``scale``."""
    steps, steepest = total.steps, total.steepest
    surely = EPSILON_SHARE * scale / steps
    on_average = math.sqrt(12 * EPSILON_SHARE * scale / (steps * (1 + theta)))
    width = min(max(surely, on_average), COARSEST_WIDTH)
    log_share, log_aliased = math.log(SMALL_SHARE * delta), math.log(ALIASED_SHARE)
    k, mean, variance = total.moments(theta)
    while True:
        grid = steps * width**2 / 8  # K(t) rises by at most (t + t^2) of it
        spread = math.sqrt(variance + 2 * grid)
        # P(S > top) <= SMALL_SHARE delta; of the tilted law at most ALIASED_SHARE is `beyond` it.
        high = solve(lambda t, k, mean: t * mean + grid * t**2 - k + log_share, total, steepest)  # noqa: B023
        k_high = total.moments(high)[0] + grid * (high + high**2)
        top = (k_high - log_share) / high
        far = solve(
            lambda t, k_t, mean: (t - theta) * mean - k_t + k + log_aliased,
            total,
            steepest,
            theta,
        )
        k_far = total.moments(far)[0] + grid * (far + far**2)
        beyond = (k_far - k - log_aliased) / (far - theta)
        bottom = mean - 4 * spread
        needed = max(
            top - bottom,
            beyond - mean + spread,
            (math.log(1e4) - math.log(delta)) / theta,
        )
        length = needed + 2 * width
        longest = width * MAX_WINDOW
        if length <= longest:
            break
        width *= max(1.05, length / longest)
        if width > COARSEST_WIDTH:
            raise AccountingError(
                f"the loss of {steps:,} steps does not fit a grid: raise the noise multiplier"
            )
    cells = next_fast_len(max(math.ceil(length / width), 64), real=True)
    start = math.floor(bottom / width)
    above = math.exp(min(k_high + 1e-8 * steps - high * (start + cells - 1) * width, 0.0))
    return TiltedGrid(
        theta=theta, width=width, bottom=start, cells=cells, above=above, chernoff=(far, k_far)
    )


def solve(
    excess: Callable[[float, float, float], float], total: Sum, largest: float, least: float = 0.0
) -> float:
    """A theta above ``least`` where ``excess(theta, K, K')``, which rises with theta, is about
    0.
    """
    low, high = math.log(1e-12), math.log(largest - least)
    while high - low > 0.01:
        middle = (low + high) / 2
        theta = least + math.exp(middle)
        k, mean, _ = total.moments(theta)
        low, high = (middle, high) if excess(theta, k, mean) < 0 else (low, middle)
    return least + math.exp((low + high) / 2)


def unit(dtype: type[np.floating[Any]]) -> float:
    """u of a number format: the largest relative error of one rounding."""
    return float(np.finfo(dtype).eps) / 2


def tilted(total: Sum, plan: TiltedGrid, dtype: type[np.floating[Any]]) -> "Curve":
    """The tilted masses in the window; transforms and powers in ``dtype``, whose unit bounds their
    errors.
    """
    log_front, centre = 0.0, 0
    each = FFT_PASS_ROUNDING * unit(dtype) * math.log2(plan.cells)
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
                return Curve(log_front=log_front, tilted=masses, error=0.0, plan=plan)
            middle = round(float(weight @ at / mass))
            centre += event.steps * middle
            masses = np.bincount((at - middle) % plan.cells, weight / mass, plan.cells)
            transform = rfft(masses.astype(dtype))
            size_of = np.abs(transform)
            magnitude += event.steps * np.log(size_of)
            phase += event.steps * np.angle(transform)
            nearly += event.steps * np.log(size_of + each)
            worst += event.steps * np.log(size_of + 2 * each)
        grown = worst - nearly
        powers = np.where(grown < 1, np.exp(nearly) * np.expm1(np.minimum(grown, 1)), np.exp(worst))
        error = float(2 * (powers + each * np.exp(nearly)).sum() / plan.cells)
        power = np.exp(magnitude) * (np.cos(phase) + 1j * np.sin(phase))
    masses = irfft(power, plan.cells).astype(np.float64)
    moved = np.roll(masses, -((plan.bottom - centre) % plan.cells))
    return Curve(log_front=log_front, tilted=moved, error=error, plan=plan)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """delta(epsilon) of the tilted masses in a window; ``error``: bound of the error of each of
    them.
    """

    log_front: float
    tilted: Vector
    error: float
    plan: TiltedGrid

    @cached_property
    def weights(self) -> Vector:
        """e^(-theta s) (1 - e^-s) at s = h, 2 h, ... up to 60 / theta, behind which they are below
        e^-60.
        """
        theta = self.plan.theta
        distance = self.plan.width * np.arange(1, len(self.tilted))
        distance = distance[: int(np.searchsorted(theta * distance, 60.0))]
        weights: Vector = np.exp(-theta * distance) * -np.expm1(-distance)
        return weights

    def at(self, i: int, errors: float = 1.0) -> float:
        """delta at the grid's point i of the window, with the bound of FFT errors added (or with -1
        taken off).
        """
        theta = self.plan.theta
        weight = self.weights[: len(self.tilted) - i - 1]
        # Of what is further away, all masses together are at most 1 and the error's share.
        rest = math.exp(-60.0) if len(weight) < len(self.tilted) - i - 1 else 0.0
        masses = self.tilted[i + 1 : i + 1 + len(weight)]
        delta = float(weight @ masses) + errors * (self.error * float(weight.sum()) + rest)
        log_front = self.log_front - theta * self._value(i)
        return delta * math.exp(min(log_front, 700.0))

    def _value(self, i: int) -> float:
        """The grid's point i of the window."""
        return (self.plan.bottom + i) * self.plan.width

    def _near(self, epsilon: float) -> int:
        """A point of the window next to ``epsilon``, with two behind it."""
        i = math.floor(epsilon / self.plan.width) - self.plan.bottom
        return min(max(i, 0), len(self.tilted) - 3)

    def noise(self, epsilon: float) -> float:
        """What the bound of FFT errors adds to delta near ``epsilon``."""
        if not math.isfinite(epsilon):
            return math.inf
        i = self._near(epsilon)
        return self.at(i) - self.at(i, 0.0)

    def fall(self, epsilon: float) -> float:
        """- d log delta / d epsilon near ``epsilon``."""
        i = self._near(epsilon)
        before, after = self.at(i), self.at(i + 1)
        if 0 < after < before < math.inf:
            return max(math.log(before / after) / self.plan.width, 1e-9)
        return self.plan.theta

    def epsilon(self, delta: float, errors: float = 1.0) -> float:
        """Smallest epsilon >= 0 with delta(epsilon) <= delta; it is linear in e^epsilon between
        points of the grid.
        """
        if not delta > 0:
            return math.inf if errors > 0 else 0.0
        low, high = max(-self.plan.bottom, 0) - 1, len(self.tilted) - 1
        if low >= 0 and (high <= low + 1 or self.at(low + 1, errors) <= delta):
            return 0.0
        low = max(low, 0)
        if self.at(low, errors) <= delta:  # it is below the window
            return max(self._value(low), 0.0) if errors > 0 else 0.0
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.at(middle, errors) <= delta else (middle, high)
        before, after = self.at(low, errors), self.at(high, errors)
        if errors > 0 and not after <= delta < before < math.inf:
            return math.inf
        share = (before - delta) / (before - after) if before > after else 1.0
        further = math.log1p(min(share, 1.0) * math.expm1(self.plan.width))
        return max(self._value(low) + further, 0.0)
