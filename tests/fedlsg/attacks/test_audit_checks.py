"""Checks of the noise: they pass on the real thing, and fail on each mistake that scores cannot see."""

import numpy as np
import pytest

from fedlsg.attacks.audit_checks import displacement, noise_checks

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
    assert failed(0.97 * noise(rounds=200)) == {"noise deviation, client 0"}


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


def test_sensitivity():
    rng = np.random.default_rng(0)
    coins = rng.random(1000) < 0.5
    moves = coins + rng.normal(scale=0.5, size=1000)
    assert displacement(moves, coins).passed
    assert displacement(0.5 * moves, coins).passed
    assert not displacement(1.5 * moves, coins).passed
    assert displacement(moves[:1], coins[:1]).passed


def test_refuses_nothing_to_look_at():
    with pytest.raises(ValueError, match="at least one output"):
        noise_checks({}, kept=3, noise_std=1.0)
