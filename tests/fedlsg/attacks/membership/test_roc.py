"""Areas and rates with their intervals: by hand, against brute force, and their coverage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fedlsg.attacks.metrics import auc, roc

values = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)


@given(members=values, others=values)
def test_auc_is_the_share_of_ordered_pairs(members, others):
    a, b = np.array(members), np.array(others)
    pairs = (a[:, None] > b).mean() + (a[:, None] == b).mean() / 2
    area = auc(a, b)
    assert area.value == pytest.approx(pairs)
    assert 0 <= area.low <= area.value <= area.high <= 1


def test_intervals_cover_the_truth():
    """Normal scores a unit apart, 200 data sets: at least 95 % less five standard deviations of that count."""
    rng = np.random.default_rng(1)
    area, rate = norm.cdf(1 / np.sqrt(2)), norm.sf(norm.isf(0.01) - 1)
    found = [roc(rng.normal(size=300) + 1, rng.normal(size=300), rates=(0.01,)) for _ in range(200)]
    assert sum(r.auc.low <= area <= r.auc.high for r in found) >= 175
    assert sum(r.tpr[0.01].low <= rate <= r.tpr[0.01].high for r in found) >= 175
