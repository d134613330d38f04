"""Trade-off curves against the mechanisms that they describe."""

import numpy as np
import pytest
from scipy.stats import norm

from fedlsg.accounting.bounds import epsilon as epsilon_of
from fedlsg.attacks.audit.bounds import from_curve, gaussian, gaussian_delta, subsampled


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_the_dual_of_the_gaussian_is_the_gaussian(mu):
    epsilons = np.linspace(0, 30, 2000)
    dual = from_curve(epsilons, np.array([gaussian_delta(mu, e) for e in epsilons]))
    for x in (0.001, 0.1, 0.5, 0.9, 0.999):
        exact = gaussian(mu)(x)
        assert exact * 0.99 - 1e-9 <= dual(x) <= exact + 1e-9


@pytest.mark.parametrize(("q", "sigma"), [(0.5, 1.0), (0.1, 0.7)])
def test_a_subsampled_step_is_never_above_its_own_events(q, sigma):
    """Threshold events on the output, exact: the claimed g lies below the neighbour's probability, and touches it."""
    least, _ = subsampled(sample_rate=q, noise_multiplier=sigma, steps=1, delta=1e-5)
    t = np.linspace(-4, 6, 200)
    out, inside = norm.sf(t / sigma), (1 - q) * norm.sf(t / sigma) + q * norm.sf((t - 1) / sigma)
    pairs = [(inside, out), (1 - out, 1 - inside), (1 - inside, 1 - out), (out, inside)]
    for first, second in pairs:
        assert all(least(x) <= y + 1e-9 for x, y in zip(first, second, strict=True))
    ratios = [least(x) / y for x, y in zip(inside, out, strict=True) if 1e-3 < y < 0.999]
    assert max(ratios) > 0.98


@pytest.mark.parametrize(("q", "sigma", "steps"), [(1.0, 2.0, 4), (0.5, 3.1, 100), (0.02, 0.8, 500)])
def test_epsilon_agrees_with_the_accountant(q, sigma, steps):
    _, epsilon = subsampled(sample_rate=q, noise_multiplier=sigma, steps=steps, delta=1e-5)
    bound = epsilon_of(sample_rate=q, noise_multiplier=sigma, steps=steps, delta=1e-5, accountants=("pld",))
    assert epsilon == pytest.approx(bound.upper, rel=3e-3)
