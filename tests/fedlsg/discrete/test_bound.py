"""The total-variation term and the charge against brute force in one dimension."""

import math
from fractions import Fraction
from functools import cache

import mpmath
import numpy as np
import pytest

from fedlsg.secure_sum.discrete.bound import (
    log_ratio,
    rounding_deviation,
    rounding_ripple,
    sum_ripple,
)
from tests.fedlsg.support.discrete_laws import (
    BITS,
    Law,
    gaussian_delta,
    gaussian_law,
    hockey_stick,
    sum_law,
    total_variation,
    variation,
)

SHARES = [0.8, 1.0, 1.5, 2.5]


def of_ripple(e: float) -> float:
    """Total variation by the inequality of both lemmas."""
    return 0.5 * e / (1 - e)


def distance(centres: list[float], shares: list[float]) -> mpmath.mpf:
    """Exact total variation of the sum from the discrete Gaussian of the summed centre and
    variance.
    """
    with mpmath.workprec(BITS):
        return variation(sum_law(centres, shares), gaussian_sum(centres, shares))


def gaussian_sum(centres: list[float], shares: list[float]) -> Law:
    """The discrete Gaussian around the sum of the centres with the sum of the variances, which may
    be irrational.
    """
    c, square = sum(map(Fraction, centres)), sum(Fraction(s) ** 2 for s in shares)
    reach = int(22 * math.sqrt(square)) + 2
    first = round(c) - reach
    with mpmath.workprec(BITS + 40):
        weights = []
        for x in range(first, first + 2 * reach + 1):
            gamma = (x - c) ** 2 / (2 * square)
            weights.append(mpmath.exp(-mpmath.mpf(gamma.numerator) / gamma.denominator))
        total = mpmath.fsum(weights)
        return first, [int(mpmath.ldexp(w / total, BITS)) for w in weights]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("clients", [2, 3, 10])
def test_the_sum_is_within_the_bound_and_nearly_reaches_it(share, clients):
    # the rounding adds nothing that matters
    bound = total_variation([share] * clients, 1.2 * share)
    assert bound == pytest.approx(of_ripple(sum_ripple([share] * clients)), rel=1e-3)
    centres = [
        [0.0] * clients,
        [0.25] + [0.0] * (clients - 1),
        [(37 * i % 11) / 8 - 0.7 for i in range(clients)],
    ]
    found = [
        distance(each, [share] * clients) for each in (centres if clients < 10 else centres[::2])
    ]
    assert max(found) <= bound
    assert bound <= 2 * max(found)


@cache
def rounded_gaussian(centre: float, total: float, rounding: float) -> np.ndarray:
    """N(c, s^2 - r^2) rounded by a discrete Gaussian of deviation r around it: the trapezoidal rule
    in float64.
    """
    x, width = np.arange(-40, 41), math.sqrt(total**2 - rounding**2)
    y = centre + np.arange(-14 * width, 14 * width, width / 64)
    density = np.exp(-((y - centre) ** 2) / (2 * width**2))
    law = np.exp(-((x[:, None] - y) ** 2) / (2 * rounding**2))
    return (law / law.sum(0)) @ (density / density.sum())


@pytest.mark.parametrize("rounding", [0.45, 0.6, 0.8])
@pytest.mark.parametrize("centre", [0.0, 0.25, 0.5, -0.4])
def test_the_rounded_gaussian_is_within_the_bound(rounding, centre):
    first, law = gaussian_law(centre, Fraction(3, 2))
    known = dict(enumerate((math.ldexp(p >> (BITS - 100), -100) for p in law), start=first))
    discrete = np.array([known.get(x, 0.0) for x in range(-40, 41)])
    found = rounded_gaussian(centre, 1.5, rounding)
    exact, e = 0.5 * np.abs(found - discrete).sum(), rounding_ripple(rounding, 1.5)
    assert exact <= of_ripple(e)
    assert of_ripple(e) <= 10 * exact
    kept = discrete > 1e-9
    assert np.abs(np.log(found[kept] / discrete[kept])).max() <= math.log((1 + e) / (1 - e)) + 1e-12


