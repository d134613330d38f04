"""The composed loss against values that need no grid, and mistakes of each kind that it must not
survive.
"""

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.privacy.exact_epsilon import full_batch, inverted, one_step
from fedlsg.accounting import compose, pld, renyi_bound, step, tilt
from fedlsg.accounting.events import AccountingError, Event

few = settings(max_examples=8, deadline=None, derandomize=True)
TIGHT = 1.001


def event(q: float, sigma: float, steps: int) -> Event:
    return Event(sample_rate=q, noise_multiplier=sigma, steps=steps)


def upper(q: float, sigma: float, steps: int, delta: float) -> float:
    return pld.interval((event(q, sigma, steps),), delta).upper


@pytest.fixture(autouse=True)
def _no_answers_of_other_tests():
    caches = (pld.interval, pld.chernoff, step.nodes, tilt.loss)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


SETTINGS = [
    (0.01, 1.0, 1000),
    (0.02, 2.6699, 10_000),
    (0.02, 0.3, 10_000),
    (0.3, 2.0, 50),
    (0.9, 30.0, 1000),
    (1e-5, 1e3, 10**7),
    (1e-3, 30.0, 10**7),
    (0.5, 1e3, 10**7),
]


@pytest.mark.thinned(12)
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-15])
@pytest.mark.parametrize("setting", SETTINGS)
def test_it_is_above_the_exact_value_by_less_than_a_thousandth(setting, delta):
    bound = pld.interval((event(*setting),), delta)
    if bound.upper == 0:
        assert pld.interval((event(*setting),), delta * 0.9).lower == 0
        return
    exact = inverted([setting], delta, near=bound.upper)
    assert exact <= bound.upper <= TIGHT * exact
    assert bound.lower <= exact
    assert bound.estimate == pytest.approx(exact, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "delta"), [(3000, 1e-6), pytest.param(10**5, 1e-6, marks=pytest.mark.slow)]
)
def test_rare_large_losses_are_resolved(steps, delta):
    """Three per cent of the runs, or all of them, have one large loss; all else is in the grid's
    first cells.
    """
    bound = pld.interval((event(1e-5, 0.8, steps),), delta)
    exact = inverted([(1e-5, 0.8, steps)], delta, near=bound.upper)
    assert exact <= bound.upper <= TIGHT * exact


def test_a_small_delta_is_that_of_forty_digits():
    """mpmath, 40 digits, two contours: delta(3.9142982) = 9.999996792e-13 at q = .01, sigma = 1, T
    = 1000.
    """
    assert 3.9142982 <= upper(0.01, 1.0, 1000, 9.999996792e-13) <= 3.9142982 * TIGHT
    assert inverted([(0.01, 1.0, 1000)], 9.999996792e-13, near=3.9) == pytest.approx(
        3.9142982, rel=1e-8
    )


@few
@given(
    q=st.floats(-3, 0).map(lambda e: 10**e),
    sigma=st.floats(-0.5, 2).map(lambda e: 10**e),
    delta=st.floats(-9, -2).map(lambda e: 10**e),
)
def test_one_step_is_above_its_closed_form(q, sigma, delta):
    exact = one_step(q, sigma, delta) if q < 1 else full_batch(sigma, 1, delta)
    assert exact * (1 - 1e-9) <= upper(q, sigma, 1, delta) <= TIGHT * exact + 1e-10


def test_events_compose_in_any_order_and_however_they_are_cut():
    events = [event(0.05, 1.2, 120), event(0.2, 3.0, 40), event(1.0, 30.0, 1)]
    found = [pld.interval(tuple(order), 1e-6).upper for order in itertools.permutations(events)]
    assert max(found) == pytest.approx(min(found), rel=1e-9)
    exact = inverted(
        [(e.sample_rate, e.noise_multiplier, e.steps) for e in events], 1e-6, near=found[0]
    )
    assert exact <= found[0] <= TIGHT * exact
    cut = pld.interval(
        (event(0.05, 1.2, 50), event(0.05, 1.2 * (1 + 1e-12), 70), *events[1:]), 1e-6
    ).upper
    assert cut == pytest.approx(found[0], rel=1e-6)


@few
@given(
    q=st.floats(-4, -0.1).map(lambda e: 10**e),
    sigma=st.floats(-0.4, 1.5).map(lambda e: 10**e),
    steps=st.floats(0, 4).map(lambda e: round(10**e)),
    delta=st.floats(-12, -2).map(lambda e: 10**e),
)
def test_it_is_monotone(q, sigma, steps, delta):
    base = upper(q, sigma, steps, delta)
    more = [
        upper(min(1.05 * q, 1.0), sigma, steps, delta),
        upper(q, sigma / 1.05, steps, delta),
        upper(q, sigma, math.ceil(1.05 * steps), delta),
        upper(q, sigma, steps, delta / 1.2),
    ]
    assert all(base <= other * (1 + 5e-4) for other in more)


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta"), [(0.05, 1.3, 200, 1e-5), (0.4, 4.0, 30, 1e-6)]
)
def test_dp_accounting_agrees(q, sigma, steps, delta):
    """dp-accounting 0.6, at a tenth of its usual width: a certified upper bound, too."""
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=q, value_discretization_interval=1e-3, use_connect_dots=True
    ).self_compose(steps)
    assert upper(q, sigma, steps, delta) == pytest.approx(
        theirs.get_epsilon_for_delta(delta), rel=TIGHT - 1
    )


