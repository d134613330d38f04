"""Areas and rates with their intervals: by hand, against brute force, and their coverage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, norm
from sklearn.metrics import roc_auc_score

from fedlsg.attacks.metrics import auc, clopper_pearson, roc, tpr_at_fpr

values = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)


def test_by_hand():
    """Of six pairs four are ordered right and one is a tie."""
    members, others = np.array([3.0, 1.0]), np.array([0.0, 1.0, 2.0])
    assert auc(members, others).value == pytest.approx((3 + 1.5) / 6)
    assert tpr_at_fpr(members, others, 0.4).value == 0.5


@given(members=values, others=values)
def test_auc_is_the_share_of_ordered_pairs(members, others):
    a, b = np.array(members), np.array(others)
    pairs = (a[:, None] > b).mean() + (a[:, None] == b).mean() / 2
    area = auc(a, b)
    assert area.value == pytest.approx(pairs)
    assert 0 <= area.low <= area.value <= area.high <= 1


def test_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=300) + 0.5, rng.normal(size=200)
    truth = np.concatenate([np.ones(300), np.zeros(200)])
    assert auc(a, b).value == pytest.approx(roc_auc_score(truth, np.concatenate([a, b])))


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10)])
def test_clopper_pearson_agrees_with_scipy(k, n):
    mine, exact = clopper_pearson(k, n, 0.95), binomtest(k, n).proportion_ci(0.95, "exact")
    assert (mine.low, mine.high) == pytest.approx((exact.low, exact.high))


def test_intervals_cover_the_truth():
    """Normal scores a unit apart, 200 data sets: at least 95 % less five standard deviations of that count."""
    rng = np.random.default_rng(1)
    area, rate = norm.cdf(1 / np.sqrt(2)), norm.sf(norm.isf(0.01) - 1)
    found = [roc(rng.normal(size=300) + 1, rng.normal(size=300), rates=(0.01,)) for _ in range(200)]
    assert sum(r.auc.low <= area <= r.auc.high for r in found) >= 175
    assert sum(r.tpr[0.01].low <= rate <= r.tpr[0.01].high for r in found) >= 175


def test_an_interval_that_ignores_the_threshold_would_not_cover():
    """Negative control: with few others the measured threshold wanders, and Clopper-Pearson alone misses."""
    rng = np.random.default_rng(2)
    rate = norm.sf(norm.isf(0.01) - 2)
    covered = 0
    for _ in range(200):
        members, others = rng.normal(size=2000) + 2, rng.normal(size=100)
        share = tpr_at_fpr(members, others, 0.01).value
        alone = clopper_pearson(round(share * 2000), 2000)
        covered += alone.low <= rate <= alone.high
    assert covered < 120


def test_perfect_separation_has_an_interval():
    area = auc(np.ones(20), np.zeros(20))
    assert area.value == 1
    assert area.low < 1


def test_refuses():
    with pytest.raises(ValueError, match="both kinds"):
        auc(np.zeros(0), np.zeros(3))
    with pytest.raises(ValueError, match="NaN"):
        auc(np.array([np.nan]), np.zeros(3))
    with pytest.raises(ValueError, match="rate"):
        tpr_at_fpr(np.zeros(2), np.zeros(3), 0.0)
    with pytest.raises(ValueError, match="successes"):
        clopper_pearson(3, 2)
