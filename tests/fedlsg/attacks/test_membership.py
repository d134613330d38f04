"""Membership: LiRA, thresholds, the matched filter and trade-off curves against closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from benchmarks.privacy.attack_closed_forms import measure
from fedlsg.accounting.certified import epsilon as epsilon_of
from fedlsg.attacks.audit.bounds import subsampled
from fedlsg.attacks.membership import (
    best_threshold,
    closed_form_tpr,
    filter_payload,
    lira_offline,
    lira_online,
    loss_threshold,
)
from fedlsg.attacks.metrics import roc
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.privacy.clip import clipped_sum
from fedlsg.privacy.mechanism import Mechanism, add_noise
from fedlsg.randomness import reproducible_stream
from fedlsg.training.client_round import per_unit
from tests.fedlsg.support.observed import digits, method, mlp, observe


def blocks(name, count=4, **settings):
    """Per-example gradients of digits in a method's frame, as the clip gets them, and what was
    seen.
    """
    images, labels = digits(count)
    seen = observe(method(name, **settings), mlp(), images, labels)
    return per_unit(
        per_example_gradients(seen.model, seen.loss_fn, images, labels, seen.frame), seen.frame, 1
    ), seen


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("name", ["lsg", "rgp", "rs", "dpsgd"])
def test_the_measured_rates_lie_in_the_intervals_of_the_closed_form(name, sigma):
    gradients, _ = blocks(name)
    mechanism = Mechanism(clip_norm=0.1, noise_multiplier=sigma)
    found = measure(
        gradients, mechanism, reproducible_stream(5, name, str(sigma)), trials=500, confidence=0.999
    )
    assert found.predicted == pytest.approx(closed_form_tpr(0.01, sigma), rel=1e-6)
    assert found.tpr.low <= found.predicted <= found.tpr.high
    assert found.fpr.low <= 0.01 <= found.fpr.high


def test_half_the_noise_is_outside_of_the_interval():
    """Negative control: scored by the claimed deviation, payloads with half of it are found far too
    often.
    """
    gradients, _ = blocks("lsg")
    mechanism, noise = Mechanism(clip_norm=0.1, noise_multiplier=1.0), reproducible_stream(2)
    less = Mechanism(clip_norm=0.1, noise_multiplier=0.5)
    g = clipped_sum([block[:1] for block in gradients], mechanism).double()
    scores = [filter_payload(add_noise(g, less, noise), g, less.noise_std) for _ in range(500)]
    share = sum(value > norm.isf(0.01) for value in scores) / 500
    assert share > closed_form_tpr(0.01, 1.0) + 5 * math.sqrt(0.1 / 500)


@pytest.mark.parametrize(("q", "sigma"), [(0.5, 1.0), (0.1, 0.7)])
def test_a_subsampled_step_is_never_above_its_own_events(q, sigma):
    """Threshold events on the output, exact: the claimed g lies below the neighbour's probability,
    and touches it.
    """
    least, _ = subsampled(sample_rate=q, noise_multiplier=sigma, steps=1, delta=1e-5)
    t = np.linspace(-4, 6, 200)
    out, inside = norm.sf(t / sigma), (1 - q) * norm.sf(t / sigma) + q * norm.sf((t - 1) / sigma)
    pairs = [(inside, out), (1 - out, 1 - inside), (1 - inside, 1 - out), (out, inside)]
    for first, second in pairs:
        assert all(least(x) <= y + 1e-9 for x, y in zip(first, second, strict=True))
    ratios = [least(x) / y for x, y in zip(inside, out, strict=True) if 1e-3 < y < 0.999]
    assert max(ratios) > 0.98


@pytest.mark.parametrize(
    ("q", "sigma", "steps"), [(1.0, 2.0, 4), (0.5, 3.1, 100), (0.02, 0.8, 500)]
)
def test_epsilon_agrees_with_the_accountant(q, sigma, steps):
    _, epsilon = subsampled(sample_rate=q, noise_multiplier=sigma, steps=steps, delta=1e-5)
    bound = epsilon_of(
        sample_rate=q, noise_multiplier=sigma, steps=steps, delta=1e-5, accountants=("pld",)
    )
    assert epsilon == pytest.approx(bound.upper, rel=3e-3)


def world(models=200, examples=400, seed=0):
    """Each example has its own difficulty; training on it adds 1.5 deviations."""
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(scale=5, size=examples)
    inside = rng.random((models + 1, examples)) < 0.5
    confidences = difficulty + 1.5 * inside + rng.normal(size=inside.shape)
    return confidences[0], inside[0], confidences[1:], inside[1:], difficulty


# a variance for each example, one for all
@pytest.mark.parametrize(("models", "off"), [(4000, 0.5), (100, 2.0)])
def test_online_approaches_the_exact_ratio(models, off):
    target, _, shadows, inside, difficulty = world(models=models, examples=50)
    exact = norm.logpdf(target, difficulty + 1.5) - norm.logpdf(target, difficulty)
    assert np.abs(lira_online(target, shadows, inside) - exact).max() < off


def test_offline_uses_no_shadow_with_the_example():
    target, _, shadows, inside, _ = world()
    changed = np.where(inside, shadows + 100, shadows)
    np.testing.assert_allclose(
        lira_offline(target, changed, inside), lira_offline(target, shadows, inside)
    )
    nobody = np.zeros_like(inside)
    assert not np.allclose(
        lira_offline(target, changed, nobody), lira_offline(target, shadows, nobody)
    )


def test_intervals_cover_the_truth():
    """Normal scores a unit apart, 200 data sets: at least 95 % less five standard deviations of
    that count.
    """
    rng = np.random.default_rng(1)
    area, rate = norm.cdf(1 / np.sqrt(2)), norm.sf(norm.isf(0.01) - 1)
    found = [roc(rng.normal(size=300) + 1, rng.normal(size=300), rates=(0.01,)) for _ in range(200)]
    assert sum(r.auc.low <= area <= r.auc.high for r in found) >= 175
    assert sum(r.tpr[0.01].low <= rate <= r.tpr[0.01].high for r in found) >= 175


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_threshold_is_not_chosen_where_it_is_measured():
    """Negative control: measured on the half that chose it, noise alone would look like success."""
    own = []
    for seed in range(50):
        a, b = (
            torch.randn(20, generator=generator(seed)),
            torch.randn(20, generator=generator(1000 + seed)),
        )
        threshold = best_threshold(a.numpy(), b.numpy())
        own.append(float(((a <= threshold).sum() + (b > threshold).sum()) / 40))
    assert np.mean(own) > 0.56
    fair = [
        loss_threshold(
            torch.randn(40, generator=generator(s)),
            torch.randn(40, generator=generator(1000 + s)),
            generator(),
        ).success.value
        for s in range(50)
    ]
    assert abs(np.mean(fair) - 0.5) < 0.04
