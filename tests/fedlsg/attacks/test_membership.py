"""Membership: LiRA, thresholds, the matched filter and trade-off curves against closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from benchmarks.privacy.attack_closed_forms import measure
from fedlsg.accounting.certified import epsilon as epsilon_of
from fedlsg.attacks.audit.bounds import subsampled
from fedlsg.attacks.membership import scores
from fedlsg.attacks.membership.answers import Answers, PublicAnswers
from fedlsg.attacks.membership.matched_filter import (
    SeenRound,
    closed_form_tpr,
    filter_payload,
    sum_rounds,
)
from fedlsg.attacks.membership.scores.lira import fit_gaussians, lira_offline, lira_online
from fedlsg.attacks.membership.scores.loss import best_threshold, loss_threshold
from fedlsg.attacks.membership.scores.quantile import regressed
from fedlsg.attacks.membership.scores.quantile import score as above_quantiles
from fedlsg.attacks.membership.scores.rmia import from_outside, rmia
from fedlsg.attacks.roc import clopper_pearson, roc
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


@pytest.mark.thinned(4)
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


def test_offline_needs_as_many_shadows_without_an_example_as_online():
    """Half of 100 shadows hold an example: the others are too few for a variance of its own."""
    target, _, shadows, inside, _ = world(models=100)
    mean, std = fit_gaussians(shadows, ~inside, fixed=True)
    np.testing.assert_array_equal(
        lira_offline(target, shadows, inside), norm.logcdf(target, mean, std)
    )


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_threshold_is_not_chosen_where_it_is_measured():
    """Negative control: measured on the half that chose it, noise alone would look like success."""
    own = []
    for seed in range(50):
        a = torch.randn(20, generator=generator(seed))
        b = torch.randn(20, generator=generator(1000 + seed))
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


def test_rmia_by_hand():
    # ratios of public rows 0.5, 1, 2; of candidates 0.4, 1, 3
    score = rmia(
        np.array([0.2, 0.5, 0.9]),
        np.array([0.5, 0.5, 0.3]),
        np.array([0.2, 0.4, 0.8]),
        np.array([0.4, 0.4, 0.4]),
    )
    np.testing.assert_allclose(score, [0, 2 / 3, 1])
    np.testing.assert_allclose(from_outside(np.array([0.0, 1.0])), [0.35, 1.0])


def reference_rmia(target, marginal, public, public_marginal):
    """The double loop of the paper, which shares nothing with ``rmia``."""
    return [
        np.mean([(p / m) / (pz / mz) >= 1 for pz, mz in zip(public, public_marginal, strict=True)])
        for p, m in zip(target, marginal, strict=True)
    ]


def test_rmia_agrees_with_the_papers_loops():
    drawn = (
        np.random.default_rng(0).random((2, 30)) + 0.01,
        np.random.default_rng(1).random((2, 40)),
    )
    np.testing.assert_allclose(rmia(*drawn[0], *drawn[1]), reference_rmia(*drawn[0], *drawn[1]))


def uneven(members=200, others=200, public=300, shift=1.5):
    """Rows whose phi and its spread depend on a public feature; members are ``shift`` spreads up."""
    rng = np.random.default_rng(0)
    feature = rng.uniform(0, 3, size=members + others + public)
    width = 0.3 + feature
    phi = 4 * feature + width * rng.normal(size=len(feature))
    phi[:members] += shift * width[:members]
    candidates = members + others
    return Answers(
        target=phi[:candidates],
        shadows=np.zeros((0, candidates)),
        inside=np.zeros((0, candidates), bool),
        public=PublicAnswers(
            target=phi[candidates:],
            shadows=np.zeros((0, public)),
            first=np.zeros(public),
            first_of_candidates=np.zeros(candidates),
            features=feature[candidates:, None],
            features_of_candidates=feature[:candidates, None],
        ),
    )


def test_quantiles_of_public_rows_find_members_that_the_loss_does_not():
    known = uneven()
    found = above_quantiles(known)
    plain = roc(known.target[:200], known.target[200:], rates=(0.05,))
    better = roc(found[:200], found[200:], rates=(0.05,))
    assert better.auc.low > plain.auc.high
    assert better.auc.value > 0.8
    q90 = regressed(known.public.target, known.public.features, known.public.features, 0.9)
    assert abs((known.public.target <= q90).mean() - 0.9) < 0.02


def test_a_new_file_is_a_new_attack(tmp_path, monkeypatch):
    text = """
