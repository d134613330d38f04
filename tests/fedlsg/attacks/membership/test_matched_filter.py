"""The matched filter on shipped clip and noise, against its closed form."""

import math

import pytest
from scipy.stats import norm

from benchmarks.attack_closed_forms import measure
from fedlsg.attacks.membership import closed_form_tpr, filter_payload
from fedlsg.gradients.per_example import per_example_gradients
from fedlsg.privacy.mechanism import Mechanism, add_noise, clipped_sum
from fedlsg.randomness import reproducible_stream
from fedlsg.training.client import per_unit
from tests.fedlsg.support.observed import digits, method, mlp, observe


def blocks(name, count=4, **settings):
    """Per-example gradients of digits in a method's frame, as the clip gets them, and what was seen."""
    images, labels = digits(count)
    seen = observe(method(name, **settings), mlp(), images, labels)
    return per_unit(per_example_gradients(seen.model, seen.loss_fn, images, labels, seen.frame), seen.frame, 1), seen


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("name", ["lsg", "rgp", "rs", "dpsgd"])
def test_the_measured_rates_lie_in_the_intervals_of_the_closed_form(name, sigma):
    gradients, _ = blocks(name)
    mechanism = Mechanism(clip_norm=0.1, noise_multiplier=sigma)
    found = measure(gradients, mechanism, reproducible_stream(5, name, str(sigma)), trials=500, confidence=0.999)
    assert found.predicted == pytest.approx(closed_form_tpr(0.01, sigma), rel=1e-6)
    assert found.tpr.low <= found.predicted <= found.tpr.high
    assert found.fpr.low <= 0.01 <= found.fpr.high


def test_half_the_noise_is_outside_of_the_interval():
    """Negative control: scored by the claimed deviation, payloads with half of it are found far too often."""
    gradients, _ = blocks("lsg")
    mechanism, noise = Mechanism(clip_norm=0.1, noise_multiplier=1.0), reproducible_stream(2)
    less = Mechanism(clip_norm=0.1, noise_multiplier=0.5)
    g = clipped_sum([block[:1] for block in gradients], mechanism).double()
    scores = [filter_payload(add_noise(g, less, noise), g, less.noise_std) for _ in range(500)]
    share = sum(value > norm.isf(0.01) for value in scores) / 500
    assert share > closed_form_tpr(0.01, 1.0) + 5 * math.sqrt(0.1 / 500)
