"""delta(epsilon) of a composed loss: tilted masses by one FFT and a power, and a bound of their errors. See pld.py."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.fft import irfft, rfft

from fedlsg.accounting.tilt import Plan, Sum, Vector

ROUNDING = 10.0  # pocketfft's passes: additions, twiddles and products, at most 10 u each


def unit(dtype: type[np.floating[Any]]) -> float:
    """u of a number format: the largest relative error of one rounding."""
    return float(np.finfo(dtype).eps) / 2


def tilted(total: Sum, plan: Plan, dtype: type[np.floating[Any]]) -> "Curve":
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
                return Curve(log_front=log_front, tilted=masses, error=0.0, plan=plan)
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
    return Curve(log_front=log_front, tilted=moved, error=error, plan=plan)


@dataclass(frozen=True, kw_only=True)
class Curve:
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
        return (
            max(math.log(before / after) / self.plan.width, 1e-9) if 0 < after < before < math.inf else self.plan.theta
        )

    def epsilon(self, delta: float, errors: float = 1.0) -> float:
        """Smallest epsilon >= 0 with delta(epsilon) <= delta; it is linear in e^epsilon between points of the grid."""
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
