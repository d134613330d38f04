"""Full batches: T Gaussian mechanisms are one, and its epsilon has a closed form (Balle & Wang 2018, theorem 8).

    mu = sqrt(sum T_i / sigma_i^2)
    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)

With t = epsilon / mu - mu / 2 both terms have the factor phi(t), the normal density:

    delta(epsilon) = phi(t) (m(t) - m(t + mu)),     m(t) = (1 - Phi(t)) / phi(t)  (Mills' ratio, which falls)

so nothing underflows and nothing is lost at a small delta. No grid and no transform.
"""

import math

from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr

from fedlsg.accounting.events import Interval

TINY = 1e-6  # below it the difference of Mills' ratios is replaced by its bound, the slope at t


def interval(noise_multiplier: float, delta: float) -> Interval:
    """Epsilon of one full batch at ``noise_multiplier``, exact but for rounding, which both ends leave room for."""
    mu = 1 / noise_multiplier
    room = 1e-12 + 1e-13 / min(mu, 1.0) + (0.0 if mu >= TINY else 20 * mu)
    upper = _epsilon(mu, math.log(delta) + math.log1p(-min(room, 0.5))) * (1 + 1e-12)
    lower = _epsilon(mu, math.log(delta) + 2 * room) * (1 - 1e-12)
    return Interval(lower=lower, estimate=(lower + upper) / 2, upper=upper)


def _epsilon(mu: float, log_delta: float) -> float:
    if log_delta >= 0 or _log_delta(0.0, mu) <= log_delta:
        return 0.0
    # Phi(-t) <= e^(-t^2 / 2) / 2, so delta is below the target at the larger end.
    largest = mu * (mu / 2 + math.sqrt(-2 * log_delta))
    return float(brentq(lambda epsilon: _log_delta(epsilon, mu) - log_delta, 0.0, largest, xtol=1e-300, rtol=1e-14))


def _log_delta(epsilon: float, mu: float) -> float:
    """log delta(epsilon); for a tiny mu an upper bound, at most 20 mu above it."""
    t = epsilon / mu - mu / 2
    if t < -8:  # delta is 1 to within e^-32, less a term that is as small or exact
        return math.log1p(-min(math.exp(log_ndtr(t)) + math.exp(min(epsilon + log_ndtr(-t - mu), 0.0)), 1 - 1e-16))
    mills = math.sqrt(math.pi / 2) * erfcx(t / math.sqrt(2))
    further = math.sqrt(math.pi / 2) * erfcx((t + mu) / math.sqrt(2))
    difference = mu * (1 - t * mills) if mu < TINY else mills - further
    return math.log(difference) - t * t / 2 - math.log(math.sqrt(2 * math.pi)) if difference > 0 else -math.inf
