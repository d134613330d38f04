"""How well scores distinguish members from others: for reports alone.

A score is higher the more likely its example is a member. All intervals are two-sided at
``confidence``.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri
from scipy.stats import binom, binomtest, rankdata

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


def roc(
    members: Scores,
    others: Scores,
    *,
    rates: tuple[float, ...] = LOW_RATES,
    confidence: float = 0.95,
) -> Roc:
    """AUC, and the true positive rate at each false positive rate, with intervals."""
    tpr = {rate: tpr_at_fpr(members, others, rate, confidence=confidence) for rate in rates}
    return Roc(auc=auc(members, others, confidence=confidence), tpr=tpr)


def auc(members: Scores, others: Scores, *, confidence: float = 0.95) -> Rate:
    """P[member's score > other's] + P[equal] / 2, with the interval of DeLong et al. 1988.

    Differs from DeLong where the variance is estimated as zero (one example, perfect separation):
    there the interval reaches as far as that of a share of min(n, m) trials.
    """
    n, m = _check_scores(members, others)
    ranks = rankdata(np.concatenate([members, others]))
    of_member = (ranks[:n] - rankdata(members)) / m  # share of the others below each member
    of_other = 1 - (ranks[n:] - rankdata(others)) / n
    value = float(of_member.mean())
    variance = 0.0
    for shares in (of_member, of_other):
        if len(shares) > 1:
            variance += shares.var(ddof=1) / len(shares)
    if variance == 0:
        trials = min(n, m)
        edge = clopper_pearson(round(value * trials), trials, confidence)
        return Rate(value=value, low=min(edge.low, value), high=max(edge.high, value))
    reach = float(ndtri((1 + confidence) / 2)) * math.sqrt(variance)
    return Rate(value=value, low=max(0.0, value - reach), high=min(1.0, value + reach))


def tpr_at_fpr(members: Scores, others: Scores, rate: float, *, confidence: float = 0.95) -> Rate:
    """Share of members above the threshold that at most ``rate`` of the others pass.

    Guarantee: the interval covers the true rate at the others' true quantile. One half of the error
    is spent on where that quantile is among the others' order statistics (binomial), the other on
    the members (Clopper-Pearson). With fewer than 1 / rate others the threshold is their maximum,
    and the interval is wide to match.
    """
    n, m = _check_scores(members, others)
    if not 0 < rate < 1:
        raise ValueError(f"expected 0 < {rate=} < 1")
    error = (1 - confidence) / 4
    passing = np.sort(others)[::-1]

    def members_above(position: int) -> int:
        return int((members > _nth_highest(passing, position)).sum())

    value = members_above(int(rate * m + 1e-9)) / n  # 1e-9: rounding of the product
    # N others are above the true quantile, and N is Binomial(m, rate). N >= a = ppf(error) with a
    # probability of 1 - error: then the a-th highest score, at position a - 1, is not below the
    # quantile. N <= b = isf(error) with the same one: then that at position b is not above it.
    # Position b + 1 is one more than this needs, which can only make the interval wider.
    strict = members_above(int(binom.ppf(error, m, rate)) - 1)
    loose = members_above(int(binom.isf(error, m, rate)) + 1)
    low = clopper_pearson(strict, n, 1 - 2 * error).low
    high = clopper_pearson(loose, n, 1 - 2 * error).high
    return Rate(value=value, low=min(low, value), high=max(high, value))


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> Rate:
    """The exact interval of a binomial share."""
    if not 0 <= successes <= trials or not trials:
        raise ValueError(f"expected 0 <= {successes=} <= {trials=}, which is not 0")
    ends = binomtest(successes, trials).proportion_ci(confidence)
    return Rate(value=successes / trials, low=float(ends.low), high=float(ends.high))


def _nth_highest(descending: Scores, position: int) -> float:
    """The score that ``position`` others exceed.

    Infinite before the first, minus infinite after the last.
    """
    if position < 0:
        return np.inf
    return float(descending[position]) if position < len(descending) else -np.inf


def _check_scores(members: Scores, others: Scores) -> tuple[int, int]:
    if members.ndim != 1 or others.ndim != 1 or not len(members) or not len(others):
        raise ValueError(
            f"expected scores of both kinds, shape (n,), got {members.shape} and {others.shape}"
        )
    if bool(np.isnan(members).any() or np.isnan(others).any()):
        raise ValueError("expected scores without NaN")
    return len(members), len(others)
