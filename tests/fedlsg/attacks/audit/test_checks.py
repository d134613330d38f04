"""The audit's bounds, checks and own expectation: by hand, against exact probabilities and another
accountant.
"""

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from fedlsg.attacks.audit.bounds import (
    Guesses,
    f_dp_refuted,
    gaussian,
    gaussian_epsilon,
    guess,
    one_run_epsilon,
    one_run_p_value,
)
from fedlsg.attacks.audit.checks.check import UnitClaim
from fedlsg.attacks.audit.checks.noise_checks import (
    check_tails,
    check_values_used_once,
    noise_checks,
)
from fedlsg.attacks.audit.checks.unit_checks import check_canaries, check_equal_units
from fedlsg.attacks.audit.played.sample_sizes import (
    FOUND_NOISE_RATIO,
    enough_canaries,
    found_noise_ratio,
    silent_rounds,
)
from fedlsg.attacks.audit.played.setting import AuditSetting
from fedlsg.attacks.audit.played.stated import LEAST_NOISE_ERROR, Stated, delta_of, least_noise
from tests.fedlsg.support.audit_setting import at_client_level, secure, setting

STD = 0.7


def noise(rounds=40, kept=300, seed=0):
    return np.random.default_rng(seed).normal(scale=STD, size=(rounds, kept)).astype(np.float32)


def failed(*clients):
    named = {f"client {i}": rows for i, rows in enumerate(clients)}
    return {
        check.name for check in noise_checks(named, kept=300, noise_std=STD) if not check.passed
    }


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


PERMUTED = np.random.default_rng(9).permutation(150)
USED_AGAIN = {
    "half of an output": lambda rows: np.concatenate([rows[:, :150], rows[:, PERMUTED]], 1),
    "with the other sign": lambda rows: np.concatenate([rows[:, :150], -rows[:, PERMUTED]], 1),
    "a tenth of an output": lambda rows: np.concatenate([rows[:, :270], rows[:, 29::-1]], 1),
    "another output": lambda rows: np.concatenate([rows[:-1], rows[3:4, ::-1]]),
    "all outputs": lambda rows: np.stack([np.roll(rows[0], 7 * n) for n in range(len(rows))]),
}


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("how", USED_AGAIN)
def test_values_that_are_used_again_in_another_place(how, grid):
    """On the grid of the noise many values are equal by chance; the control has those."""
    rows = noise(rounds=64)
    if grid:
        rows = (rows / STD * 256).round() / 256 * STD
    assert not failed(rows)
    found = failed(USED_AGAIN[how](rows))
    assert found & {"no value used again", "normal noise"}
    assert ("no value used again" in found) == (how != "all outputs")


@pytest.mark.parametrize("most", [2.5, 3.0, 3.5])
def test_noise_that_ends_at_a_few_deviations(most):
    """Of its deviation nothing is missing, and its distribution function shows nothing."""
    rows = noise(rounds=200)
    clamped = rows.clip(-most * STD, most * STD)
    clamped *= rows.std() / clamped.std()
    assert failed(clamped) >= {"tails of the noise"}
    if most >= 3:
        assert failed(clamped) == {"tails of the noise"}


def test_a_tail_that_is_too_long():
    rows = noise(rounds=200)
    rows[7, 17] = 9 * STD
    assert failed(rows) == {"tails of the noise"}


@pytest.mark.parametrize(("kept", "grid"), [(8, True), (300, True), (300, False), (3000, True)])
def test_new_checks_of_values_accuse_as_rarely_as_is_said(kept, grid):
    """With a significance of 1e-5 none of a hundred audits of correct noise is accused."""
    rng = np.random.default_rng(1)
    accused = 0
    for _ in range(40 if kept > 1000 else 100):
        rows = rng.normal(size=(16, kept))
        rows = (rows * 256).round() / 256 if grid else rows
        accused += not (check_tails(rows.ravel()).passed and check_values_used_once(rows).passed)
    assert accused == 0


def moves_of(rng, included, *, q, rounds, noise, factor=1.0):
    """Moves of canaries under the claim (those in move ``factor`` times as far)."""
    taken = factor * included * rng.binomial(rounds, q, size=included.shape)
    return (taken + rng.normal(scale=noise * np.sqrt(rounds), size=included.shape)) / (q * rounds)


@pytest.mark.parametrize(
    ("q", "rounds", "noise"),
    [(0.5, 8, 3.0), (0.5, 4, 0.01), (0.01, 30, 0.01), (0.9, 5, 0.02), (1.0, 3, 0.5)],
)
def test_ten_canaries_accuse_correct_code_as_rarely_as_a_thousand(q, rounds, noise):
    """Five in and five out: in 100 000 audits of a true claim about one is accused, at most."""
    included, moves, moved = many_audits(q=q, rounds=rounds, noise=noise)
    worst = moves[np.argsort(moved)[-5:]]
    claim = UnitClaim(sample_rate=q, noise=noise)
    found = [check_canaries(one, included, claim, rounds=rounds) for one in worst]
    assert sum(not check.passed for check in found) <= 3


def test_equal_units_that_move_outputs_too_far():
    """In their own direction, or in another one; without outputs nothing can be said."""
    claim = UnitClaim(sample_rate=1.0, noise=0.1)
    way, other = np.eye(300)[:2]

    def passed(direction, factor):
        outputs = noise(rounds=8) / STD * 0.1 + factor * 20 * direction
        check = check_equal_units(outputs, way, claim, units=20, sensitivity=1.0)
        return check.passed

    assert passed(way, 1.0)
    assert passed(other, 1.0)
    assert not passed(way, 1.1)
    assert not passed(other, 1.1)
    one = check_equal_units(20 * way[None], way, claim, units=20, sensitivity=1.0)
    assert one.passed
    for outputs, gradient in ((np.zeros((0, 300)), way), (np.ones((3, 300)), 0 * way)):
        with pytest.raises(ValueError, match="expected outputs with equal units"):
            check_equal_units(outputs, gradient, claim, units=20, sensitivity=1.0)


