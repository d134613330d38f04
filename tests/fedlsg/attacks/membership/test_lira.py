"""LiRA: by hand, against the exact likelihood ratio, and against a loss threshold on examples of unequal difficulty."""

import numpy as np
import pytest
from scipy.stats import norm

from fedlsg.attacks.membership import lira_offline, lira_online


def world(models=200, examples=400, seed=0):
    """Each example has its own difficulty; training on it adds 1.5 deviations."""
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(scale=5, size=examples)
    inside = rng.random((models + 1, examples)) < 0.5
    confidences = difficulty + 1.5 * inside + rng.normal(size=inside.shape)
    return confidences[0], inside[0], confidences[1:], inside[1:], difficulty


@pytest.mark.parametrize("fixed", [True, False])
def test_online_approaches_the_exact_ratio(fixed):
    target, _, shadows, inside, difficulty = world(models=4000, examples=50)
    exact = norm.logpdf(target, difficulty + 1.5) - norm.logpdf(target, difficulty)
    assert np.abs(lira_online(target, shadows, inside, fixed_variance=fixed) - exact).max() < 0.5


def test_offline_uses_no_shadow_with_the_example():
    target, _, shadows, inside, _ = world()
    changed = np.where(inside, shadows + 100, shadows)
    np.testing.assert_allclose(lira_offline(target, changed, inside), lira_offline(target, shadows, inside))
    assert not np.allclose(lira_offline(target, changed), lira_offline(target, shadows))
