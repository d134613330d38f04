"""The exact epsilon of full batches, in closed form.

T Gaussian mechanisms are one (Balle & Wang 2018, theorem 8).

    mu = sqrt(sum T_i / sigma_i^2)
    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)

With t = epsilon / mu - mu / 2 both terms have the factor phi(t), the normal density:

    delta(epsilon) = phi(t) (m(t) - m(t + mu)),     m(t) = (1 - Phi(t)) / phi(t)  (Mills' ratio,
                                                    which falls)

so nothing underflows and nothing is lost at a small delta. No grid and no transform.
"""

import math

from fedlsg.accounting.events import Interval

TINY = 1e-6  # mu below which the slope at t, a bound, replaces the difference of Mills' ratios
# The error of log delta of a full batch, see _log_delta:
MILLS_ROUNDING = 1e-12  # rounding of erfcx and of the logs
QUOTIENT_ROUNDING = 1e-13  # over mu, where mu < 1: rounding of t = epsilon / mu
SLOPE_ERROR = 20.0  # times mu, where mu < TINY: |m'' / m'| < 9 for t >= -8, so 5 mu are enough


def gaussian_interval(noise_multiplier: float, delta: float) -> Interval:
    """Epsilon of one full batch at ``noise_multiplier``, exact up to rounding; both ends leave room
    for it.
    """
    mu = 1 / noise_multiplier
    slope_error = 0.0 if mu >= TINY else SLOPE_ERROR * mu
    room = MILLS_ROUNDING + QUOTIENT_ROUNDING / min(mu, 1.0) + slope_error
    # ``room`` bounds the error of log delta. For the upper end log delta is lowered by it, or a
    # little more: log(1 - room) <= -room. It is 0.5 or more only if mu < 2e-13, where epsilon is 0
    # at any delta above 1e-13. For the lower end log delta is raised by twice the room.
    upper = _gaussian_epsilon(mu, math.log(delta) + math.log1p(-min(room, 0.5))) * (1 + 1e-12)
    lower = _gaussian_epsilon(mu, math.log(delta) + 2 * room) * (1 - 1e-12)
    return Interval(lower=lower, estimate=(lower + upper) / 2, upper=upper)


def _gaussian_epsilon(mu: float, log_delta: float) -> float:
    """The epsilon with log delta(epsilon) = ``log_delta``; 0 if delta(0) is not above it."""
    if log_delta >= 0 or _log_delta(0.0, mu) <= log_delta:
        return 0.0
    from scipy.optimize import brentq  # most processes never need it

    # Phi(-t) <= e^(-t^2 / 2) / 2, so delta is below the target at the larger end.
    largest = mu * (mu / 2 + math.sqrt(-2 * log_delta))

    def excess(epsilon: float) -> float:
        return _log_delta(epsilon, mu) - log_delta

    return float(brentq(excess, 0.0, largest, xtol=1e-300, rtol=1e-14))


def _log_delta(epsilon: float, mu: float) -> float:
    """log delta(epsilon); for a tiny mu an upper bound, at most SLOPE_ERROR mu above it."""
    from scipy.special import erfcx, log_ndtr

    t = epsilon / mu - mu / 2
    # 1 - delta = Phi(t) + e^epsilon Phi(-t - mu): both terms are small here, so log1p keeps their
    # digits.
    if t < -8:
        below = math.exp(log_ndtr(t))
        above = math.exp(min(epsilon + log_ndtr(-t - mu), 0.0))
        return math.log1p(-min(below + above, 1 - 1e-16))
    mills = math.sqrt(math.pi / 2) * erfcx(t / math.sqrt(2))
    further = math.sqrt(math.pi / 2) * erfcx((t + mu) / math.sqrt(2))
    difference = mu * (1 - t * mills) if mu < TINY else mills - further
    if difference <= 0:
        return -math.inf
    return math.log(difference) - t * t / 2 - math.log(math.sqrt(2 * math.pi))
