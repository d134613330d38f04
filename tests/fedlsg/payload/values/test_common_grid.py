"""Integers of many clients on one grid: their sum modulo 2^b is the sum of the dequantised values, exactly."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.payload.values.common_grid import MOST_BITS, CommonGrid, error_variance, from_sum, grid_for, to_grid
from fedlsg.payload.values.dither import LEVELS

COUNT = 20_000


def grid(**changes) -> CommonGrid:
    return CommonGrid(**({"seed": 1, "exponent": -2, "clients": 4, "bits": 12} | changes))


def summed(each, grid) -> torch.Tensor:
    """What an outside protocol hands over: the sum modulo 2^bits."""
    return torch.stack(list(each)).sum(0) % grid.modulus


def dequantised(value: float, level: int, exponent: int) -> Fraction:
    """Oracle in rational numbers: (floor(x / D + u + 1/2) - u) D."""
    step, u = Fraction(2) ** exponent, Fraction(2 * level + 1, 2 * LEVELS) - Fraction(1, 2)
    return (math.floor(Fraction(value) / step + u + Fraction(1, 2)) - u) * step


@st.composite
def cohorts(draw):
    clients, count = draw(st.integers(1, 6)), draw(st.integers(0, 8))
    made = grid(
        seed=draw(st.integers(0, 99)), exponent=draw(st.integers(-30, 30)), clients=clients + draw(st.integers(0, 3)),
        bits=draw(st.integers(6, MOST_BITS)),
    )  # fmt: skip
    span = (made.limit - 1) * made.step
    # Multiples of a quarter step: x / D + u has few enough digits for float64, and the oracle is exact.
    quarter = st.integers(-4 * (made.limit - 1), 4 * (made.limit - 1)).map(lambda k: k * made.step / 4)
    values = draw(st.lists(st.lists(quarter, min_size=count, max_size=count), min_size=clients, max_size=clients))
    assert all(abs(x) <= span for own in values for x in own)
    return made, [torch.tensor(own, dtype=torch.float64) for own in values], draw(st.integers(0, 10**6))


@given(cohorts())
def test_the_sum_modulo_2_b_is_the_sum_of_the_dequantised_values(cohort):
    made, values, round = cohort
    integers = [to_grid(x, made, round) for x in values]
    assert all(0 <= int(q) < made.modulus for own in integers for q in own)
    total = from_sum(summed(integers, made), made, round, len(values))
    alone = [from_sum(q, made, round, 1) for q in integers]
    levels = made.levels(round, len(total)).tolist()
    for place, level in enumerate(levels):
        exact = sum(dequantised(float(x[place]), level, made.exponent) for x in values)
        assert Fraction(float(total[place])) == exact == sum(Fraction(float(own[place])) for own in alone)
        assert abs(exact - sum(Fraction(float(x[place])) for x in values)) <= len(values) * Fraction(made.step) / 2


def test_by_hand():
    """D = 1/4, two clients of 0.6 and -1.1: 2.4 and -4.4 steps; at the middle of the dither they round to 2 and -4."""
    made = grid()
    rounds = range(2000)
    middle = min(rounds, key=lambda round: abs(2 * int(made.levels(round, 1)) + 1 - LEVELS))
    assert abs(2 * int(made.levels(middle, 1)) + 1 - LEVELS) < 0.002 * LEVELS
    first, second = (to_grid(torch.tensor([x]), made, middle) for x in (0.6, -1.1))
    assert (first.tolist(), second.tolist()) == ([2], [4096 - 4])
    assert float(from_sum((first + second) % 4096, made, middle, 2)) == pytest.approx(-0.5, abs=2e-3)


def test_the_limit_is_what_cannot_overflow():
    """The extreme case: every client at its limit, of either sign."""
    for clients in (1, 2, 3, 5, 100):
        made = grid(clients=clients, bits=12)
        assert clients * made.limit < made.modulus // 2 <= clients * (made.limit + 1)
        for sign in (1, -1):
            total = torch.tensor([sign * made.limit * clients]) % made.modulus
            assert float(from_sum(total, made, 0, clients)) * sign > 0


@given(st.floats(-1e6, 1e6), st.integers(2, 12))
def test_what_could_overflow_is_refused(value, bits):
    made = grid(clients=1, bits=bits)
    beyond = abs(value) / made.step > made.limit + 1
    inside = abs(value) / made.step < made.limit - 1
    refused = False
    try:
        to_grid(torch.tensor([value]), made, 3)
    except ValueError:
        refused = True
    assert refused or not beyond
    assert not (refused and inside)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(value):
    with pytest.raises(ValueError, match="is outside"):
        to_grid(torch.tensor([0.0, value]), grid(), 0)


def test_a_sum_that_wraps_is_wrong():
    """Negative control: without the limit the same arithmetic gives another number, and nobody would notice."""
    wide, narrow = grid(bits=20), grid(bits=6)
    values = [torch.tensor([6.0])] * 3  # 72 steps together; 6 bits hold 31
    integers = [to_grid(x, wide, 0) for x in values]
    right = from_sum(summed(integers, wide), wide, 0, 3)
    wrong = from_sum(summed(integers, narrow), narrow, 0, 3)
    assert abs(right - 18) <= 3 * wide.step
    assert abs(wrong - 18) > 10
    with pytest.raises(ValueError, match="larger bound"):
        to_grid(values[0], narrow, 0)


def errors(made, noise_std, clients=3, value=0.6, draws=60) -> torch.Tensor:
    """Errors of sums of equal values under fresh noise, over rounds."""
    generator = torch.Generator().manual_seed(7)
    found = []
    for round in range(draws):
        noise = noise_std * torch.randn(clients, COUNT // 20, generator=generator, dtype=torch.float64)
        values = [torch.full((COUNT // 20,), value, dtype=torch.float64) + own for own in noise]
        total = from_sum(summed((to_grid(x, made, round) for x in values), made), made, round, clients)
        found.append(total - torch.stack(values).sum(0))
    return torch.cat(found)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.3, 1.0])
def test_errors_have_zero_mean_and_the_variance_that_is_stated(share):
    """Equal values, the worst case for a common dither: three clients err as one (9 D^2 / 12) without noise."""
    made = grid(bits=16)
    e = errors(made, share * made.step)
    bound = error_variance(made, 3, share * made.step)
    assert abs(e.mean()) < 5 * math.sqrt(bound / len(e))
    phase = math.exp(-((2 * math.pi * share) ** 2))  # the first harmonic decides
    assert float(e.var()) == pytest.approx(bound, rel=0.03 + 0.02 * phase)
    if share == 0:
        assert bound == pytest.approx(9 * made.step**2 / 12)
    if share == 1:
        assert bound == pytest.approx(3 * made.step**2 / 12, rel=1e-15)


def test_taking_the_variance_for_that_of_independent_errors_is_caught():
    """Negative control: without noise it is K^2, not K."""
    made = grid(bits=16)
    assert float(errors(made, 0.0).var()) > 2.5 * 3 * made.step**2 / 12


def test_a_wrong_number_of_clients_is_a_biased_sum():
    """Negative control: what the receiver has to know is how many were summed."""
    made = grid(bits=16)
    values = [torch.zeros(COUNT)] * 3
    total = summed((to_grid(x, made, 0) for x in values), made)
    assert from_sum(total, made, 0, 3).abs().max() <= 3 * made.step / 2
    assert from_sum(total, made, 0, 2).abs().max() > 0.9 * made.step


@given(
    st.floats(0, 1e4), st.floats(1e-3, 1e3), st.sampled_from([0.25, 0.5, 1.0]), st.integers(1, 1000),
    st.integers(1, 10**6),
)  # fmt: skip
def test_a_planned_grid_holds_its_bound(bound, noise_std, floor_step, clients, count):
    try:
        made = grid_for(
            seed=0, bound=bound, noise_std=noise_std, floor_step=floor_step, clients=clients, count=count, failure=1e-9
        )
    except ValueError:
        reach = bound + noise_std * math.sqrt(2 * math.log(count * clients / 1e-9))
        assert clients * (2 * reach / (floor_step * noise_std) + 2) > 2 ** (MOST_BITS - 2), "few enough would do"
        return
    assert floor_step * noise_std / 2 < made.step <= floor_step * noise_std
    reach = bound + noise_std * math.sqrt(2 * math.log(count * clients / 1e-9))
    for sign in (1, -1):
        to_grid(torch.tensor([sign * reach], dtype=torch.float64), made, 0)
    if made.bits > 2:
        with pytest.raises(ValueError, match=r"larger bound|bits that hold"):
            to_grid(torch.tensor([2 * reach + 4 * made.step], dtype=torch.float64), grid(
                seed=0, exponent=made.exponent, clients=clients, bits=made.bits - 1), 0)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 29}, "up to 28 bits"), ({"bits": 1}, "up to 28 bits"), ({"bits": 4, "clients": 8}, "more bits"),
        ({"clients": 0}, "clients=0 >= 1"), ({"exponent": 1001}, "exponent"),
    ],
)  # fmt: skip
def test_impossible_grids_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        grid(**changes)


@pytest.mark.parametrize(
    "changes", [{"noise_std": 0.0}, {"bound": math.inf}, {"failure": 0.0}, {"count": 0}, {"noise_std": math.nan}]
)
def test_impossible_plans_are_refused(changes):
    plan = {"bound": 1.0, "noise_std": 1.0, "floor_step": 0.5, "clients": 2, "count": 9, "failure": 1e-9}
    with pytest.raises(ValueError, match="expected"):
        grid_for(seed=0, **(plan | changes))


@pytest.mark.parametrize(("total", "clients"), [([-1], 1), ([4096], 1), ([0], 0), ([0], 5)])
def test_sums_that_cannot_be_are_refused(total, clients):
    with pytest.raises(ValueError, match="expected"):
        from_sum(torch.tensor(total), grid(), 0, clients)
