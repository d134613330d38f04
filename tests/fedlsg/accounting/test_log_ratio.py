"""Lambda of releases that are only nearly Gaussian: epsilon at delta e^-Lambda, plus 2 Lambda,
wherever it is asked.
"""

import math
import sys
from fractions import Fraction

import dp_accounting
import mpmath
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlsg.accounting import calibrate, certified, population, renyi_bound
from fedlsg.accounting.calibrate import calibrate_noise_multiplier, max_steps
from fedlsg.accounting.certified import compose, upper_or_inf
from fedlsg.accounting.events import (
    AccountingError,
    Event,
    add_log_ratio,
    canonical,
    smaller_delta,
    split_log_ratio,
)
from fedlsg.accounting.population import displayed, move_to_grid, spread
from fedlsg.accounting.renyi_bound import surely_within

DELTA = 1e-5
CHEAP = ("pld",)
few = settings(max_examples=12, deadline=None, derandomize=True)


def event(sigma: float = 4.0, steps: int = 9, log_ratio: float = 0.0, q: float = 1.0) -> Event:
    return Event(sample_rate=q, noise_multiplier=sigma, steps=steps, log_ratio=log_ratio)


def exact(sigma: float, steps: int, log_ratio: float, delta: float = DELTA) -> float:
    """Full batches: the analytic Gaussian mechanism by dp-accounting, at the smaller delta, plus 2
    Lambda.
    """
    ideal = dp_accounting.get_epsilon_gaussian(
        sigma / math.sqrt(steps), delta * math.exp(-log_ratio)
    )
    return float(ideal) + 2 * log_ratio


def covers(upper: float, truth: float) -> bool:
    return truth * (1 - 1e-9) <= upper <= truth * 1.001 + 1e-9


@pytest.mark.parametrize("log_ratio", [1e-9, 1e-3, 0.2, 3.0])
def test_full_batches_are_dp_accountings_at_the_smaller_delta(log_ratio):
    bound = compose([event(log_ratio=log_ratio)], delta=DELTA)
    assert covers(bound.upper, exact(4.0, 9, log_ratio))
    assert set(bound.intervals) == {"prv", "gaussian"}
    assert all(
        interval.upper >= exact(4.0, 9, log_ratio) * (1 - 1e-9)
        for interval in bound.intervals.values()
    )
    assert bound.lower <= exact(4.0, 9, log_ratio) - 2 * log_ratio  # of the Gaussian mechanisms
    assert bound.witness == "prv"


@pytest.mark.slow
def test_subsampled_events_are_dp_accountings_and_their_lambdas_add_up():
    events = [event(1.0, 30, 0.1, q=0.05), event(6.0, 2, 0.0), event(2.0, 5, 0.15, q=0.2)]
    accountant = PLDAccountant()
    for e in events:
        gaussian = dp_accounting.GaussianDpEvent(e.noise_multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(e.sample_rate, gaussian), e.steps)
    truth = float(accountant.get_epsilon(DELTA * math.exp(-0.25))) + 0.5
    assert compose(events, delta=DELTA, accountants=CHEAP).upper == pytest.approx(truth, rel=1e-3)


def test_a_lambda_that_leaves_less_delta_than_the_witness_resolves_is_unwitnessed():
    bound = compose([event(log_ratio=20.0)], delta=DELTA)
    assert (bound.accountant, bound.witness) == ("gaussian", "unwitnessed")
    assert covers(bound.upper, exact(4.0, 9, 20.0))


@few
@given(sigma=st.floats(1.0, 9.0), steps=st.integers(1, 30), q=st.sampled_from([0.1, 1.0]))
def test_lambda_zero_changes_no_bit(sigma, steps, q):
    plain = event(sigma, steps, q=q)
    assert plain == event(sigma, steps, -0.0, q=q)
    assert split_log_ratio([plain]) == ((plain,), 0.0)
    found = certified._certified(canonical([plain]), DELTA, {})
    assert compose([plain], delta=DELTA, accountants=CHEAP).upper == min(
        bound.upper for bound in found.values()
    )
    assert smaller_delta(DELTA, 0.0) == DELTA
    assert add_log_ratio(sigma, 0.0) == sigma


@given(log_ratio=st.floats(1e-300, 600), exponent=st.floats(-15, -1e-3), epsilon=st.floats(0, 1e6))
def test_delta_is_rounded_down_and_epsilon_up(log_ratio, exponent, epsilon):
    delta = 10**exponent
    with mpmath.workprec(1200):
        true = mpmath.mpf(delta) * mpmath.exp(-mpmath.mpf(log_ratio))
        assert true * (1 - mpmath.mpf(3e-15)) < smaller_delta(delta, log_ratio) < true
    assert Fraction(add_log_ratio(epsilon, log_ratio)) >= Fraction(epsilon) + 2 * Fraction(
        log_ratio
    )