def many_audits(**claim):
    """Five canaries in and five out, their moves in 100 000 audits of a true claim, and how far
    they moved.
    """
    included = np.arange(10) < 5
    moves = moves_of(np.random.default_rng(4), np.tile(included, (100_000, 1)), **claim)
    return included, moves, moves[:, included].mean(1) - moves[:, ~included].mean(1)


def test_one_run_by_hand():
    """q = 1/2, two of two right: 1/4, and max(P[Bin = 1] / 1, P[Bin in 0..1] / 2) = 1/2 times 2 m
    delta.
    """
    seen = Guesses(canaries=2, guesses=2, correct=2)
    assert one_run_p_value(seen, 0.0, 0.0) == pytest.approx(0.25)
    assert one_run_p_value(seen, 0.0, 0.01) == pytest.approx(0.25 + 2 * 2 * 0.01 * 0.5)


def test_bounds_hold_on_randomized_response_in_1000_runs():
    """At level 0.05 the bound passes the true epsilon in at most 5 % of runs (81 of 1000 has
    probability 1e-5).
    """
    rng, epsilon, m = np.random.default_rng(0), 1.0, 200
    q = 1 / (1 + math.exp(-epsilon))
    above = 0
    for correct in rng.binomial(m, q, size=1000):
        above += (
            one_run_p_value(Guesses(canaries=m, guesses=m, correct=int(correct)), epsilon, 0.0)
            < 0.05
        )
    assert 10 < above <= 81


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_bounds_hold_on_a_gaussian_mechanism_in_1000_runs(share):
    """Scores of a 1-GDP mechanism: the true curve is refuted in at most 5 % of runs, epsilon is not
    passed.
    """
    rng, m, delta = np.random.default_rng(1), 200, 1e-5
    refuted = passed = 0
    truth = gaussian_epsilon(1.0, delta)
    for _ in range(1000):
        included = rng.random(m) < 0.5
        seen = guess(rng.normal(size=m) + included, included, share)
        refuted += f_dp_refuted(seen, gaussian(1.0), 0.05)
        passed += one_run_p_value(seen, truth, delta) < 0.05
    assert refuted <= 81
    assert passed == 0


def test_bounds_find_a_false_claim():
    """Negative control: scores of a mechanism with a third of the claimed noise refute the
    claim.
    """
    rng, m = np.random.default_rng(2), 5000
    included = rng.random(m) < 0.5
    seen = guess(rng.normal(size=m) + 3 * included, included, 0.2)
    assert f_dp_refuted(seen, gaussian(1.0), 1e-3)
    assert not f_dp_refuted(seen, gaussian(3.0), 1e-3)
    everything = guess(np.where(included, 1.0, 0.0), included, 1.0)
    assert one_run_epsilon(everything, 1e-5, 1e-3) > 3


CLAIM: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "sample_rate": 0.5, "steps": 6}


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("q", "sigma", "steps", "epsilon"), [(0.5, 3.118, 100, 8.0), (0.05, 2.0, 2, 0.5)]
)
def test_delta_is_that_of_another_accountant(q, sigma, steps, epsilon):
    one = pld.from_gaussian_mechanism(sigma, sampling_prob=q, value_discretization_interval=1e-4)
    golden = one.self_compose(steps).get_delta_for_epsilon(epsilon)
    assert delta_of(epsilon, q, sigma, steps) == pytest.approx(golden, rel=1e-2)
    found = least_noise(epsilon, golden, q, steps)
    assert sigma * (1 - 2 * LEAST_NOISE_ERROR) < found < sigma


def test_full_batches_have_the_closed_form():
    """Balle and Wang: delta(0) = 2 Phi(mu / 2) - 1; ten steps at sigma 2 are one at mu = sqrt(10) /
    2.
    """
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
    assert (
        "together with 3 clients" in Stated(**CLAIM, **counts, trust="secure", colluders=3).reader
    )


@pytest.mark.parametrize(
    "made",
    [setting(), secure(setting(), clients=10, survivors=9), at_client_level(setting(), "server")],
    ids=str,
)
def test_the_outputs_are_enough_to_find_a_client_that_is_left_out(made: AuditSetting):
    h = made.stated.honest
    smallest = max(FOUND_NOISE_RATIO, math.sqrt((h - 1) / h))
    assert found_noise_ratio(2 * silent_rounds(made) * made.frame.kept) >= smallest
    assert 200 <= enough_canaries(made) <= 5000


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("epsilon", "delta", "q"), [(14.2, 3.7e-8, 0.00546), (14.0, 1e-6, 0.01)])
def test_a_large_claim_of_one_step_has_a_number(epsilon, delta, q):
    assert 0.2 < least_noise(epsilon, delta, q, 1) < 0.5


@pytest.mark.parametrize(("noise", "outcome"), [(2000.0, "no power"), (0.1, "passed")])
def test_a_check_that_could_not_have_failed_says_that_it_has_no_power(noise, outcome):
    rng, included = np.random.default_rng(0), np.arange(20) < 10
    moves = included + noise / 30 * rng.normal(size=20)
    found = check_canaries(moves, included, UnitClaim(sample_rate=1.0, noise=noise), rounds=30)
    assert found.outcome == outcome