def claimed(epsilon: float, shares: list[float], rounding: float, moved: float) -> float:
    """The delta that event and term claim for a sum whose real centre moves by ``moved`` steps."""
    sigma = math.sqrt(sum(s * s for s in shares) - rounding**2) / moved
    return gaussian_delta(epsilon, sigma) + (1 + math.exp(epsilon)) * total_variation(
        shares, rounding
    )


@cache
def neighbours(shares: tuple[float, ...], moved: float, start: float) -> tuple[Law, Law]:
    others = [0.3] * (len(shares) - 1)
    return sum_law([start, *others], shares), sum_law([start + moved, *others], shares)


@pytest.mark.parametrize("moved", [0.37, 1.0, 2.6])
@pytest.mark.parametrize(
    ("shares", "rounding"), [((0.8, 0.8), 0.7), ((1.5, 1.5), 1.3), ((1.0,) * 4, 1.1)]
)
def test_the_charge_is_never_below_the_exact_divergence(shares, rounding, moved):
    for start in (0.0, 0.5):
        for epsilon in (0.1, 0.5, 1.0, 2.0, 4.0):
            exact = hockey_stick(*neighbours(shares, moved, start), epsilon)
            assert exact <= claimed(epsilon, list(shares), rounding, moved)


def test_the_ratio_form_of_the_charge_is_never_below_the_exact_divergence():
    shares, rounding, moved = [1.5, 1.5], 1.0, 2.6
    ratio = log_ratio(shares, rounding)
    for epsilon in (0.5, 1.0, 2.0):
        sigma = math.sqrt(4.5 - 1.0) / moved
        exact = hockey_stick(*neighbours(tuple(shares), moved, 0.5), epsilon + 2 * ratio)
        assert exact <= math.exp(ratio) * gaussian_delta(epsilon, sigma)


@pytest.mark.parametrize("values", [1, 5_000, 10**6])
@pytest.mark.parametrize("epsilon", [0.1, 8.0])
def test_the_rounding_meets_its_fraction_and_hardly_less_would(values, epsilon):
    shares, steps, delta = [4.0] * 7, 1000, 1e-5
    r = rounding_deviation(shares, values=values, steps=steps, epsilon=epsilon, delta=delta)

    def term(r: float) -> float:
        return (1 + math.exp(epsilon)) * steps * values * total_variation(shares, r)

    assert term(r) <= 1e-6 * delta < term(r * 0.9999)
    assert 0.9 < r < 1.3


def test_shares_that_are_too_small_are_refused():
    ask = {"values": 5000, "steps": 1000, "epsilon": 3.0, "delta": 1e-5}
    with pytest.raises(ValueError, match="too small"):
        rounding_deviation([1.0] * 3, **ask)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="too small"):
        rounding_deviation([1.0], **ask)  # type: ignore[arg-type]
    for shares in ([], [0.0, 1.0], [math.nan], [math.inf]):
        with pytest.raises(ValueError, match="expected"):
            sum_ripple(shares)
    with pytest.raises(ValueError, match="nothing is left"):
        total_variation([1.0], 1.0)


def test_an_unsubtracted_rounding_is_found():
    """A discrete Gaussian loses more than the Gaussian of its variance: without r^2 the claim is
    false.
    """
    for shares, start, moved, epsilon in (((0.5, 0.5), 0.3, 0.5, 4.0), ((1.0,), -0.25, 0.7, 4.0)):
        sigma = math.sqrt(sum(s * s for s in shares)) / moved
        exact = hockey_stick(*neighbours(shares, moved, start), epsilon)
        assert exact > gaussian_delta(epsilon, sigma)


def test_a_centre_rounded_to_the_grid_is_found():
    """An example that moves the real sum by 0.3 steps can move a rounded one by a whole step."""
    shares = [1.5, 1.5]
    pair = neighbours(tuple(shares), 1.0, 0.0)  # the centres 0.4 and 0.7, rounded
    assert hockey_stick(*pair, 0.5) > claimed(0.5, shares, 1.1, 0.3)
    assert hockey_stick(*neighbours(tuple(shares), 0.3, 0.4), 0.5) <= claimed(0.5, shares, 1.1, 0.3)