@pytest.mark.parametrize("wrong", [-1e-9, math.inf, math.nan, True, "0.1"])
def test_a_lambda_out_of_range_is_refused(wrong):
    setting = {"epsilon": 1.0, "delta": DELTA, "sample_rate": 1.0, "log_ratio": wrong}
    for refused in (
        lambda: event(log_ratio=wrong),
        lambda: calibrate_noise_multiplier(steps=1, **setting),
        lambda: max_steps(noise_multiplier=1.0, **setting),
    ):
        with pytest.raises(ValueError, match="log_ratio"):
            refused()


@pytest.mark.parametrize("log_ratio", [710.0, 1e200, sys.float_info.max])
def test_a_huge_lambda_is_an_error_and_no_number(log_ratio):
    events = [event(log_ratio=log_ratio), event(3.0, log_ratio=log_ratio)]
    with pytest.raises(AccountingError, match="take a finer grid"):
        compose(events, delta=DELTA)
    assert upper_or_inf(events, DELTA) == certified.rough(events, DELTA) == math.inf
    assert spread([events, [event()]], delta=DELTA).median == math.inf
    for many in ([], [[event(2 + k)] for k in range(population.MAX_EXACT_CLIENTS)]):
        assert displayed([[event()], events, *many], delta=DELTA).largest == math.inf
    assert not surely_within(events, epsilon=1e308, delta=DELTA)
    setting = {"epsilon": 5.0, "delta": DELTA, "sample_rate": 1.0, "log_ratio": log_ratio}
    assert max_steps(noise_multiplier=4.0, **setting) == 0
    for target, why in (
        (5.0, "what discrete noise adds"),
        (1e300, "no noise multiplier|what discrete noise adds"),
    ):
        with pytest.raises(AccountingError, match=why):
            calibrate_noise_multiplier(steps=1, **setting | {"epsilon": target})


def test_what_would_lose_lambda_refuses_it():
    """No accountant knows Lambda: an event that was not split may not reach one."""
    events = (event(log_ratio=1e-12),)
    for lossy in (
        canonical,
        lambda e: move_to_grid(e, 8),
        lambda e: renyi_bound.upper_bound(e, DELTA),
    ):
        with pytest.raises(ValueError, match="split them first"):
            lossy(events)


def test_a_target_that_lambda_alone_exceeds_has_no_noise_multiplier():
    with pytest.raises(AccountingError, match="what discrete noise adds"):
        calibrate_noise_multiplier(
            epsilon=1.0,
            delta=DELTA,
            sample_rate=0.1,
            steps=5,
            log_ratio=0.3,
            besides=(event(50.0, 1, 0.2),),
        )


LAMBDA = 0.3


def composition_is_charged() -> bool:
    return covers(compose([event(log_ratio=LAMBDA)], delta=DELTA).upper, exact(4.0, 9, LAMBDA))


def rough_value_is_charged() -> bool:
    return covers(certified.rough([event(log_ratio=LAMBDA)], DELTA), exact(4.0, 9, LAMBDA))


def calibration_is_charged() -> bool:
    calibrate.forget()
    sigma = calibrate_noise_multiplier(
        epsilon=4.0,
        delta=DELTA,
        sample_rate=1.0,
        steps=9,
        log_ratio=LAMBDA,
        besides=(event(20.0, 1, LAMBDA),),
    )
    alone = (9 / sigma**2 + 1 / 400) ** -0.5
    return 4.0 * 0.985 <= exact(alone, 1, 2 * LAMBDA) <= 4.0


def steps_are_charged() -> bool:
    calibrate.forget()
    steps = max_steps(
        epsilon=6.0, delta=DELTA, sample_rate=1.0, noise_multiplier=6.0, log_ratio=LAMBDA / 9
    )
    return (
        exact(6.0, steps, steps * LAMBDA / 9)
        <= 6.0
        < exact(6.0, steps + 1, (steps + 1) * LAMBDA / 9) * 1.011
    )


def nobody_is_wrongly_sure() -> bool:
    """Budgets just below what is reported, where Lambda decides, and far above it."""
    events = [event(30.0, 1, 1.0)]
    truth = exact(30.0, 1, 1.0)
    return surely_within(events, epsilon=2 * truth, delta=DELTA) and not any(
        surely_within(events, epsilon=part * truth, delta=DELTA) for part in (0.5, 0.9, 0.999)
    )


