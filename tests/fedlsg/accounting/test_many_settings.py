"""What a ledger of a stranger may hold: many different settings, and numbers at the edges of a float."""

import math
import random
import time

import pytest

from fedlsg.accounting import Event, bounds, compose, grid, max_steps, surely_within
from fedlsg.accounting.bounds import MOST_SETTINGS, WITNESSED, upper_or_inf
from fedlsg.accounting.events import canonical, in_words
from fedlsg.accounting.population import displayed, spread

DELTA = 1e-5


def event(q: float, sigma: float, steps: int = 1) -> Event:
    return Event(sample_rate=q, noise_multiplier=sigma, steps=steps)


def different(count: int, seed: int = 0) -> list[Event]:
    rng = random.Random(seed)
    return [event(rng.uniform(0.01, 0.1), rng.uniform(0.8, 4), rng.randint(1, 9)) for _ in range(count)]


def test_fewer_settings_never_lose_less():
    many = canonical(different(40))
    exact = compose(many, delta=DELTA, accountants=("pld",))
    for most in (30, 10, 3, 1):
        found = grid.fewer(many, most)
        assert 1 <= len(found) <= most
        assert sum(e.steps for e in found) >= sum(e.steps for e in many if e.sample_rate < 1)
        assert compose(found, delta=DELTA, accountants=("pld",)).upper >= exact.upper
    assert grid.fewer(many, 40) is many


def test_more_settings_than_are_composed_one_by_one_give_an_upper_bound(monkeypatch):
    many = different(40, 1)
    exact = compose(many, delta=DELTA)
    assert exact.witness == "unwitnessed"
    assert f"more than {WITNESSED}" in exact.failures["prv"]
    monkeypatch.setattr(bounds, "MOST_SETTINGS", 10)
    merged = compose(many, delta=DELTA)
    assert exact.upper <= merged.upper < 1.5 * exact.upper
    assert merged.lower == 0


def test_a_ledger_of_hundreds_of_settings_is_composed_in_seconds():
    many = different(MOST_SETTINGS + 50, 2)
    start = time.process_time()
    bound = compose(many, delta=DELTA)
    assert math.isfinite(bound.upper)
    assert time.process_time() - start < 30, "80 of them took half a minute, 400 did not end"
    assert len(in_words(many)) < 400


@pytest.mark.parametrize("q", [5e-324, 1e-3, 1.0])
@pytest.mark.parametrize("sigma", [5e-324, 1e-300, 1e-155, 1e-7, 1e-3, 1e154, 1e308])
@pytest.mark.parametrize("steps", [1, 2**53])
def test_a_number_at_the_edge_gives_a_bound_or_infinity(q, sigma, steps):
    """It was a ZeroDivisionError after everybody had trained."""
    own = [event(q, sigma, steps)]
    honest = [event(0.1, 1.0, 10)]
    for events in (own, own + honest):
        upper = upper_or_inf(events, DELTA)
        assert upper >= 0
        if sigma < 1e-3:
            assert upper == math.inf or upper > 1e5
            assert not surely_within(events, epsilon=8.0, delta=DELTA)
    assert max_steps(epsilon=8.0, delta=DELTA, sample_rate=0.1, noise_multiplier=1.0, besides=tuple(own)) >= 0
    for of in (displayed, spread):
        found = of([honest, own, honest], delta=DELTA)
        assert found.largest >= upper_or_inf(own, DELTA)
        assert found.median == pytest.approx(upper_or_inf(honest, DELTA))


def test_one_client_without_a_bound_leaves_the_median_to_the_others():
    honest = [[event(0.1, 1.0, 10 + client)] for client in range(30)]
    found = spread([*honest, [event(1.0, 1e-300)]], delta=DELTA)
    assert (found.largest, found.worst) == (math.inf, 30)
    assert found.median < 5
