"""Epsilon of subsampled Gaussian steps without a grid: closed forms, and the inversion of a Laplace
transform.

Shares no code with fedlsg.accounting. With M(z) = E[e^(z loss)] of one step, and any c > 0
(Bromwich's integral):

    delta(epsilon) = 1 / (2 pi) integral of M(c + iw)^T e^(-(c + iw) epsilon) / ((c + iw) (c + iw +
    1)) dw

The trapezoidal rule is exact here but for e^(-c 2 pi / step), and for the tail where M^T has not
decayed: `inverted` checks both and refuses. M is a trapezoidal sum over outputs, which is exact to
roundoff for this integrand.
"""

import math
from typing import Any

import mpmath
import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_ndtr, ndtr


def full_batch(sigma: float, steps: int, delta: float) -> float:
    """Balle & Wang (2018), Thm. 8: T Gaussian mechanisms are one with mu = sqrt(T) / sigma."""
    mu = math.sqrt(steps) / sigma

    def excess(eps: float) -> float:
        return ndtr(mu / 2 - eps / mu) - math.exp(eps + log_ndtr(-mu / 2 - eps / mu)) - delta

    return brentq(excess, 0.0, mu**2 + 40 * mu, xtol=1e-15, rtol=1e-13) if excess(0.0) > 0 else 0.0


def one_step(q: float, sigma: float, delta: float) -> float:
    """Larger hockey-stick divergence of (1-q) N(0, s^2) + q N(1, s^2) and N(0, s^2), either way
    round: closed form.

    In 40 digits: with a tiny q the two terms cancel.
    """
    with mpmath.workdps(40):
        found = _one_step(mpmath.mpf(q), mpmath.mpf(sigma), mpmath.mpf(delta))
    return found


def _one_step(q: Any, sigma: Any, delta: Any) -> float:
    def excess(eps: Any) -> Any:
        # Removal: the loss exceeds eps above x; addition: below y, which exists where e^-eps > 1 -
        # q.
        e = mpmath.exp(eps)
        x = sigma**2 * mpmath.log((e - 1 + q) / q) + 0.5
        removal = (1 - q - e) * mpmath.ncdf(-x / sigma) + q * mpmath.ncdf((1 - x) / sigma)
        if 1 / e <= 1 - q:
            return removal - delta
        y = sigma**2 * mpmath.log((1 / e - 1 + q) / q) + 0.5
        addition = (1 - e * (1 - q)) * mpmath.ncdf(y / sigma) - e * q * mpmath.ncdf((y - 1) / sigma)
        return max(removal, addition) - delta

    low, high = mpmath.mpf(10) ** -20, mpmath.mpf(1)
    if excess(low) <= 0:
        return 0.0
    while excess(high) > 0:
        high *= 2
    for _ in range(100):  # halved in logarithms, then in numbers
        middle = mpmath.sqrt(low * high) if high > 2 * low else (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return float(high)


def inverted(events: list[tuple[float, float, int]], delta: float, *, near: float) -> float:
    """Epsilon of steps (q, sigma, T), the larger of both directions; ``near``: a value within 20 %
    of it.

    Raises: ValueError where the transform has not decayed, so that the sum over frequencies does
    not end, or where epsilon is not near.
    """
    return max(_inverted(events, delta, near, removal) for removal in (True, False))


def _inverted(
    events: list[tuple[float, float, int]], delta: float, near: float, removal: bool
) -> float:
    parts = [(*_loss(q, sigma, removal), steps) for q, sigma, steps in events]

    def cumulant(c: float) -> float:
        return sum(
            t * float(np.logaddexp.reduce(c * loss + log_weight)) for loss, log_weight, t in parts
        )

    log_c = minimize_scalar(
        lambda log_c: (
            cumulant(math.exp(log_c)) - math.exp(log_c) * near - log_c - math.log1p(math.exp(log_c))
        ),
        bounds=(-9, 18),
        method="bounded",
    ).x
    c = math.exp(log_c)
    spread = math.sqrt(
        (cumulant(1.01 * c) - 2 * cumulant(c) + cumulant(0.99 * c)) / (0.01 * c) ** 2
    )
    step = 2 * math.pi / max(16 * spread, 50 / c)
    z, values = _transform(parts, c, step)

    def excess(eps: float) -> float:
        total = float((values * np.exp(-1j * z.imag * eps)).sum().real) * step / math.pi
        return math.log(max(total, 1e-300)) + cumulant(c) - c * eps - math.log(delta)

    if not removal and excess(0.8 * near) < 0:
        return 0.0  # addition does not matter here
    return brentq(excess, 0.8 * near, 1.2 * near, xtol=1e-13 * near)


def _transform(
    parts: list[tuple[np.ndarray, np.ndarray, int]], c: float, step: float
) -> tuple[np.ndarray, np.ndarray]:
    """z, and the tilted transform over z (z + 1), at c, c + i step, ... until it has decayed."""
    found = []
    for count in range(100):
        z = c + 1j * step * np.arange(256 * count, 256 * (count + 1))
        power = np.zeros(len(z), dtype=complex)
        for loss, log_weight, t in parts:
            tilted = np.exp(c * loss + log_weight - (c * loss + log_weight).max())
            middle = float(tilted @ loss / tilted.sum())
            each = np.exp(1j * np.outer(z.imag, loss - middle)) @ (tilted / tilted.sum())
            power += t * (np.log(each) + 1j * z.imag * middle)
        found.append((z, np.exp(power) / (z * (z + 1))))
        if np.abs(found[-1][1])[-50:].max() * 256 * (count + 1) < 1e-9 * np.abs(found[0][1]).sum():
            z, values = (np.concatenate(part) for part in zip(*found, strict=True))
            values[0] /= 2
            return z, values
    raise ValueError("the transform does not decay: no exact value by inversion")


def _loss(q: float, sigma: float, removal: bool) -> tuple[np.ndarray, np.ndarray]:
    """A step's losses, and the logs of their probabilities, on a fine grid of outputs."""
    x = np.linspace(-14 * sigma, 1 + 14 * sigma, 4001 + 2 * math.ceil(60 / sigma**2))
    z = (2 * x - 1) / (2 * sigma**2)
    change = q * np.expm1(np.minimum(z, 600))
    ratio = (
        z
        if q == 1
        else np.where(
            np.abs(change) < 0.5,
            np.log1p(np.clip(change, -0.6, 0.6)),
            np.logaddexp(math.log1p(-q), math.log(q) + z),
        )
    )
    log_weight = (
        -0.5 * (x / sigma) ** 2 - math.log(sigma * math.sqrt(2 * math.pi)) + math.log(x[1] - x[0])
    )
    return (ratio, log_weight + ratio) if removal else (-ratio, log_weight)
