"""The sum S of all steps' losses in one direction: its tilt, grid and window, and delta(epsilon) by
one FFT.

pld.py has the symbols, the equations and the bounds of all errors. Everything but the transform is
a sum over a few thousand nodes a step, whatever the number of steps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, Num
from scipy.fft import irfft, next_fast_len, rfft

from fedlsg.accounting.events import AccountingError, Event
from fedlsg.accounting.step import nodes, reach_for
from fedlsg.accounting.step import outside as step_outside
from fedlsg.accounting.step import rounded as rounded_step

Vector = Float64[np.ndarray, " n"]
Points = Int64[np.ndarray, " n"]
Spectrum = Num[np.ndarray, " frequencies"]

EPSILON_SHARE = 3e-4  # of epsilon, given up to the grid
# of delta, given up to what is outside the window and to outputs that are not described
SMALL_SHARE = 1e-7
ALIASED_SHARE = 1e-6  # of the tilted law, may be above the window's length
WRAPPED_SHARE = 1e-4  # of delta, from windows below: e^(-theta N h)
NODE_ERROR = 1e-8  # of K, a step: see Sum.steepest
MAX_CELLS, MAX_WINDOW = 2**22, 2**23  # of one step, and of the composition: seconds and 500 MB
COARSEST_WIDTH = 1.0
FFT_PASS_ROUNDING = 10.0  # pocketfft's passes: additions, twiddles and products, at most 10 u each


@dataclass(frozen=True, eq=False)
class Loss:
    """One step's loss in one direction, as a sum over nodes.

    values: the loss at each node.
    log_weights: logs of the nodes' weights.
    largest: the largest absolute value of the loss.
    cache: ``moments`` by theta. A search asks for the same few hundred theta, whatever the number
        of steps.
    """

    values: Vector
    log_weights: Vector
    largest: float
    cache: dict[float, tuple[float, float, float]] = field(default_factory=dict)

    def moments(self, theta: float) -> tuple[float, float, float]:
        """log E[e^(theta loss)], and mean and variance of the tilted loss."""
        if theta not in self.cache:
            exponent = theta * self.values + self.log_weights
            peak = exponent.max()
            weight = np.exp(exponent - peak)
            mass = weight.sum()
            mean = float(weight @ self.values / mass)
            variance = float(weight @ (self.values - mean) ** 2 / mass)
            self.cache[theta] = float(peak + math.log(mass)), mean, variance
        return self.cache[theta]


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
    """S, the sum of all steps' losses in one direction.

    events: the steps; Poisson-subsampled Gaussian, without Lambda.
    removal: the direction: removal of the example, or addition.
    reach: outputs up to this many standard deviations are described (step.py).
    losses: the loss of one step of each event, in their order.
    """

    events: tuple[Event, ...]
    removal: bool
    reach: float
    losses: tuple[Loss, ...]

    @classmethod
    def of(cls, events: Sequence[Event], delta: float, *, removal: bool) -> "Sum":
        """The sum of all steps of ``events``.

        Its ``reach`` is so large that ``outside`` is about SMALL_SHARE of delta, or less.
        """
        reach = reach_for(SMALL_SHARE * delta / sum(e.steps for e in events))
        losses = tuple(loss(e.sample_rate, e.noise_multiplier, reach, removal) for e in events)
        return cls(events=tuple(events), removal=removal, reach=reach, losses=losses)

    @property
    def steps(self) -> int:
        """T: the steps of all events."""
        return sum(e.steps for e in self.events)

    @property
    def outside(self) -> float:
        """An upper bound of the probability that some output is not described."""
        return self.steps * step_outside(self.reach)

    @property
    def steepest(self) -> float:
        """The largest theta at which a sum over nodes gives log E[e^(theta loss)] to NODE_ERROR.

        Theta times the loss must not change by more than 3 in one of the nodes' intervals. R
        depends on an output x by z = (2 x - 1) / (2 sigma^2): see step.py.
        """
        thetas = []
        for event, one_loss in zip(self.events, self.losses, strict=True):
            # z changes by 1 in so many intervals of step._edges
            intervals = self.reach * event.noise_multiplier + 2
            # the largest dR/dz, 1 - (1 - q) e^-R
            largest_slope = 1.0
            if event.sample_rate < 1:
                largest_slope = -math.expm1(math.log1p(-event.sample_rate) - one_loss.largest)
            thetas.append(3 * intervals / largest_slope)
        return min(thetas)

    @property
    def rounding(self) -> float:
        """An upper bound of the error of S: each loss is off by a few units in its last place.

        1e-15 are 4.5 units of float64.
        """
        pairs = zip(self.events, self.losses, strict=True)
        return sum(event.steps * 1e-15 * one_loss.largest for event, one_loss in pairs)

    def moments(self, theta: float) -> tuple[float, float, float]:
        """K, K' and K'' at theta: log E[e^(theta S)], and mean and variance of the tilted S."""
        total, mean, variance = 0.0, 0.0, 0.0
        for event, one_loss in zip(self.events, self.losses, strict=True):
            step_log_mean, step_mean, step_variance = one_loss.moments(theta)
            total += event.steps * step_log_mean
            mean += event.steps * step_mean
            variance += event.steps * step_variance
        return total, mean, variance

    def rounded(self, event: Event, width: float) -> tuple[int, Vector]:
        """(k, m): log masses of one step's loss at k width, (k + 1) width, ..."""
        first, log_mass = rounded_step(
            event.sample_rate, event.noise_multiplier, self.reach, width, MAX_CELLS
        )
        if self.removal:
            return first, log_mass + (first + np.arange(len(log_mass))) * width
        return -(first + len(log_mass) - 1), log_mass[::-1]


