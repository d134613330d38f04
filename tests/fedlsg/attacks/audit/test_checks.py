"""Checks of the noise: they pass on the real thing, and fail on each mistake that scores cannot see."""

import numpy as np
import pytest

from fedlsg.attacks.audit.checks import displacement, noise_checks

STD = 0.7


def noise(rounds=40, kept=300, seed=0):
    return np.random.default_rng(seed).normal(scale=STD, size=(rounds, kept)).astype(np.float32)


def failed(*clients):
    named = {f"client {i}": rows for i, rows in enumerate(clients)}
    return {check.name for check in noise_checks(named, kept=300, noise_std=STD) if not check.passed}


def test_gaussian_noise_is_not_accused_in_40_seeds():
    assert all(not failed(noise(seed=2 * seed), noise(seed=2 * seed + 1)) for seed in range(40))


def test_less_noise():
    assert failed(0.97 * noise(rounds=200)) == {"noise deviation, client 0", "noise deviation, all"}


def test_a_coordinate_without_noise():
    rows = noise(rounds=200)
    rows[:, 17] = 0
    assert "noise on every coordinate" in failed(rows)


@pytest.mark.parametrize("pair", ["of rounds", "of clients"])
def test_noise_used_again(pair):
    rows, other = noise(), noise(seed=1)
    if pair == "of rounds":
        rows[7] = rows[2]
    else:
        other[4] = rows[4]
    assert "fresh noise" in failed(rows, other)


def moves_of(rng, included, *, q, rounds, noise, factor=1.0):
    """Moves of canaries under the claim (those in move ``factor`` times as far)."""
    taken = factor * included * rng.binomial(rounds, q, size=included.shape)
    return (taken + rng.normal(scale=noise * np.sqrt(rounds), size=included.shape)) / (q * rounds)


@pytest.mark.parametrize(
    ("q", "rounds", "noise"), [(0.5, 8, 3.0), (0.5, 4, 0.01), (0.01, 30, 0.01), (0.9, 5, 0.02), (1.0, 3, 0.5)]
)
def test_ten_canaries_accuse_correct_code_as_rarely_as_a_thousand(q, rounds, noise):
    """Five in and five out: in 100 000 audits of a true claim about one is accused, at most."""
    included, moves, moved = many_audits(q=q, rounds=rounds, noise=noise)
    worst = moves[np.argsort(moved)[-5:]]
    claim = {"sample_rate": q, "rounds": rounds, "noise": noise}
    assert sum(not displacement(one, included, **claim).passed for one in worst) <= 3


def many_audits(**claim):
    """Five canaries in and five out, their moves in 100 000 audits of a true claim, and how far they moved."""
    included = np.arange(10) < 5
    moves = moves_of(np.random.default_rng(4), np.tile(included, (100_000, 1)), **claim)
    return included, moves, moves[:, included].mean(1) - moves[:, ~included].mean(1)
