"""Canaries, alone and seen through real payloads: what they add, and what the payloads' noise gives
away.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedlsg.attacks.audit.played.canaries import make_canaries
from fedlsg.attacks.audit.played.outputs import make_output
from fedlsg.attacks.audit.training_mode import (
    canary_scores,
    check_fresh_noise,
    check_noise_deviation,
    check_sensitivity,
    clipped_rows,
    examine,
)
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.randomness import reproducible_stream
from fedlsg.training.client_round import LocalTraining
from tests.fedlsg.support.audit_setting import setting
from tests.fedlsg.support.observed import digits, method, mlp, observe

IMAGES, LABELS = digits(6)
IN, OUT = torch.tensor([True]), torch.tensor([False])


def seen(name="lsg", rows=slice(0, 6)):
    """A noise-free payload in which every one of these examples took part, as if noise of deviation
    1e-3 was added.
    """
    made = observe(method(name), mlp(), IMAGES[rows], LABELS[rows])
    return replace(made, noise_std=1e-3)


def test_a_canary_that_is_in_stands_one_above_one_that_is_out():
    """At q = 1 by hand: what is left of the payload is half of the canary's gradient, or minus half
    of it.
    """
    canaries, rest = (IMAGES[:1], LABELS[:1]), (IMAGES[1:], LABELS[1:])
    present = examine(seen(), canaries, rest, IN)
    absent = examine(seen(rows=slice(1, 6)), canaries, rest, OUT)
    assert present.components.item() == pytest.approx(1.0, abs=1e-6)
    assert absent.components.item() == pytest.approx(0.0, abs=1e-6)
    assert present.lengths.item() == pytest.approx(0.1, rel=1e-6)
    assert present.residual.norm().item() == pytest.approx(0.05 / 1e-3, rel=1e-5)
    assert (
        canary_scores([present], 1e-3, 1.0).item() > 0 > canary_scores([absent], 1e-3, 1.0).item()
    )
    # either way the payload lies half a canary from the middle: (0.05 / 1e-3)^2
    for one in (present, absent):
        assert one.moved == pytest.approx(one.expected, rel=1e-5)
        assert one.expected == pytest.approx(2500, rel=1e-5)
        # all took part for certain: only noise is left
        assert one.variance == pytest.approx(one.expected)


def test_coins_are_in_no_score():
    canaries, rest = (IMAGES[:1], LABELS[:1]), (IMAGES[1:], LABELS[1:])
    right, wrong = examine(seen(), canaries, rest, IN), examine(seen(), canaries, rest, OUT)
    assert_close(right.components, wrong.components)
    assert_close(right.residual, wrong.residual)
    assert wrong.moved == pytest.approx(-right.moved)


def test_scores_are_of_single_steps_and_of_each_payload():
    """A payload has lengths of its own; one of several steps has no such score."""
    canaries, rest = (IMAGES[:2], LABELS[:2]), (IMAGES[2:], LABELS[2:])
    first = examine(seen(), canaries, rest, torch.tensor([True, True]))
    second = replace(first, lengths=3 * first.lengths)
    one, other = (canary_scores([payload], 1e-3, 0.5) for payload in (first, second))
    assert_close(canary_scores([first, second], 1e-3, 0.5), one + other)
    with pytest.raises(ValueError, match="expected payloads of one local step, got one of 3"):
        canary_scores([first, replace(first, steps=3)], 1e-3, 0.5)
    two_steps = replace(seen(), local=LocalTraining(steps=2, learning_rate=0.1))
    assert examine(two_steps, canaries, rest, torch.tensor([True, True])).steps == 2


def residuals(count=20, scale=1.0):
    return list(np.random.default_rng(0).normal(scale=scale, size=(count, 400)))


def batches(count=40, length=100.0):
    """Residuals of fresh noise and batches that fluctuate along one gradient, far above it:
    correlated by chance.
    """
    rng = np.random.default_rng(1)
    common = rng.normal(size=400)
    return [
        rng.normal(size=400) + rng.normal() * length * common / np.linalg.norm(common)
        for _ in range(count)
    ]


def test_noise_used_twice_under_batches_shorter_than_it():
    """Negative control, at half of the noise's mean square; and where ``says`` tells that there is
    no power.
    """
    rng = np.random.default_rng(2)
    reused = rng.normal(size=400)
    short = [*residuals(), *(reused + np.sqrt(0.2) * rng.normal(size=400) for _ in range(2))]
    long = [*residuals(), *(reused + np.sqrt(1.5) * rng.normal(size=400) for _ in range(2))]
    assert not check_fresh_noise(short).passed
    assert check_fresh_noise(long).passed


def test_halved_noise_is_too_close_and_too_short():
    halved = residuals(scale=0.5)
    assert not check_noise_deviation(halved).passed
    assert not check_fresh_noise(halved).passed


@pytest.mark.slow
def test_the_variance_is_that_of_batches_and_noise():
    """Payloads of q = 1/2 with drawn batches and noise, against the variance that the audit states
    for them.
    """
    made = replace(seen(), local=LocalTraining(sample_rate=0.5, expected_batch=3.0))
    q = 0.5
    std = 0.05
    rows, rng = clipped_rows(made, IMAGES, LABELS).double(), torch.Generator().manual_seed(0)
    included = torch.tensor([True, False])
    present = torch.tensor([True, False, True, True, True, True])
    errors = []
    for _ in range(300):
        batch = present & (torch.rand(6, generator=rng) < q)
        values = rows[batch].sum(0) + std * torch.randn(
            rows.shape[1], generator=rng, dtype=torch.float64
        )
        one = examine(
            replace(made, values=values, noise_std=std),
            (IMAGES[:2], LABELS[:2]),
            (IMAGES[2:], LABELS[2:]),
            included,
        )
        errors.append((one.moved - one.expected) / one.variance**0.5)
    assert one.variance > 1.5 * one.expected
    assert np.mean(errors) == pytest.approx(0, abs=0.2)
    assert np.std(errors) == pytest.approx(1, abs=0.13)


def test_sensitivity_accuses_true_claims_as_rarely_as_it_says_though_one_payload_decides():
    """Payloads whose weights differ a thousandfold: their own spread would be a standard error of
    one number.
    """
    rng = np.random.default_rng(0)
    expected = np.geomspace(1.0, 1000.0, 8)
    variance = expected * rng.uniform(1.0, 5.0, size=8)
    z = []
    for _ in range(2000):
        said = check_sensitivity(
            expected + rng.normal(size=8) * np.sqrt(variance), expected, variance
        ).says
        words = said.replace(")", "").split()
        z.append((float(words[5]) - 1) / float(words[-1]))
    assert np.mean(np.array(z) > 2.326) == pytest.approx(0.01, abs=0.007)
    assert np.std(z) == pytest.approx(1, abs=0.05)


GENERATOR = torch.Generator


def canaries(made, count=60):
    return make_canaries(made, count, GENERATOR().manual_seed(0))


def sent(made, rows, **changes):
    local = LocalTraining(**{"sample_rate": 1.0, **changes})
    noiseless = Mechanism(
        kind="clip-only", clip_norm=made.mechanism.clip_norm, clip=made.mechanism.clip
    )
    return make_output(
        replace(made, mechanism=noiseless, local=local), rows, partial(reproducible_stream, 0), 0
    ).values


@pytest.mark.parametrize("name", ["lsg", "rgp", "rs", "dpsgd"])
def test_clipped_canaries_are_orthogonal_of_norm_c_with_energy_in_every_block(name):
    made = setting(name, clip_norm=0.5)
    found = canaries(made).clipped.double()
    assert_close(found @ found.T / 0.25, torch.eye(60, dtype=torch.float64), atol=1e-5, rtol=0)
    for block in found.split([b.kept for b in made.frame.blocks], dim=1):
        assert block.norm(dim=1).min() > 0.05


def test_a_canary_adds_to_the_sum_what_it_says():
    made = setting(clip_norm=0.5, classifier_clip_weight=3.0)
    found = canaries(made)
    assert_close(sent(made, found.gradients[:5]), found.clipped[:5].sum(0), atol=1e-6, rtol=1e-5)