@dataclass(frozen=True, kw_only=True)
class TiltedGrid:
    """How a sum is composed.

    theta: the tilt.
    width: h, the distance of two points of the grid.
    bottom: the window's first point, in widths.
    cells: N, the number of the window's points.
    above: an upper bound of P(S > the window).
    chernoff: (t, log E[e^(t S)] or more) with t > theta, for the bound of what aliasing adds to
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
        h), N = cells, h = width.

        j > 0: Chernoff at t, a geometric series of ratio <= 1/2. j < 0: delta <= 1, a geometric
        series of ratio e^(-theta N h) <= 1/e. Each sum is at most twice its first term. Returns 1.0
        (no bound) where a ratio is larger, or a first term above 1.
        """
        period = self.cells * self.width
        t, log_mean = self.chernoff
        first = log_mean - t * (epsilon + period) + self.theta * period
        ratio = math.exp((self.theta - t) * period)
        if first > 0 or ratio > 0.5 or self.theta * period < 1:
            return 1.0
        return 2 * (math.exp(first) + math.exp(-self.theta * period))


def plan(total: Sum, delta: float, theta: float, scale: float) -> TiltedGrid:
    """Width and window for an epsilon near ``scale``, of which the grid may take EPSILON_SHARE.

    Rounding to the grid moves a step's loss by at most h, and raises S by about T (1 + theta) h^2 /
    12 on average. The width is the larger one of the two that these bounds allow.
    """
    steps = total.steps
    width_by_largest_move = EPSILON_SHARE * scale / steps
    width_by_mean_move = math.sqrt(12 * EPSILON_SHARE * scale / (steps * (1 + theta)))
    width = min(max(width_by_largest_move, width_by_mean_move), COARSEST_WIDTH)
    while True:
        hoeffding = steps * width**2 / 8
        top = _top(total, delta, hoeffding)
        beyond = _beyond(total, theta, hoeffding)
        bottom, length = _window(total, delta, theta, hoeffding, top.end, beyond.end)
        length += 2 * width
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
    log_above = top.log_mean + NODE_ERROR * steps - top.t * (start + cells - 1) * width
    return TiltedGrid(
        theta=theta,
        width=width,
        bottom=start,
        cells=cells,
        above=math.exp(min(log_above, 0.0)),
        chernoff=(beyond.t, beyond.log_mean),
    )


class _Tail(NamedTuple):
    """A Chernoff bound of an upper tail of S on the grid.

    end: the sum beyond which the probability is small.
    t: the exponent of the bound.
    log_mean: log E[e^(t S)], or more.
    """

    end: float
    t: float
    log_mean: float


def _top(total: Sum, delta: float, hoeffding: float) -> _Tail:
    """The tail with P(S > end) <= SMALL_SHARE delta."""
    log_share = math.log(SMALL_SHARE * delta)
    t = solve(lambda t, k, mean: t * mean + hoeffding * t**2 - k + log_share, total, total.steepest)
    log_mean = _log_mean_on_grid(total, t, hoeffding)
    return _Tail((log_mean - log_share) / t, t, log_mean)


def _beyond(total: Sum, theta: float, hoeffding: float) -> _Tail:
    """The tail with at most ALIASED_SHARE of the law that is tilted by ``theta``; t > theta."""
    log_share, k = math.log(ALIASED_SHARE), total.moments(theta)[0]
    t = solve(
        lambda t, k_t, mean: (t - theta) * mean - k_t + k + log_share,
        total,
        total.steepest,
        theta,
    )
    log_mean = _log_mean_on_grid(total, t, hoeffding)
    return _Tail((log_mean - k - log_share) / (t - theta), t, log_mean)