def populations_are_charged() -> bool:
    """The largest and the median of three, and of so many that they are bounded: no client has
    more.
    """
    some = [[event(log_ratio=0.1)], [event(log_ratio=LAMBDA)], [event(5.0)]]
    many = [
        [event(4.0 + k / 9, log_ratio=LAMBDA if k else 0.0)]
        for k in range(population.MAX_EXACT_CLIENTS + 3)
    ]
    largest = exact(4.0, 9, LAMBDA)
    found = [
        spread(some, delta=DELTA),
        displayed(some, delta=DELTA),
        spread(many, delta=DELTA, accountants=CHEAP),
    ]
    shown = displayed(many, delta=DELTA)
    middle = many[len(many) // 2][0].noise_multiplier
    return (
        all(covers(s.largest, largest) and s.worst in (0, 1) for s in found)
        and largest <= shown.largest <= largest * 1.15
        and found[0].median >= exact(4.0, 9, 0.1)
        and min(found[2].median, shown.median) >= exact(middle, 9, LAMBDA)
    )


def forgetful_split(events):
    return split_log_ratio(events)[0], 0.0


def split_of_the_last(events):
    plain, _ = split_log_ratio(events)
    return plain, tuple(events)[-1].log_ratio


def merged_with_the_first_lambda(clients):
    parts = [split_log_ratio(events) for events in clients]
    return [canonical(plain) for plain, _ in parts], parts[0][1]


def merged_with_the_last_lambda(clients):
    return merged_with_the_first_lambda(clients[::-1])[0][::-1], split_log_ratio(clients[-1])[1]


def the_same_delta(delta, log_ratio):
    return delta


def once_lambda(epsilon, log_ratio):
    return epsilon + log_ratio


PLANTS = {
    "composition forgets": (composition_is_charged, certified, "split_log_ratio", forgetful_split),
    "composition keeps delta": (composition_is_charged, certified, "smaller_delta", the_same_delta),
    "composition adds half": (composition_is_charged, certified, "add_log_ratio", once_lambda),
    "rough value forgets": (rough_value_is_charged, certified, "split_log_ratio", forgetful_split),
    "rough value keeps delta": (rough_value_is_charged, certified, "smaller_delta", the_same_delta),
    "rough value adds half": (rough_value_is_charged, certified, "add_log_ratio", once_lambda),
    "calibration forgets": (calibration_is_charged, certified, "split_log_ratio", forgetful_split),
    "calibration forgets the others": (
        calibration_is_charged,
        certified,
        "split_log_ratio",
        lambda e: (split_log_ratio(e)[0], LAMBDA),
    ),
    "steps forget": (steps_are_charged, certified, "split_log_ratio", forgetful_split),
    "steps have one Lambda": (steps_are_charged, calibrate, "sum_up", lambda parts: LAMBDA / 9),
    "sure without Lambda": (
        nobody_is_wrongly_sure,
        renyi_bound,
        "split_log_ratio",
        forgetful_split,
    ),
    "sure with half": (nobody_is_wrongly_sure, renyi_bound, "add_log_ratio", once_lambda),
    "population forgets": (populations_are_charged, population, "split_log_ratio", forgetful_split),
    "population keeps delta": (
        populations_are_charged,
        population,
        "smaller_delta",
        the_same_delta,
    ),
    "population of the last": (
        populations_are_charged,
        population,
        "_merged",
        merged_with_the_last_lambda,
    ),
    "population of the first": (
        populations_are_charged,
        population,
        "_merged",
        merged_with_the_first_lambda,
    ),
}


@pytest.mark.parametrize(
    "check", sorted({plant[0] for plant in PLANTS.values()}, key=lambda check: check.__name__)
)
def test_as_shipped(check):
    assert check()


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_mistake_is_caught(name, monkeypatch):
    check, place, attribute, plant = PLANTS[name]
    monkeypatch.setattr(place, attribute, plant)
    assert not check()
    calibrate.forget()


def test_a_lambda_of_one_event_for_all_is_caught(monkeypatch):
    """Negative control of the sum."""
    events = [event(4.0, 5, 0.4), event(6.0, 5, 0.1)]
    truth = exact((5 / 16 + 5 / 36) ** -0.5, 1, 0.5)
    assert compose(events, delta=DELTA, accountants=CHEAP).upper >= truth
    monkeypatch.setattr(certified, "split_log_ratio", split_of_the_last)
    assert compose(events, delta=DELTA, accountants=CHEAP).upper < truth
