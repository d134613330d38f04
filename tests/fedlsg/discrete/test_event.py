"""The charge: what the accountants certify for it, against the exact divergence of the release
itself.
"""

import math
from dataclasses import replace
from fractions import Fraction

import pytest

from fedlsg.accounting import certified, compose
from fedlsg.accounting.events import split_log_ratio
from fedlsg.secure_sum.discrete.bound import log_ratio, rounding_deviation
from fedlsg.secure_sum.discrete.grid import DiscreteGrid, plan_grid
from fedlsg.secure_sum.discrete.sum_release import charge
from tests.fedlsg.support.discrete_laws import hockey_stick, sum_law, total_variation

DELTA = 1e-5


def planned(contributors: int = 4, epsilon: float = 2.0, sigma: float = 2.5):
    """A grid for one value, one release, and C = 1; its charge."""
    r = rounding_deviation([4.0] * contributors, values=1, steps=1, epsilon=epsilon, delta=DELTA)
    grid = plan_grid(
        noise_std=sigma,
        contributors=contributors,
        clients=contributors + 2,
        largest_sum=40.0,
        values=1,
        rounding=r,
    )
    own = charge(grid=grid, rounding=r, sensitivity=1.0, largest_batch=40, values=1)
    return grid, own


def exact_delta(grid, shares: int, epsilon: float, centre: Fraction = Fraction(1, 5)) -> float:
    """Two releases whose real centres are C / D apart; other clients have centres of their own."""
    others = [Fraction(1, 3)] * (shares - 1)
    deviations = [grid.share] * shares
    pair = [
        sum_law([own, *others], deviations) for own in (centre, centre + 1 / Fraction(grid.step))
    ]
    return hockey_stick(*pair, epsilon)


def delta_term(epsilon: float, contributors: int = 4) -> float:
    """What total variation adds to delta, in the other statement of the theorem
    (docs/discrete-noise.md).
    """
    r = rounding_deviation([4.0] * contributors, values=1, steps=1, epsilon=2.0, delta=DELTA)
    return (1 + math.exp(epsilon)) * total_variation([4.0] * contributors, r)


@pytest.mark.slow
def test_the_epsilon_of_the_charge_holds_and_is_close():
    grid, own = planned()
    reported = compose([own], delta=DELTA).upper
    assert exact_delta(grid, 4, reported) <= DELTA
    assert exact_delta(grid, 4, reported * 0.97) > DELTA
    without = compose([replace(own, log_ratio=0.0)], delta=DELTA).upper
    assert without < reported
    assert exact_delta(grid, 4, without) <= DELTA + delta_term(without)
    assert delta_term(2.0) <= 1e-6 * DELTA


def test_the_charged_noise_is_the_planned_one():
    _, own = planned(sigma=3.0)
    assert own.noise_multiplier == pytest.approx(3.0, rel=1e-9)
    assert (own.sample_rate, own.steps) == (1.0, 1)


def test_the_term_is_that_of_the_clients_whose_noise_counts():
    grid = DiscreteGrid(step=0.1, bits=9, share=Fraction(1), contributors=2, clients=7)
    own = charge(grid=grid, rounding=0.9, sensitivity=1.0, largest_batch=1, values=1)
    assert own.log_ratio == log_ratio([1.0, 1.0], 0.9) > 5 * log_ratio([1.0] * 3, 0.9)
    assert own.noise_multiplier == pytest.approx(math.sqrt(2 - 0.81) * 0.1)


def test_shares_without_a_finite_ratio_are_refused():
    grid = DiscreteGrid(step=1.0, bits=9, share=Fraction(1, 2), contributors=1, clients=1)
    with pytest.raises(ValueError, match="finite log_ratio"):
        charge(grid=grid, rounding=0.2, sensitivity=1.0, largest_batch=1, values=1)


@pytest.mark.parametrize(
    "wrong", [{"sensitivity": 0.0}, {"sensitivity": math.inf}, {"largest_batch": 0}, {"values": 0}]
)
def test_settings_out_of_range_are_refused(wrong):
    grid, _ = planned()
    settings = {"rounding": 1.0, "sensitivity": 1.0, "largest_batch": 40, "values": 1}
    with pytest.raises(ValueError, match="expected"):
        charge(grid=grid, **(settings | wrong))


def a_coarse_release_is_covered() -> bool:
    """Shares of 0.8 steps and r = 0.26: the release loses more than the Gaussian mechanism of its
    event.
    """
    grid = DiscreteGrid(step=5.0, bits=9, share=Fraction(4, 5), contributors=1, clients=1)
    own = charge(grid=grid, rounding=0.26, sensitivity=1.0, largest_batch=1, values=1)
    reported = compose([own], delta=0.01, accountants=("pld",)).upper
    return exact_delta(grid, 1, reported, centre=Fraction(8, 25)) <= 0.01


def test_a_composition_that_forgets_the_ratio_is_caught(monkeypatch):
    assert a_coarse_release_is_covered()
    monkeypatch.setattr(
        certified, "split_log_ratio", lambda events: (split_log_ratio(events)[0], 0.0)
    )
    assert not a_coarse_release_is_covered()


def test_a_forgotten_share_breaks_the_claim():
    grid, own = planned()
    reported = compose([own], delta=DELTA).upper
    assert exact_delta(grid, 3, reported) > 2 * (DELTA + delta_term(reported))


def test_noise_planned_for_all_clients_breaks_the_claim():
    """K = 6 may answer, m = 5 surely do, t = 1 of them tells its noise to the server."""
    grid, own = planned(contributors=6)
    reported = compose([own], delta=DELTA).upper
    assert exact_delta(grid, 5 - 1, reported) > 2 * (DELTA + delta_term(reported, 6))
