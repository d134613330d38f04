"""Noise around a real sum: its law, its price, and the mistakes that these checks must find.

Streams have fixed keys, so that a test that passes passes always.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fedlsg.noise import add_gaussian, gaussian, sampler
from fedlsg.noise.gaussian import DEVIATION_STEPS, ENLARGED, LARGEST_STD, SMALLEST_STD
from fedlsg.privacy.clip import NARROW_SUM
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.randomness import SecretStream, reproducible_stream, secret_stream
from fedlsg.secure_sum.discrete.bound import log_ratio
from tests.fedlsg.support.discrete_laws import (
    chi_square,
    gaussian_delta,
    gaussian_law,
    hockey_stick,
)
from tests.noise import AddGaussian

LEAST = 1e-6
"""Smallest p-value that passes."""
STD = 0.37
STEP = STD * ENLARGED / DEVIATION_STEPS


def steps_of(noisy: Tensor) -> np.ndarray:
    """The nearest integers n + k."""
    return np.rint((noisy / STEP).numpy()).astype(np.int64)


def draw(centre: float, add: AddGaussian = add_gaussian, count: int = 100_000) -> Tensor:
    """Draws around a sum of ``centre`` grid steps."""
    total = torch.full((count,), centre * STEP, dtype=torch.float64)
    return add(total, STD, reproducible_stream(5, str(centre)))


def p_value(centre: float, add: AddGaussian = add_gaussian) -> float:
    """Of the discrete Gaussian of STEPS around the centre as float64 divides."""
    true = Fraction(float(np.float64(centre * STEP) / STEP))
    return chi_square(steps_of(draw(centre, add)), gaussian_law(true, DEVIATION_STEPS))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("centre", [0.0, 0.5, -0.3, 1e6 + 0.25])
def test_the_law_is_exact_around_a_real_sum(centre):
    assert p_value(centre) > LEAST
    noisy = draw(centre)
    assert np.array_equal(noisy.numpy(), steps_of(noisy) * STEP)


def halved(total: Tensor, std: float, stream: SecretStream) -> Tensor:
    return add_gaussian(total, std / 2, stream)


def slightly_less(total: Tensor, std: float, stream: SecretStream) -> Tensor:
    noise = add_gaussian(torch.zeros_like(total), std, stream)
    return total + (noise / STEP * 0.97).round() * STEP


def same_for_all(total: Tensor, std: float, stream: SecretStream) -> Tensor:
    return add_gaussian(torch.zeros(1, dtype=total.dtype), std, stream) + total


def around_the_grid(total: Tensor, std: float, stream: SecretStream) -> Tensor:
    """The sum rounded before the noise. Each example's share of the rounding is lost or doubled."""
    return add_gaussian((total / STEP).round() * STEP, std, stream)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("planted", [halved, slightly_less, same_for_all])
def test_planted_noise_of_another_law_is_found(planted):
    assert p_value(0.0, planted) < 1e-12


def centre_error(add: AddGaussian, centre: float = 0.4) -> float:
    """How far the mean of 2 10^7 draws is from the sum, in standard errors; 0.4 steps are 7."""
    total = torch.full((10**6,), centre * STEP, dtype=torch.float64)
    means = [add(total, STD, reproducible_stream(9, i)).mean() for i in range(20)]
    found = float(torch.stack(means).mean()) / STEP
    return abs(found - centre) / (DEVIATION_STEPS / math.sqrt(20 * len(total)))


def test_the_centre_is_the_sum_itself():
    assert centre_error(add_gaussian) < 3
    assert centre_error(around_the_grid) > 4


def test_it_looks_like_a_gaussian_with_its_variance_and_its_tails():
    z = (draw(0.3, count=400_000) - 0.3 * STEP) / (STD * ENLARGED)
    assert math.sqrt(len(z)) * stats.kstest(z.numpy(), "norm").statistic < 1.95
    assert abs(float(z.square().mean()) - 1) < 5 * math.sqrt(2 / len(z))
    assert abs(float(z.pow(4).mean()) - 3) < 5 * math.sqrt(96 / len(z))
    for reach in (3.0, 4.0):
        expected = 2 * stats.norm.sf(reach) * len(z)
        assert abs(int((z.abs() > reach).sum()) - expected) < 5 * math.sqrt(expected)


def largest_correlation(add: AddGaussian, count: int = 200_000) -> float:
    """Of one vector with itself moved by 1 to 20 places, and by a block; in standard errors."""
    z = draw(0.3, add, count)
    z = (z - z.mean()) / z.std()
    lags = [*range(1, 21), sampler.BLOCK_SAMPLES]
    return max(abs(float(z[lag:] @ z[:-lag])) / math.sqrt(len(z) - lag) for lag in lags)


def test_coordinates_are_independent():
    assert largest_correlation(add_gaussian) < 5


