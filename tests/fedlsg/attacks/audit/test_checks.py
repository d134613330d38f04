"""Checks of the noise: they pass on the real thing, and fail on each mistake that scores cannot see."""

import numpy as np
import pytest
from scipy.stats import norm

from fedlsg.attacks.audit.checks import SIGNIFICANCE, displacement, noise_checks

STD = 0.7


def noise(rounds=40, kept=300, seed=0):
    return np.random.default_rng(seed).normal(scale=STD, size=(rounds, kept)).astype(np.float32)


def failed(*clients):
    named = {f"client {i}": rows for i, rows in enumerate(clients)}
    return {check.name for check in noise_checks(named, kept=300, noise_std=STD) if not check.passed}


def test_gaussian_noise_is_not_accused_in_40_seeds():
    assert all(not failed(noise(seed=2 * seed), noise(seed=2 * seed + 1)) for seed in range(40))


def test_more_noise_than_claimed_is_no_breach():
    assert not failed(1.5 * noise())


def test_less_noise():
    assert failed(0.97 * noise(rounds=200)) == {"noise deviation, client 0", "noise deviation, all"}


def test_a_coordinate_without_noise():
    rows = noise(rounds=200)
    rows[:, 17] = 0
    assert "noise on every coordinate" in failed(rows)


def test_an_output_without_noise():
    rows = noise()
    rows[3] = 0
    assert "noise present" in failed(rows)


@pytest.mark.parametrize("pair", ["of rounds", "of clients"])
def test_noise_used_again(pair):
    rows, other = noise(), noise(seed=1)
    if pair == "of rounds":
        rows[7] = rows[2]
    else:
        other[4] = rows[4]
    assert "fresh noise" in failed(rows, other)


def test_noise_that_differs_by_a_twentieth_of_fresh_noise_is_used_again():
    rows = noise()
    rows[7] = rows[2] + 0.05 * noise(seed=9)[0]
    assert "fresh noise" in failed(rows)


def test_noise_repeated_within_an_output():
    rows = noise()
    rows[:, 150:] = rows[:, :150]
    assert "noise without repeats" in failed(rows)


def test_noise_of_another_shape():
    uniform = np.random.default_rng(0).uniform(-1, 1, size=(40, 300)) * STD * np.sqrt(3)
    assert "normal noise" in failed(uniform)


def test_another_number_of_values():
    assert failed(noise(kept=299)) == {"coordinates"}


def moves_of(rng, included, *, q, rounds, noise, factor=1.0):
    """Moves of canaries under the claim (those in move ``factor`` times as far)."""
    taken = factor * included * rng.binomial(rounds, q, size=included.shape)
    return (taken + rng.normal(scale=noise * np.sqrt(rounds), size=included.shape)) / (q * rounds)


def test_sensitivity():
    rng, claim = np.random.default_rng(0), {"q": 0.5, "rounds": 8, "noise": 1.0}
    included = rng.random(1000) < 0.5
    stated = {"sample_rate": 0.5, "rounds": 8, "noise": 1.0}
    assert displacement(moves_of(rng, included, **claim), included, **stated).passed
    assert displacement(moves_of(rng, included, **claim, factor=0.5), included, **stated).passed
    assert not displacement(moves_of(rng, included, **claim, factor=1.5), included, **stated).passed
    assert displacement(np.array([99.0]), included[:1], **stated).passed


def test_sensitivity_by_hand():
    """One canary in, one out, a full batch, noise 0.5 over one round: N(1, 1/2), whose Chernoff bound is exp(-d^2)."""
    assert "(standard error 0.707)" in one_pair(1.0).says
    edge = 1 + np.sqrt(-np.log(SIGNIFICANCE))
    assert one_pair(edge - 0.01).passed
    assert not one_pair(edge + 0.01).passed


def one_pair(moved):
    return displacement(np.array([moved, 0.0]), np.array([True, False]), sample_rate=1.0, rounds=1, noise=0.5)


@pytest.mark.parametrize(
    ("q", "rounds", "noise"), [(0.5, 8, 3.0), (0.5, 4, 0.01), (0.01, 30, 0.01), (0.9, 5, 0.02), (1.0, 3, 0.5)]
)
def test_ten_canaries_accuse_correct_code_as_rarely_as_a_thousand(q, rounds, noise):
    """Five in and five out: in 100 000 audits of a true claim about one is accused, at most."""
    included, moves, moved = many_audits(q=q, rounds=rounds, noise=noise)
    worst = moves[np.argsort(moved)[-5:]]
    claim = {"sample_rate": q, "rounds": rounds, "noise": noise}
    assert sum(not displacement(one, included, **claim).passed for one in worst) <= 3


def test_variances_estimated_from_ten_canaries_accuse_correct_code():
    """Negative control: a normal test of the same audits with them, which accuses some hundred times too often."""
    included, moves, moved = many_audits(q=0.5, rounds=8, noise=3.0)
    estimated = np.sqrt(moves[:, included].var(1, ddof=1) / 5 + moves[:, ~included].var(1, ddof=1) / 5)
    assert (norm.sf((moved - 1) / estimated) < SIGNIFICANCE).sum() > 100


def many_audits(**claim):
    """Five canaries in and five out, their moves in 100 000 audits of a true claim, and how far they moved."""
    included = np.arange(10) < 5
    moves = moves_of(np.random.default_rng(4), np.tile(included, (100_000, 1)), **claim)
    return included, moves, moves[:, included].mean(1) - moves[:, ~included].mean(1)


def test_the_rare_batch_of_a_small_rate_is_no_breach():
    """Half of five canaries drawn at q = 0.01 in 30 rounds, nearly no noise: 8 takings where 1.5 are expected.

    Its probability is 2e-4: a normal test with the right variance (5.3 standard errors) would accuse.
    """
    included = np.arange(10) < 5
    moves = np.where(included, 8 / (5 * 0.01 * 30), 0.0)
    found = displacement(moves, included, sample_rate=0.01, rounds=30, noise=1e-3)
    assert found.passed
    assert norm.sf((moves[0] - 1) / float(found.says.split()[-1].strip(")"))) < SIGNIFICANCE


def test_local_steps_count_by_their_weights():
    """At q = 1/2 and weights 3 and 1: variance 1/4 (9 + 1) / (1/2 * 4)^2 = 0.625 of one canary in, next to no noise."""
    included = np.array([True, False])
    stated = {"sample_rate": 0.5, "rounds": 1, "noise": 1e-6, "weights": (3.0, 1.0)}
    assert f"(standard error {0.625**0.5:.3f})" in displacement(np.array([1.0, 0.0]), included, **stated).says


def test_every_check_states_its_significance():
    checks = {check.name: check.significance for check in noise_checks({"a": noise()}, kept=300, noise_std=STD)}
    assert checks["noise present"] == 0
    assert checks["fresh noise"] == SIGNIFICANCE
    assert checks["noise deviation, a"] == SIGNIFICANCE / 2


def test_refuses_nothing_to_look_at():
    with pytest.raises(ValueError, match="at least one output"):
        noise_checks({}, kept=3, noise_std=1.0)
