"""A quick upper bound on epsilon: Renyi divergences at integer orders, in closed form and without a library.

    A(a) = sum over k <= a of  C(a, k) (1 - q)^(a - k) q^k exp((k^2 - k) / (2 sigma^2))     one step, order a
    epsilon = min over a of  T log A(a) / (a - 1)  +  log(1 - 1 / a)  -  log(a delta) / (a - 1)

Mironov, Talwar & Zhang 2019 (arXiv 1908.10530), theorem 5 and section 3.3: A bounds both directions of add/remove.
Conversion: Canonne, Kamath & Steinke 2020, proposition 12. It is a tenth to a quarter above the accountants' answers. A
client far from its budget learns from it, in a millisecond, that it is far. It is reported only at a delta below 1e-11,
which the accountants' transforms do not resolve: here no probability is subtracted from another. Sees no data.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Float64

from fedlsg.accounting.events import AccountingError, Event, Interval, check_plain, raised, smaller_delta, split

ORDERS = (*range(2, 65), 80, 96, 128, 192, 256)
ROUNDING = 4e-12  # of log A in float64: terms of up to 1,200 with errors of 2^-52 each
_LOG_FACTORIALS = np.array([math.lgamma(n + 1) for n in range(ORDERS[-1] + 1)])


def surely_within(events: Sequence[Event], *, epsilon: float, delta: float) -> bool:
    """Whether the epsilon that ``compose`` would report is certainly not above ``epsilon``; False says nothing.

    Guarantee: where it is True, the true epsilon is at most this bound, which leaves room for both accountants' errors:
    an upper bound of prv-accountant is at most 1 % and .002 above the truth (twice the additive error that
    `accountant_prv.interval` asks for), one of dp-accounting about 1e-4 of it. Lambda of the events is charged as in
    ``compose``.
    """
    plain, log_ratio = split(events)
    try:
        delta = smaller_delta(delta, log_ratio)
    except AccountingError:
        return False
    return raised(upper_bound(plain, delta) * 1.01 + 0.002, log_ratio) <= epsilon


def interval(events: Sequence[Event], delta: float) -> Interval:
    """The bound with room for rounding; nothing is known from below.

    Differs from the accountants at small epsilon: no order above 256 is tried, so it does not fall below about
    log(1 / delta) / 255 (0.09 at delta = 1e-12).
    """
    upper = upper_bound(events, delta) + ROUNDING * sum(e.steps for e in events)
    return Interval(lower=0.0, estimate=upper, upper=upper)


def upper_bound(events: Sequence[Event], delta: float) -> float:
    """Certified upper bound on the epsilon of all events on the same examples. Raises ValueError for a Lambda."""
    check_plain(events)
    orders = np.array(ORDERS, dtype=np.float64)
    spent = sum((e.steps * _log_moments(e.sample_rate, e.noise_multiplier) for e in events), np.zeros(len(orders)))
    bounds = spent / (orders - 1) + np.log1p(-1 / orders) - (np.log(orders) + math.log(delta)) / (orders - 1)
    return max(float(bounds.min()), 0.0)


@lru_cache(maxsize=4096)
def _log_moments(sample_rate: float, noise_multiplier: float) -> Float64[np.ndarray, " orders"]:
    """log A at every order, of one step."""
    half = 0.5 / noise_multiplier**2
    if sample_rate == 1.0:
        return np.array([half * (a * a - a) for a in ORDERS])
    found = []
    for a in ORDERS:
        k = np.arange(a + 1)
        comb = _LOG_FACTORIALS[a] - _LOG_FACTORIALS[: a + 1] - _LOG_FACTORIALS[a::-1]
        terms = comb + k * math.log(sample_rate) + (a - k) * math.log1p(-sample_rate) + (k * k - k) * half
        found.append(np.logaddexp.reduce(terms))
    return np.array(found)