def test_planted_noise_that_repeats_is_found():
    def repeated(total: Tensor, std: float, stream: SecretStream) -> Tensor:
        first = add_gaussian(torch.zeros(10, dtype=total.dtype), std, stream)
        return total + first.repeat(len(total) // 10)

    assert largest_correlation(repeated) > 100


def test_steps_have_noise_of_their_own():
    stream, total = secret_stream(), torch.zeros(1000, dtype=torch.float64)
    first, second = add_gaussian(total, STD, stream), add_gaussian(total, STD, stream)
    assert abs(float(first @ second)) / STD**2 < 7 * math.sqrt(1000)


ROUNDING = 2.0
"""r of docs/privacy.md, in steps."""


def test_the_claimed_deviation_is_covered_with_a_margin_for_the_sum():
    """The margin pays for the rounding of both sums of neighbours, which n additions make."""
    margin = ENLARGED * math.sqrt(1 - (ROUNDING / DEVIATION_STEPS) ** 2) - 1
    assert margin > 6.9e-5
    assert margin > (NARROW_SUM**2 * 2.0**-24) * 1.01
    assert margin > 2 * 550_000**2 * 2.0**-53 * 1.01
    assert ENLARGED - 1 < 1.1e-4


def test_what_the_rounding_costs_is_below_the_last_digit_of_any_epsilon():
    """Lambda of 2^40 values in 2^40 steps."""
    assert log_ratio([float(DEVIATION_STEPS)], ROUNDING) * 2.0**80 < 1e-40


def loss_over_claim(enlarged: float, epsilon: float) -> float:
    """delta of one coordinate that an example moves by C, over that of the claimed Gaussian."""
    moved = Fraction(DEVIATION_STEPS) / Fraction(enlarged)
    exact = hockey_stick(
        gaussian_law(0, DEVIATION_STEPS), gaussian_law(moved, DEVIATION_STEPS), epsilon
    )
    return exact / gaussian_delta(epsilon, 1.0)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
def test_one_coordinate_costs_less_than_the_claim(epsilon):
    assert loss_over_claim(ENLARGED, epsilon) < 1


@pytest.mark.slow
def test_less_noise_than_claimed_costs_more():
    assert loss_over_claim(1 / ENLARGED, 2.0) > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_types_are_those_of_the_sum_and_rounded_last(dtype):
    total = torch.linspace(-1, 1, 1001).to(dtype)
    noisy = add_gaussian(total, STD, reproducible_stream(3))
    wide = add_gaussian(total.double(), STD, reproducible_stream(3))
    assert noisy.dtype == dtype
    assert torch.equal(noisy, wide.to(dtype))


def without_a_mode(count: int = 3000) -> Tensor:
    return add_gaussian(torch.ones(count), STD, reproducible_stream(3))


def test_modes_and_defaults_of_torch_change_nothing():
    wanted = without_a_mode()
    with torch.inference_mode():
        assert torch.equal(without_a_mode(), wanted)
    with torch.no_grad():
        assert torch.equal(without_a_mode(), wanted)
    total = torch.ones(3000, requires_grad=True)
    found = add_gaussian(total, STD, reproducible_stream(3))
    assert torch.equal(found, wanted)
    assert not found.requires_grad
    on_cpu = torch.ones(3000)
    with torch.device("meta"):
        assert torch.equal(add_gaussian(on_cpu, STD, reproducible_stream(3)), wanted)


def test_the_sum_is_not_changed_and_needs_no_memory_of_one_piece():
    rows = torch.ones(1000, 2)
    wanted = add_gaussian(torch.ones(1000), STD, reproducible_stream(3))
    assert torch.equal(add_gaussian(rows[:, 0], STD, reproducible_stream(3)), wanted)
    assert torch.equal(rows, torch.ones(1000, 2))
    assert add_gaussian(torch.ones(0), STD, reproducible_stream(3)).shape == (0,)


def test_threads_change_no_bit_in_inference_mode_either(monkeypatch):
    wanted = without_a_mode(3 * sampler.BLOCK_SAMPLES + 17)
    monkeypatch.setattr(sampler, "WORTH_THREADS", 1)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(without_a_mode(len(wanted)), wanted)
        with torch.inference_mode():
            assert torch.equal(without_a_mode(len(wanted)), wanted)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("count", [7, 1000, 9000, 10_250])
def test_a_device_gets_the_numbers_of_the_cpu(count, monkeypatch):
    """The path of devices on a CPU, in blocks and parts of them."""
    monkeypatch.setattr(sampler, "BLOCK_SAMPLES", 1000)
    monkeypatch.setattr(gaussian, "BLOCK_SAMPLES", 1000)
    monkeypatch.setattr(gaussian, "AT_ONCE_ON_DEVICE", 3000)
    total = torch.linspace(-1, 1, count)
    there = torch.empty_like(total)
    gaussian._on_device(total, there, STEP, reproducible_stream(3))
    assert torch.equal(there, add_gaussian(total, STD, reproducible_stream(3)))


@pytest.mark.parametrize("path", ["_on_cpu", "_on_device"])
def test_what_is_no_number_stays_so(path):
    """Of a mechanism without a clip alone: others have no such sums."""
    total = torch.tensor([math.nan, math.inf, -math.inf, 1e308, 0.0], dtype=torch.float64)
    noisy = torch.empty_like(total)
    getattr(gaussian, path)(total, noisy, 1e-30, reproducible_stream(3))
    assert noisy[:3].isnan()[0]
    assert noisy[1:3].tolist() == [math.inf, -math.inf]
    assert noisy[4].isfinite()


@pytest.mark.parametrize("std", [0.0, SMALLEST_STD / 2, LARGEST_STD * 2, math.inf, math.nan, -1.0])
def test_deviations_without_a_grid_are_refused(std):
    with pytest.raises(ValueError, match="noise's deviation"):
        add_gaussian(torch.zeros(1), std, secret_stream())


@pytest.mark.parametrize("multiplier", [1e-300, 1e300])
def test_a_mechanism_without_a_grid_is_refused_before_anything_is_charged(multiplier):
    with pytest.raises(ValueError, match="noise's deviation"):
        Mechanism(noise_multiplier=multiplier, clip_norm=1e-5 if multiplier < 1 else 1e5)


@pytest.mark.parametrize("std", [SMALLEST_STD, LARGEST_STD, 1e-40])
def test_extreme_deviations_keep_their_law(std):
    z = add_gaussian(torch.zeros(20_000, dtype=torch.float64), std, reproducible_stream(1)) / std
    assert math.sqrt(len(z)) * stats.kstest(z.numpy(), "norm").statistic < 1.95