def _log_mean_on_grid(total: Sum, t: float, hoeffding: float) -> float:
    """log E[e^(t S)] or more, of S on the grid: by Hoeffding's lemma, K(t) rises by at most (t +
    t^2) T h^2 / 8. ``hoeffding``: T h^2 / 8.
    """
    return total.moments(t)[0] + hoeffding * (t + t**2)


def _window(
    total: Sum, delta: float, theta: float, hoeffding: float, top: float, beyond: float
) -> tuple[float, float]:
    """(bottom, length) of the window, before both are rounded to the grid.

    The tilt puts the mean near epsilon, so that a window from four standard deviations below it on
    has epsilon inside. Rounding to the grid adds at most T h^2 / 4 = 2 ``hoeffding`` to the
    variance.
    """
    _, mean, variance = total.moments(theta)
    spread = math.sqrt(variance + 2 * hoeffding)
    bottom = mean - 4 * spread
    length = max(
        top - bottom,
        # From an epsilon of mean - spread on, the next window above starts beyond ``beyond``.
        beyond - mean + spread,
        # The next window below counts e^(-theta N h) times: at most WRAPPED_SHARE of delta.
        (math.log(1 / WRAPPED_SHARE) - math.log(delta)) / theta,
    )
    return bottom, length


def solve(
    excess: Callable[[float, float, float], float], total: Sum, largest: float, least: float = 0.0
) -> float:
    """A theta in ``least`` .. ``largest`` where ``excess(theta, K, K')`` is about 0.

    ``excess`` rises with theta. Bisection on log(theta - least), to 0.01.
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


def tilted(total: Sum, grid: TiltedGrid, dtype: type[np.floating[Any]]) -> "Curve":
    """The tilted masses in the window, by transforms and powers in ``dtype``.

    The unit u of ``dtype`` bounds their errors (pld.py).
    """
    log_front, centre = 0.0, 0
    coefficient_error = FFT_PASS_ROUNDING * unit(dtype) * math.log2(grid.cells)  # e of pld.py
    size = grid.cells // 2 + 1
    # Logs of prod |f^|^T, prod (|f^| + e)^T and prod (|f^| + 2 e)^T at each frequency.
    log_power, phase, log_power_1e, log_power_2e = (np.zeros(size, dtype=dtype) for _ in range(4))
    with np.errstate(divide="ignore", under="ignore"):
        for event in total.events:
            step = _tilted_step(total, event, grid)
            log_front += event.steps * step.log_mean
            if total.steps == 1:  # no transform, no error
                window = step.points - grid.bottom
                inside = (window >= 0) & (window < grid.cells)
                masses = np.bincount(window[inside], step.masses[inside], grid.cells)
                return Curve(log_front=log_front, tilted=masses, error=0.0, grid=grid)
            centre += event.steps * step.middle
            around_0 = (step.points - step.middle) % grid.cells
            transform = rfft(np.bincount(around_0, step.masses, grid.cells).astype(dtype))
            magnitude = np.abs(transform)
            log_power += event.steps * np.log(magnitude)
            phase += event.steps * np.angle(transform)
            log_power_1e += event.steps * np.log(magnitude + coefficient_error)
            log_power_2e += event.steps * np.log(magnitude + 2 * coefficient_error)
        error = _error_of_power(log_power_1e, log_power_2e, coefficient_error, grid.cells)
        power = np.exp(log_power) * (np.cos(phase) + 1j * np.sin(phase))
    masses = irfft(power, grid.cells).astype(np.float64)
    moved = np.roll(masses, -((grid.bottom - centre) % grid.cells))
    return Curve(log_front=log_front, tilted=moved, error=error, grid=grid)


class _TiltedStep(NamedTuple):
    """One step of an event on the grid, tilted.

    points: consecutive points of the grid, in widths.
    masses: the mass at each point; they sum to 1.
    middle: the point next to their mean.
    log_mean: log E[e^(theta loss)].
    """

    points: Points
    masses: Vector
    middle: int
    log_mean: float


def _tilted_step(total: Sum, event: Event, grid: TiltedGrid) -> _TiltedStep:
    """One step of ``event`` on the grid, tilted."""
    first, log_mass = total.rounded(event, grid.width)
    points = np.arange(first, first + len(log_mass))
    exponent = log_mass + points * (grid.theta * grid.width)
    peak = float(exponent.max())
    weight = np.exp(exponent - peak)
    mass = float(weight.sum())
    middle = round(float(weight @ points / mass))
    return _TiltedStep(points, weight / mass, middle, peak + math.log(mass))


def _error_of_power(
    log_power_1e: Spectrum, log_power_2e: Spectrum, coefficient_error: float, cells: int
) -> float:
    """Bound of the error of each mass g(s): see FFT in pld.py, e = ``coefficient_error``.

    The mean over all frequencies of prod (|f^| + 2 e)^T - prod (|f^| + e)^T + e prod (|f^| + e)^T.
    A real transform has half of the frequencies: twice their sum is at least that of all.
    """
    grown = log_power_2e - log_power_1e
    # The difference by expm1, whose digits do not cancel; a large one is at most its first term.
    differences = np.where(
        grown < 1, np.exp(log_power_1e) * np.expm1(np.minimum(grown, 1)), np.exp(log_power_2e)
    )
    return float(2 * (differences + coefficient_error * np.exp(log_power_1e)).sum() / cells)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """delta(epsilon) of the tilted masses in a window.

    log_front: K(theta) = log E[e^(theta S)], as composed on the grid.
    tilted: g of pld.py, a mass for each point of the window.
    error: bound of the error of each of these masses, from the FFT.
    grid: the tilt and the window.

    Where a method takes ``errors``: +1 adds the bound of FFT errors to delta (an upper bound), -1
    subtracts it (a lower bound), 0 leaves it out.
    """

    log_front: float
    tilted: Vector
    error: float
    grid: TiltedGrid

    @cached_property
    def weights(self) -> Vector:
        """e^(-theta s) (1 - e^-s) at s = h, 2 h, ... up to 60 / theta: all others are below
        e^-60.
        """
        theta = self.grid.theta
        distance = self.grid.width * np.arange(1, len(self.tilted))
        distance = distance[: int(np.searchsorted(theta * distance, 60.0))]
        weights: Vector = np.exp(-theta * distance) * -np.expm1(-distance)
        return weights

    def at(self, i: int, errors: float = 1.0) -> float:
        """delta at the grid's point i of the window."""
        theta = self.grid.theta
        weight = self.weights[: len(self.tilted) - i - 1]
        # All masses further away sum to at most 1 (with their errors, which are tiny).
        rest = math.exp(-60.0) if len(weight) < len(self.tilted) - i - 1 else 0.0
        masses = self.tilted[i + 1 : i + 1 + len(weight)]
        delta = float(weight @ masses) + errors * (self.error * float(weight.sum()) + rest)
        log_front = self.log_front - theta * self._value(i)
        return delta * math.exp(min(log_front, 700.0))  # no overflow; delta is far above 1 there

    def _value(self, i: int) -> float:
        """The loss at point i of the window."""
        return (self.grid.bottom + i) * self.grid.width

    def _near(self, epsilon: float) -> int:
        """A point i of the window next to ``epsilon``: at most the third last, so that i + 1 and
        its masses exist.
        """
        i = math.floor(epsilon / self.grid.width) - self.grid.bottom
        return min(max(i, 0), len(self.tilted) - 3)

    def fft_error(self, epsilon: float) -> float:
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
            return max(math.log(before / after) / self.grid.width, 1e-9)
        return self.grid.theta

    def epsilon(self, delta: float, errors: float = 1.0) -> float:
        """Smallest epsilon >= 0 with delta(epsilon) <= delta.

        delta(epsilon) is linear in e^epsilon between points of the grid. Where the window does not
        decide, an upper bound (``errors`` > 0) is infinity or the window's first point, and a lower
        one is 0.
        """
        if not delta > 0:
            return math.inf if errors > 0 else 0.0
        low, high = max(-self.grid.bottom, 0) - 1, len(self.tilted) - 1
        # point low + 1 is epsilon = 0, if the window has it
        if low >= 0 and (high <= low + 1 or self.at(low + 1, errors) <= delta):
            return 0.0
        low = max(low, 0)
        if self.at(low, errors) <= delta:  # the epsilon is below the window
            return max(self._value(low), 0.0) if errors > 0 else 0.0
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.at(middle, errors) <= delta else (middle, high)
        before, after = self.at(low, errors), self.at(high, errors)
        if errors > 0 and not after <= delta < before < math.inf:
            return math.inf
        share = (before - delta) / (before - after) if before > after else 1.0
        further = math.log1p(min(share, 1.0) * math.expm1(self.grid.width))
        return max(self._value(low) + further, 0.0)
