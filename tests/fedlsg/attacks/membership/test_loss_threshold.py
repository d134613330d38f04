"""The loss threshold: by hand, on losses of known distributions, and on nothing."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from fedlsg.attacks.membership import best_threshold, loss_threshold


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_best_threshold_by_hand():
    assert best_threshold(np.array([0.1, 0.2, 0.9]), np.array([0.5, 0.6, 1.0])) == 0.2
    assert best_threshold(np.array([2.0]), np.array([1.0])) == -np.inf


def test_best_threshold_against_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(30):
        a, b = rng.integers(0, 6, size=8).astype(float), rng.integers(0, 6, size=8).astype(float)
        right = {t: (a <= t).sum() + (b > t).sum() for t in (-np.inf, *np.unique(np.concatenate([a, b])))}
        assert right[best_threshold(a, b)] == max(right.values())


def test_success_is_the_best_possible():
    """Losses N(0, 1) and N(1, 1): the best threshold 1/2 is right with probability Phi(1/2)."""
    members, others = torch.randn(20000, generator=generator(1)), torch.randn(30000, generator=generator(2)) + 1
    found = loss_threshold(members, others, generator())
    assert found.examples == 40000
    assert found.success.low <= norm.cdf(0.5) + 0.005
    assert found.success.value == pytest.approx(norm.cdf(0.5), abs=0.01)
    assert found.roc.auc.value == pytest.approx(norm.cdf(1 / np.sqrt(2)), abs=0.01)


def test_equal_losses_are_guessing():
    found = loss_threshold(
        torch.randn(4000, generator=generator(1)), torch.randn(4000, generator=generator(2)), generator()
    )
    assert found.success.low < 0.5 < found.success.high


def test_the_threshold_is_not_chosen_where_it_is_measured():
    """Negative control: measured on the half that chose it, noise alone would look like success."""
    own = []
    for seed in range(50):
        a, b = torch.randn(20, generator=generator(seed)), torch.randn(20, generator=generator(1000 + seed))
        threshold = best_threshold(a.numpy(), b.numpy())
        own.append(float(((a <= threshold).sum() + (b > threshold).sum()) / 40))
    assert np.mean(own) > 0.56
    fair = [
        loss_threshold(
            torch.randn(40, generator=generator(s)), torch.randn(40, generator=generator(1000 + s)), generator()
        ).success.value
        for s in range(50)
    ]
    assert abs(np.mean(fair) - 0.5) < 0.04


def test_refuses():
    with pytest.raises(ValueError, match="two losses"):
        loss_threshold(torch.zeros(1), torch.zeros(5), generator())
    with pytest.raises(ValueError, match="two losses"):
        loss_threshold(torch.tensor([0.0, float("nan")]), torch.zeros(5), generator())