from fedlsg.attacks.membership.answers import Attack
ATTACKS = (Attack(name="constant", score=lambda answers: 0 * answers.target),)
"""
    (tmp_path / "constant.py").write_text(text)
    monkeypatch.setattr(scores, "__path__", [*scores.__path__, str(tmp_path)])
    scores.membership_attacks.cache_clear()
    try:
        assert "constant" in {one.name for one in scores.membership_attacks()}
    finally:
        scores.membership_attacks.cache_clear()


def rounds_of(*, sigma: float, claimed: float, rounds: int, rate: float, trials: int):
    """Scores of one example over T rounds of one client's own code, in the data and not; the rest
    of each batch is known.
    """
    gradients, _ = blocks("lsg")
    clip_norm = 0.1
    shipped = Mechanism(clip_norm=clip_norm, noise_multiplier=sigma)
    g = clipped_sum([block[:1] for block in gradients], shipped).double()
    noise, coins = reproducible_stream(7), np.random.default_rng(3)
    found = []
    for present in (True, False):
        drawn = torch.from_numpy(coins.random((rounds, trials, 1)) < rate) & present
        seen = add_noise((drawn * g).flatten(), shipped, noise).view(rounds, trials, -1)
        scores = [
            float(
                sum_rounds(
                    SeenRound(received=v, gradients=g[None], noise_std=claimed * clip_norm)
                    for v in of
                )
            )
            for of in seen.unbind(1)
        ]
        found.append(np.array(scores))
    return found


@pytest.mark.parametrize(("rate", "rounds"), [(1.0, 4), (0.5, 9)])
def test_the_sum_of_rounds_never_finds_more_than_the_ledger_allows(rate, rounds):
    sigma, fpr = 2.0, 0.05
    threshold = float(norm.isf(fpr))
    least, _ = subsampled(sample_rate=rate, noise_multiplier=sigma, steps=rounds, delta=1e-5)
    inside, outside = rounds_of(sigma=sigma, claimed=sigma, rounds=rounds, rate=rate, trials=400)
    false_alarms = clopper_pearson(int((outside > threshold).sum()), 400, 0.999)
    found = clopper_pearson(int((inside > threshold).sum()), 400, 0.999)
    assert false_alarms.low <= fpr <= false_alarms.high
    assert found.low <= 1 - least(1 - fpr)
    if rate == 1:  # nobody is stronger: T rounds of sigma are one of sigma / sqrt(T)
        allowed = closed_form_tpr(fpr, sigma / rounds**0.5)
        assert found.low <= allowed <= found.high
        assert allowed == pytest.approx(1 - least(1 - fpr), abs=0.01)


def test_rounds_with_half_of_the_noise_are_above_the_ledger():
    """Negative control: scored and charged by the claimed deviation."""
    least, _ = subsampled(sample_rate=1.0, noise_multiplier=2.0, steps=4, delta=1e-5)
    inside, outside = rounds_of(sigma=1.0, claimed=2.0, rounds=4, rate=1.0, trials=400)
    threshold = float(np.quantile(outside, 0.95))
    found = clopper_pearson(int((inside > threshold).sum()), 400, 0.999)
    assert found.low > 1 - least(1 - 0.05)


def test_rounds_with_noise_in_some_only_are_refused():
    one = SeenRound(received=torch.ones(2), gradients=torch.ones(3, 2), noise_std=1.0)
    with pytest.raises(ValueError, match="in all rounds or in none"):
        sum_rounds([one, SeenRound(received=one.received, gradients=one.gradients, noise_std=0.0)])
    with pytest.raises(ValueError, match="no round"):
        sum_rounds([])