@pytest.mark.parametrize(
    ("rows", "batch", "sigma", "epochs", "delta", "renyis"),
    [
        (60_000, 150, 1.3, 15, 1e-5, 0.7242234026109595),
        (100_000, 100, 1.0, 30, 1e-7, 1.4154988495444845),
    ],
)
def test_tf_privacys_published_values(rows, batch, sigma, epochs, delta, renyis):
    """compute_dp_sgd_privacy_test.py of tf-privacy: Renyi bounds, reached at the orders 19 and 13.
    Ours are those.
    """
    events = (event(batch / rows, sigma, epochs * rows // batch),)
    assert renyi_bound.upper_bound(events, delta) == pytest.approx(renyis, rel=1e-3)
    assert renyi_bound.upper_bound(events, delta) <= renyis * (1 + 1e-9)
    assert 0.75 * renyis < pld.interval(events, delta).upper < renyis


CONTROLS = {
    (0.2, 1.0, 60, 1e-6): 12.54,
    (0.01, 0.8, 400, 1e-9): 4.30,
    (0.5, 6.0, 300, 1e-12): 11.05,
}


@functools.cache
def exact_controls() -> list[float]:
    return [inverted([setting[:3]], setting[3], near=near) for setting, near in CONTROLS.items()]


def holds() -> bool:
    """Whether no bound is below an exact value; no bound at all is no mistake."""
    return all(
        upper_or_infinite(*c) >= exact for c, exact in zip(CONTROLS, exact_controls(), strict=True)
    )


def upper_or_infinite(*setting) -> float:
    try:
        return upper(*setting)
    except AccountingError:
        return math.inf


def test_as_shipped():
    assert holds()


def test_losses_that_are_rounded_down_are_caught(monkeypatch):
    right = step.rounded

    def down(q, sigma, reach, width, most):
        first, log_mass = right(q, sigma, reach, width, most)
        return first - 1, log_mass

    monkeypatch.setattr(tilt, "rounded_step", down)
    assert not holds()


def test_masses_next_to_their_loss_without_spreading_are_caught(monkeypatch):
    """The plain mistake of a histogram: all of a cell's mass at its lower end."""
    right = step.rounded

    def lower_end(q, sigma, reach, width, most):
        first, log_mass = right(q, sigma, reach, width / 8, most)
        r = np.floor((first + np.arange(len(log_mass))) / 8).astype(int)
        return int(r[0]), np.log(np.bincount(r - r[0], np.exp(log_mass)) + 1e-300)

    monkeypatch.setattr(tilt, "rounded_step", lower_end)
    assert not holds()


def test_a_forgotten_direction_is_caught(monkeypatch):
    """Removal is the larger one of these sums. A sum of additions alone is below the truth."""
    right = pld.Sum.of.__func__
    monkeypatch.setattr(
        pld.Sum,
        "of",
        classmethod(
            lambda cls, events, delta, *, removal: right(cls, events, delta, removal=False)
        ),
    )
    assert not holds()


def test_addition_is_asked_where_it_could_be_the_larger_one_and_the_larger_one_counts(monkeypatch):
    asked = []
    right = pld._bounds

    def noted(total, delta, other):
        asked.append(total.removal)
        found = right(total, delta, other)
        return found if total.removal else replace(found, upper=60.0)

    monkeypatch.setattr(pld, "_bounds", noted)
    assert pld.largest_addition((event(0.5, 2.0, 100),)) == pytest.approx(100 * math.log(2))
    assert upper(0.5, 2.0, 100, 1e-6) == 60.0
    assert asked == [True, False]


def test_what_a_window_leaves_out_is_taken_off_delta(monkeypatch):
    wanted, right = upper(0.01, 1.0, 1000, 5e-7), pld.plan
    monkeypatch.setattr(pld, "plan", lambda *asked: replace(right(*asked), above=5e-7))
    assert upper(0.01, 1.0, 1000, 1e-6) == pytest.approx(wanted, rel=1e-3)


def test_mass_above_the_window_that_is_not_added_is_caught(monkeypatch):
    """A window that ends next to epsilon, and no bound of what is above it."""
    right = pld.plan

    def short(total, delta, theta, scale):
        plan = right(total, delta, theta, scale)
        exact = next(near for setting, near in CONTROLS.items() if setting[2] == total.steps)
        end = math.ceil((exact + 0.7 / theta) / plan.width)
        return replace(plan, cells=max(end - plan.bottom, 64), above=0.0)

    monkeypatch.setattr(pld, "plan", short)
    assert not holds()


@pytest.mark.parametrize("counted", [True, False])
def test_an_fft_error_that_is_not_added_to_delta_is_caught(monkeypatch, counted):
    """A transform with a unit of 5e-5, whose errors make delta smaller: the bound holds if it
    counts that unit.
    """
    right, coarse = tilt.rfft, 5e-5
    monkeypatch.setattr(
        tilt,
        "rfft",
        lambda masses: (
            right(masses) - tilt.FFT_PASS_ROUNDING * coarse * math.log2(len(masses)) / 10
        ),
    )
    if counted:
        monkeypatch.setattr(tilt, "unit", lambda dtype: coarse)
    assert holds() == counted


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta", "least"),
    [
        (0.01, 0.02, 100, 1e-5, 8900),
        (0.004, 0.02, 20, 1e-5, 3800),
        (1e-4, 0.02, 100, 1e-3, 1300),
        (1e-3, 0.026, 1000, 1e-5, 5560),
    ],
)
def test_what_is_likely_only_with_the_example_counts_at_small_noise(q, sigma, steps, delta, least):
    """There the density without the example underflows; without its mass epsilon was .08 where
    3,830 is right.
    """
    event = Event(sample_rate=q, noise_multiplier=sigma, steps=steps)
    assert compose([event], delta=delta, accountants=("pld",)).upper > least
