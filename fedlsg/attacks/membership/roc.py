"""How well scores tell members from others: AUC, and the true positive rate at low false positive rates.

A score is higher the more likely its example is a member. All intervals are two-sided at ``confidence``.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri
from scipy.stats import beta, binom, rankdata

Scores = Float[np.ndarray, " n"]
LOW_RATES = (0.01, 0.001)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A share or an area with its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Roc:
    """AUC, and the true positive rate by false positive rate."""

    auc: Rate
    tpr: dict[float, Rate]


def roc(members: Scores, others: Scores, *, rates: tuple[float, ...] = LOW_RATES, confidence: float = 0.95) -> Roc:
    """All figures of one attack."""
    return Roc(
        auc=auc(members, others, confidence=confidence),
        tpr={rate: tpr_at_fpr(members, others, rate, confidence=confidence) for rate in rates},
    )


def auc(members: Scores, others: Scores, *, confidence: float = 0.95) -> Rate:
    """P[member's score > other's] + P[equal] / 2, with the interval of DeLong et al. 1988.

    Differs from DeLong where the variance is estimated as zero (one example, perfect separation): there the interval
    reaches as far as that of a share of min(n, m) trials.
    """
    n, m = _check(members, others)
    ranks = rankdata(np.concatenate([members, others]))
    of_member = (ranks[:n] - rankdata(members)) / m  # share of the others below each member
    of_other = 1 - (ranks[n:] - rankdata(others)) / n
    value = float(of_member.mean())
    variance = (of_member.var(ddof=1) / n if n > 1 else 0.0) + (of_other.var(ddof=1) / m if m > 1 else 0.0)
    if variance == 0:
        edge = clopper_pearson(round(value * min(n, m)), min(n, m), confidence)
        return Rate(value=value, low=min(edge.low, value), high=max(edge.high, value))
    reach = float(ndtri((1 + confidence) / 2)) * float(np.sqrt(variance))
    return Rate(value=value, low=max(0.0, value - reach), high=min(1.0, value + reach))


def tpr_at_fpr(members: Scores, others: Scores, rate: float, *, confidence: float = 0.95) -> Rate:
    """Share of members above the threshold that at most ``rate`` of the others pass.

    Guarantee: the interval covers the true rate at the others' true quantile. One half of the error is spent on where
    that quantile is among the others' order statistics (binomial), the other on the members (Clopper-Pearson).
    With fewer than 1 / rate others the threshold is their maximum, and the interval is wide to match.
    """
    n, m = _check(members, others)
    if not 0 < rate < 1:
        raise ValueError(f"expected 0 < {rate=} < 1")
    error = (1 - confidence) / 4
    passing = np.sort(others)[::-1]
    value = _share_above(members, _nth_highest(passing, int(rate * m + 1e-9)))
    strict = _nth_highest(passing, int(binom.ppf(error, m, rate)) - 1)
    loose = _nth_highest(passing, int(binom.isf(error, m, rate)) + 1)
    low = clopper_pearson(round(_share_above(members, strict) * n), n, 1 - 2 * error).low
    high = clopper_pearson(round(_share_above(members, loose) * n), n, 1 - 2 * error).high
    return Rate(value=value, low=min(low, value), high=max(high, value))


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> Rate:
    """The exact interval of a binomial share."""
    if not 0 <= successes <= trials or not trials:
        raise ValueError(f"expected 0 <= {successes=} <= {trials=}, which is not 0")
    error = (1 - confidence) / 2
    low = float(beta.ppf(error, successes, trials - successes + 1)) if successes else 0.0
    high = float(beta.isf(error, successes + 1, trials - successes)) if successes < trials else 1.0
    return Rate(value=successes / trials, low=low, high=high)


def _nth_highest(descending: Scores, position: int) -> float:
    """The score that ``position`` others pass; infinite before the first, minus infinite past the last."""
    if position < 0:
        return np.inf
    return float(descending[position]) if position < len(descending) else -np.inf


def _share_above(members: Scores, threshold: float) -> float:
    return float((members > threshold).mean())


def _check(members: Scores, others: Scores) -> tuple[int, int]:
    if members.ndim != 1 or others.ndim != 1 or not len(members) or not len(others):
        raise ValueError(f"expected scores of both kinds, shape (n,), got {members.shape} and {others.shape}")
    if bool(np.isnan(members).any() or np.isnan(others).any()):
        raise ValueError("expected scores without NaN")
    return len(members), len(others)
