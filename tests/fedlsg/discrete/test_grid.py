"""The grid and the rotation before it: the noise that is wanted, sums that fit, the law of the
decoded sum.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedlsg.randomness import public_generator, reproducible_stream
from fedlsg.secure_sum.discrete.grid import (
    DiscreteGrid,
    add_modulo,
    decode,
    encode,
    largest_rotated,
    most_examples,
    plan_grid,
    random_signs,
    rotate,
    rounding_error,
    unrotate,
)
from tests.fedlsg.support.discrete_laws import chi_square, gaussian_law

plans = st.fixed_dictionaries(
    {
        "noise_std": st.floats(1e-6, 1e6),
        "contributors": st.integers(1, 60),
        "largest_sum": st.floats(0, 1e6),
        "values": st.integers(1, 10**6),
        "rounding": st.floats(0, 2),
        "floor": st.sampled_from([Fraction(5, 2), Fraction(4), Fraction(10)]),
        "failure": st.floats(1e-15, 0.1),
    }
)


@given(plan=plans, extra=st.integers(0, 20))
def test_the_shares_have_the_wanted_noise_and_the_sum_fits(plan, extra):
    plan["largest_sum"] *= plan["noise_std"]
    clients = plan["contributors"] + extra
    grid = plan_grid(**plan, clients=clients)
    left = grid.contributors * grid.share**2 - Fraction(plan["rounding"]) ** 2
    assert Fraction(grid.step) ** 2 * left >= Fraction(plan["noise_std"]) ** 2
    assert grid.noise_std(plan["rounding"]) == pytest.approx(plan["noise_std"], rel=1e-12)
    assert grid.share >= plan["floor"]
    tail = math.sqrt(2 * clients * math.log(2 * plan["values"] / plan["failure"])) * float(
        grid.share
    )
    assert plan["largest_sum"] / grid.step + tail <= (grid.modulus // 2 - 1) * (1 + 1e-9)


@pytest.mark.slow
@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20),
    clients=st.integers(1, 12),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_the_decoded_sum_is_the_sum_with_noise(values, clients, seed):
    x = torch.tensor(values, dtype=torch.float64)
    grid = plan_grid(
        noise_std=5.0,
        contributors=clients,
        clients=clients,
        largest_sum=1e3 * clients,
        values=len(x),
    )
    stream = reproducible_stream(seed)
    parts = [encode(x, grid, stream) for _ in range(clients)]
    assert all(int(part.min()) >= 0 and int(part.max()) < grid.modulus for part in parts)
    assert torch.equal(sum(parts[1:], parts[0]) % grid.modulus, add_modulo(parts, grid))
    assert ((decode(add_modulo(parts, grid), grid) - clients * x).abs() < 5.0 * 8).all()


CLIENTS = 5


def small_grid() -> DiscreteGrid:
    return plan_grid(
        noise_std=6.0,
        contributors=CLIENTS,
        clients=CLIENTS,
        largest_sum=60.0,
        values=1,
        failure=1e-12,
    )


def law_of_sum(grid: DiscreteGrid) -> tuple[int, list[int]]:
    # A client encodes float32 values: they are exact in float64, and the division is the only
    # rounding.
    centre = sum(Fraction(float(np.float32(10.0 + 0.37 * k)) / grid.step) for k in range(CLIENTS))
    return gaussian_law(centre, Fraction(math.sqrt(CLIENTS) * float(grid.share)))


def test_poisson_batches_exceed_the_bound_as_rarely_as_stated():
    for mean, failure in ((3.0, 1e-3), (120.0, 1e-9), (5000.0, 1e-9)):
        most = most_examples(mean, 10**9, failure)
        assert stats.poisson.sf(most, mean) <= failure
        assert stats.poisson.sf(mean + (most - mean) * 0.7, mean) > failure
    assert most_examples(50.0, 60, 1e-9) == 60


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"contributors": 0}, "contributors"),
        ({"contributors": 11}, "contributors"),
        ({"noise_std": 0.0}, "noise_std"),
        ({"noise_std": math.nan}, "noise_std"),
        ({"largest_sum": math.inf}, "largest_sum"),
        ({"failure": 0.0}, "failure"),
        ({"values": 0}, "values"),
        ({"rounding": 40.0}, "rounding"),
        ({"largest_sum": 1e20}, "bits"),
    ],
)
def test_plans_that_make_no_sense_are_refused(wrong, message):
    plan = {
        "noise_std": 1.0,
        "contributors": 9,
        "clients": 10,
        "largest_sum": 10.0,
        "values": 5,
    } | wrong
    with pytest.raises(ValueError, match=message):
        plan_grid(**plan)  # type: ignore[arg-type]


def test_values_rounded_before_the_noise_are_found():
    """A centre on the grid has another law than the real centre, even in the sum of five
    clients.
    """
    grid = small_grid()
    stream = reproducible_stream(29)
    parts = [
        encode(
            torch.floor(torch.full((60_000,), 10.0 + 0.37 * k) / grid.step) * grid.step,
            grid,
            stream,
        )
        for k in range(CLIENTS)
    ]
    samples = np.rint((decode(add_modulo(parts, grid), grid) / grid.step).numpy()).astype(np.int64)
    assert chi_square(samples, law_of_sum(grid)) < 1e-9


counts = st.one_of(st.integers(1, 70), st.sampled_from([127, 128, 129, 1000, 5000]))


def vector(values: int, seed: int) -> torch.Tensor:
    return torch.randn(values, generator=public_generator(seed, "vector"), dtype=torch.float64)


def signs_for(values: int, seed: int = 0) -> torch.Tensor:
    return random_signs(values, public_generator(seed, "rotation"))


@given(values=counts, seed=st.integers(0, 99))
def test_the_inverse_inverts_and_norms_stay(values, seed):
    x, signs = vector(values, seed), signs_for(values, seed)
    before = x.clone()
    y = rotate(x, signs)
    error = rounding_error(values) * float(x.norm())
    assert len(y) == values
    assert torch.equal(x, before)
    assert float((unrotate(y, signs) - x).norm()) <= 2 * error
    assert abs(float(y.norm() - x.norm())) <= error


@pytest.mark.parametrize("values", [1, 2, 3, 5, 8, 12])
def test_it_is_an_orthogonal_matrix(values):
    signs = signs_for(values)
    matrix = torch.stack([rotate(row, signs) for row in torch.eye(values, dtype=torch.float64)])
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(values, dtype=torch.float64))


@pytest.mark.parametrize("values", [64, 100, 1000])
def test_no_coordinate_exceeds_the_bound_more_often_than_stated(values):
    """A vector in one coordinate is the worst one: in the first window, in the last one, and in
    both.
    """
    failure = 0.05
    bound = largest_rotated(1.0, 1, values, failure)
    assert bound < 1
    for place in (0, values // 2, values - 1):
        x = torch.zeros(values, dtype=torch.float64)
        x[place] = 1.0
        beyond = [
            float(rotate(x, signs_for(values, seed)).abs().max()) > bound for seed in range(100)
        ]
        assert sum(beyond) <= 12  # 5 expected at most


def test_planted_other_signs_do_not_invert():
    x = vector(100, 1)
    assert float((unrotate(rotate(x, signs_for(100, 1)), signs_for(100, 2)) - x).norm()) > float(
        x.norm()
    )
