"""The audit's own expectation: against another accountant, by hand, and for whom the noise counts."""

import math
from typing import Any

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from fedlsg.attacks.audit.setting import RATIO, Setting, canaries, found_ratio, silent_rounds
from fedlsg.attacks.audit.stated import ERROR, Stated, delta_of, least_noise
from tests.fedlsg.support.audit_setting import at_client_level, secure, setting

CLAIM: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "sample_rate": 0.5, "steps": 6}


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "epsilon"),
    [(0.5, 3.118, 100, 8.0), (0.05, 2.0, 2, 0.5)],
)
def test_delta_is_that_of_another_accountant(q, sigma, steps, epsilon):
    one = pld.from_gaussian_mechanism(sigma, sampling_prob=q, value_discretization_interval=1e-4)
    golden = one.self_compose(steps).get_delta_for_epsilon(epsilon)
    assert delta_of(epsilon, q, sigma, steps) == pytest.approx(golden, rel=1e-2)
    found = least_noise(epsilon, golden, q, steps)
    assert sigma * (1 - 2 * ERROR) < found < sigma


def test_full_batches_have_the_closed_form():
    """Balle and Wang: delta(0) = 2 Phi(mu / 2) - 1; ten steps at sigma 2 are one at mu = sqrt(10) / 2."""
    mu = math.sqrt(10) / 2
    assert delta_of(0.0, 1.0, 2.0, 10) == pytest.approx(math.erf(mu / 2 / math.sqrt(2)))


def test_whose_noise_counts():
    counts = {"clients": 10, "min_survivors": 9}
    honest = {
        trust: Stated(**CLAIM, **counts, trust=trust, colluders=t).honest
        for trust, t in (("client", 0), ("aggregate", 0), ("secure", 0), ("server", 0))
    }
    assert honest == {"client": 1, "aggregate": 8, "secure": 8, "server": 1}
    assert Stated(**CLAIM, **counts, trust="secure", colluders=3).honest == 6
    assert "together with 3 clients" in Stated(**CLAIM, **counts, trust="secure", colluders=3).reader


@pytest.mark.parametrize(
    "made", [setting(), secure(setting(), clients=10, survivors=9), at_client_level(setting(), "server")], ids=str
)
def test_the_outputs_are_enough_to_find_a_client_that_is_left_out(made: Setting):
    h = made.stated.honest
    smallest = max(RATIO, math.sqrt((h - 1) / h))
    assert found_ratio(2 * silent_rounds(made) * made.frame.kept) >= smallest
    assert 200 <= canaries(made) <= 5000


@pytest.mark.parametrize(("epsilon", "delta", "q"), [(14.2, 3.7e-8, 0.00546), (14.0, 1e-6, 0.01)])
def test_a_large_claim_of_one_step_has_a_number(epsilon, delta, q):
    assert 0.2 < least_noise(epsilon, delta, q, 1) < 0.5
