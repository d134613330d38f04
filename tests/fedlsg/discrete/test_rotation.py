"""The public rotation: orthogonal, inverted exactly, and as even as the bound says."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.discrete.grid import (
    largest_rotated,
    random_signs,
    rotate,
    rounding_error,
    unrotate,
)
from fedlsg.randomness import public_generator

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
    """A vector in one coordinate is the worst one: in the first window, in the last one, and in both."""
    failure = 0.05
    bound = largest_rotated(1.0, 1, values, failure)
    assert bound < 1
    for place in (0, values // 2, values - 1):
        x = torch.zeros(values, dtype=torch.float64)
        x[place] = 1.0
        beyond = [float(rotate(x, signs_for(values, seed)).abs().max()) > bound for seed in range(100)]
        assert sum(beyond) <= 12  # 5 expected at most


def test_planted_other_signs_do_not_invert():
    x = vector(100, 1)
    assert float((unrotate(rotate(x, signs_for(100, 1)), signs_for(100, 2)) - x).norm()) > float(x.norm())
