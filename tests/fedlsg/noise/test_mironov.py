"""Mironov's attack (2012): values that only one of two data sets can give. The old draws must fall.

The attacker knows both sums. It counts payload values that no draw gives around the other sum.
"""

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from fedlsg.noise import add_gaussian
from fedlsg.noise.gaussian import DEVIATION_STEPS, ENLARGED
from fedlsg.randomness import reproducible_stream
from tests.noise import AddGaussian, add_old, old_normals

MEAN, MOVED = 0.37, 1e-3
"""The sum with an example, and what it moves; noise of deviation 1."""


def share_of_the_neighbour(add: AddGaussian, dtype: torch.dtype) -> float:
    """How much of the values near 0 that one data set gave the other one gave, too."""
    values = []
    for data, centre in enumerate((MEAN, MEAN + MOVED)):
        total = torch.full((300_000,), centre, dtype=dtype)
        noisy = add(total, 1.0, reproducible_stream(data, "attack"))
        values.append(noisy[noisy.abs() < 0.5].numpy())
    return float(np.isin(*values).mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neighbours_give_the_same_values(dtype):
    assert share_of_the_neighbour(add_gaussian, dtype) > 0.99


def test_with_the_old_draws_no_value_in_float64_is_that_of_the_neighbour():
    assert share_of_the_neighbour(add_old, torch.float64) < 1e-4


def on_the_grid(noisy: Tensor) -> Tensor:
    """Whether float32 values are integers times D: then every sum gives them."""
    step = ENLARGED / DEVIATION_STEPS
    return ((noisy.double() / step).round() * step).float() == noisy


@pytest.mark.parametrize("mean", [MEAN, MEAN + MOVED, 0.0, 1e-9, 3e4])
def test_every_value_in_float32_is_one_that_every_sum_gives(mean):
    total = torch.full((200_000,), mean)
    assert on_the_grid(add_gaussian(total, 1.0, reproducible_stream(0, "grid"))).all()
    assert not on_the_grid(add_old(total, 1.0, reproducible_stream(0, "grid"))).all()


def old_values(places: np.ndarray, mean: float) -> np.ndarray:
    """What old draws with these 52-bit numbers give in float32."""
    numbers = np.clip(places, 0, 2**52 - 1).astype(np.uint64) << np.uint64(12)
    return np.float32(mean + old_normals(numbers).numpy())


def old_place(values: np.ndarray, mean: float) -> np.ndarray:
    """The 52-bit number whose old draw gives a value, up to a few."""
    return np.floor(norm.cdf(values.astype(np.float64) - mean) * 2.0**52).astype(np.int64)


def impossible(width: float, moved: float, count: int = 20_000) -> float:
    """The share of float32 values in [-width, width] that no old draw gives around the other
    sum.
    """
    first, last = old_place(np.array([-width, width]), MEAN)
    places = np.random.default_rng(0).integers(first, last + 1, count)
    values = old_values(places, MEAN)
    around = old_place(values, MEAN + moved)
    given = [old_values(around + near, MEAN + moved) == values for near in range(-40, 41)]
    return 1 - float(np.any(given, axis=0).mean())


def test_the_old_draws_show_who_took_part_near_zero_where_float32_is_finest():
    """Cells of float32 are finer there than the atoms of a 52-bit draw: 2.7e-9 of all values."""
    assert impossible(1e-9, MOVED) > 0.5
    assert impossible(1e-9, 0.0) == 0, "the search finds every draw of its own sum"
