"""The sampler's law is the discrete Gaussian of every real centre; its comparisons agree with
mpmath.
"""

from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.noise import sampler
from fedlsg.noise.sampler import (
    CELL_CHOICE_BITS,
    CELL_POSITION_BITS,
    OPEN,
    PRECISION_BITS,
    WORD_BITS,
    below,
    compare,
    discrete_gaussian,
    enclose_exp,
    envelope_of,
    staircase,
)
from fedlsg.randomness import reproducible_stream
from tests.fedlsg.support.discrete_laws import chi_square, exact, gaussian_law
from tests.noise import old_normals

DEVIATIONS = [
    Fraction(1, 4),
    Fraction(4, 5),
    Fraction(1),
    Fraction(4),
    Fraction(333, 64),
    Fraction(100),
]
CENTRES = [
    0.0,
    0.5,
    -0.5,
    1 / 3,
    -123.456,
    2.0**40 + 0.25,
    -(2.0**53) - 2,
    1e-300,
    0.49999999999999994,
]
LEAST = 1e-6
"""Smallest p-value that passes. Seeds are fixed, so a test that passes passes always."""


def drawn(centre: float, deviation: Fraction, count: int, *labels: str | int) -> np.ndarray:
    stream = reproducible_stream(19, str(centre), str(deviation), *labels)
    return discrete_gaussian(
        torch.full((count,), centre, dtype=torch.float64), deviation, stream
    ).numpy()


@pytest.mark.thinned(5)
@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_the_law_is_the_discrete_gaussian_of_every_centre(deviation):
    for centre in CENTRES if deviation < 50 else CENTRES[2:4]:
        assert (
            chi_square(drawn(centre, deviation, 50_000), gaussian_law(centre, deviation)) > LEAST
        ), centre


@pytest.mark.parametrize("deviation", [Fraction(1, 4), Fraction(1), Fraction(9, 2), Fraction(16)])
@pytest.mark.parametrize("reach", [1, 2])
def test_the_tail_has_the_same_law(deviation, reach, monkeypatch):
    """With columns that end early the exact path draws most samples, in long blocks where the
    deviation is large.
    """
    reach = -int(-reach * deviation // 1)
    monkeypatch.setattr(sampler, "envelope_of", lambda s: staircase(s, reach))
    assert chi_square(drawn(0.3, deviation, 4_000), gaussian_law(0.3, deviation)) > LEAST


@pytest.mark.parametrize("deviation", [*DEVIATIONS, Fraction(500)])
def test_the_staircase_covers_every_centre_and_fits_its_word(deviation):
    envelope = envelope_of(deviation)
    weights = np.diff(envelope.starts)
    assert weights.min() >= 1
    assert envelope.starts[-1] <= 2**WORD_BITS
    assert envelope.starts[-1] > 0.99 * 2**WORD_BITS
    with mpmath.workprec(200):
        for k in {
            0,
            1,
            -1,
            2,
            int(deviation),
            -int(3 * deviation),
            envelope.reach,
            -envelope.reach,
        }:
            for f in (-Fraction(1, 2), Fraction(0), Fraction(1, 3), Fraction(1, 2)):
                height = envelope.height * mpmath.exp(-exact(((k - f) / deviation) ** 2 / 2))
                assert height <= int(weights[k + envelope.reach]), (k, f)
        ends = exact((Fraction(2 * envelope.reach + 1, 2) / deviation) ** 2 / 2)
        assert 4 * envelope.tail_block * envelope.height * mpmath.exp(-ends) <= int(weights[-1])


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_the_table_never_contradicts_mpmath(deviation):
    """Heights at both ends of what the table leaves undecided, for many offsets and fractions."""
    envelope = envelope_of(deviation)
    rng = np.random.default_rng(7)
    k = rng.integers(-int(4 * deviation) - 1, int(4 * deviation) + 2, 1500)
    f = rng.uniform(-0.5, 0.5, 1500)
    f[:6] = [0.5, -0.5, 0.0, 1e-300, -1e-300, 2.0**-40]
    cut = np.floor(np.ldexp(f, envelope.fraction)).astype(np.int64)
    with mpmath.workprec(200):
        curve = [
            envelope.height
            * mpmath.exp(-exact(((int(a) - Fraction(float(b))) / deviation) ** 2 / 2))
            for a, b in zip(k, f, strict=True)
        ]
    true = np.array([int(height) for height in curve])
    coarse = 1 << envelope.coarse
    for off in (
        -3 * envelope.margin,
        -envelope.margin,
        -1,
        0,
        1,
        envelope.margin,
        3 * envelope.margin,
    ):
        height = np.maximum(true + off * coarse, 0)
        accepted, undecided = compare(k, height, cut, envelope)
        assert (height[accepted] + 1 <= true[accepted]).all()
        assert (height >= true)[~accepted & ~undecided].all()
        if abs(off) == 3 * envelope.margin:
            assert not undecided[true > 4 * envelope.margin * coarse].any()


def test_a_planted_table_without_margin_contradicts_mpmath():
    envelope = envelope_of(Fraction(4))
    k, cut = np.zeros(1, dtype=np.int64), np.array([1 << (CELL_POSITION_BITS - 1)])
    # the chord, half-way to the next node
    curve = int(envelope.nodes[0] - (int(envelope.drops[0]) >> 1))
    x = Fraction(1 << (CELL_POSITION_BITS - 1), 1 << envelope.fraction)
    with mpmath.workprec(200):
        true = envelope.height * mpmath.exp(-exact((x / 4) ** 2 / 2)) / (1 << envelope.coarse)
    assert abs(true - curve) > 2
    assert abs(true - curve) < envelope.margin
    height = np.array([curve << envelope.coarse])
    assert compare(k, height, cut, envelope)[1].all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 2.0**62])
def test_centres_that_are_no_numbers_are_refused(bad):
    with pytest.raises(ValueError, match="finite centres"):
        discrete_gaussian(
            torch.tensor([0.0, bad], dtype=torch.float64), Fraction(4), reproducible_stream(1)
        )


@pytest.mark.parametrize("centre", [0.3, -0.3, 7.5])
def test_a_truncated_centre_is_found(centre):
    assert (
        chi_square(drawn(float(np.trunc(centre)), Fraction(1), 50_000), gaussian_law(centre, 1))
        < 1e-12
    )


def test_rounding_after_the_noise_is_found():
    noisy = 0.3 + old_normals(reproducible_stream(3).words(50_000)).numpy() * 0.8
    assert chi_square(np.rint(noisy).astype(np.int64), gaussian_law(0.3, Fraction(4, 5))) < 1e-12


def test_a_slightly_wrong_deviation_is_found():
    assert chi_square(drawn(0.0, Fraction(103, 100), 200_000), gaussian_law(0.0, 1)) < 1e-9


gammas = st.one_of(
    st.fractions(0, 100),
    st.fractions(0, Fraction(1, 10**9)),
    st.integers(0, 300).map(Fraction),
    st.integers(0, 12).map(lambda n: Fraction(2) ** n - Fraction(1, 2**70)),
    st.floats(0, 50).map(Fraction),
)


class Scripted:
    """A stream of given words; another one is an error."""

    def __init__(self, words: list[int]) -> None:
        self.left = words

    def words(self, count: int) -> np.ndarray:
        found, self.left = self.left[:count], self.left[count:]
        assert len(found) == count, "more bits were asked than the decision needs"
        return np.array(found, dtype=np.uint64)


@given(gamma=gammas, bits=st.integers(1, 400))
def test_the_bounds_hold_and_are_close(gamma, bits):
    low, high = enclose_exp(gamma, bits)
    with mpmath.workprec(bits + 300):
        assert low <= mpmath.ldexp(mpmath.exp(-exact(gamma)), bits) <= high
    assert high - low <= 2


@given(
    gamma=gammas.filter(lambda gamma: gamma > 0),
    scale=st.integers(1, 2**60),
    words=st.integers(1, 3),
)
def test_decisions_next_to_the_threshold_are_those_of_mpmath(gamma, scale, words):
    """U agrees with the fraction of scale exp(-gamma) in all bits of ``words`` words but the last
    one or two.
    """
    bits = 64 * words
    with mpmath.workprec(1200):
        target = int(mpmath.floor(mpmath.ldexp(scale * mpmath.exp(-exact(gamma)), bits)))
    for off, certain in ((-3, True), (3, False)):
        number = target + off
        if number < 0:
            continue
        height, rest = number >> bits, number & ((1 << bits) - 1)
        drawn = [rest >> (64 * i) & (2**64 - 1) for i in reversed(range(words))]
        assert below(height, scale, gamma, Scripted(drawn)) is certain  # type: ignore[arg-type]


def test_a_planted_nearest_rounding_is_found():
    """An enclosure that rounds to nearest instead of outwards misses exp(-gamma) of half of all
    gamma.
    """
    gamma = Fraction(1, 3)
    low, high = enclose_exp(gamma, 64)
    nearest = (low + high) // 2
    with mpmath.workprec(300):
        true = mpmath.ldexp(mpmath.exp(-exact(gamma)), 64)
        assert not nearest <= true <= nearest


@pytest.mark.parametrize("deviation", [*DEVIATIONS, Fraction(256), Fraction(4096)])
def test_a_cell_that_needs_no_centre_is_below_the_curve_of_every_centre(deviation):
    """Its lowest and its highest point, for f = -1/2 and 1/2: an exact comparison where needed."""
    envelope = envelope_of(deviation)
    sure = np.flatnonzero(envelope.cells != OPEN)
    points = np.stack([sure, sure + 1]).astype(np.int64) << (WORD_BITS - CELL_CHOICE_BITS)
    points[1] -= 1
    columns = np.searchsorted(envelope.starts, points, side="right") - 1
    k, height = columns - envelope.reach, points - envelope.starts[columns]
    assert (k == envelope.cells[sure]).all()
    for half in (-0.5, 0.5):
        cut = np.full_like(k, int(np.ldexp(half, envelope.fraction)))
        accepted, undecided = compare(k, height, cut, envelope)
        assert (accepted | undecided).all()
        for i in np.argwhere(undecided):
            place = tuple(i)
            x = Fraction(int(k[place])) - Fraction(half)
            bound = envelope.height * enclose_exp((x / deviation) ** 2 / 2, PRECISION_BITS)[0]
            assert (int(height[place]) + 1) << PRECISION_BITS <= bound


@pytest.mark.parametrize(("deviation", "least"), [(Fraction(4), 0.7), (Fraction(256), 0.97)])
def test_most_draws_need_16_bits(deviation, least):
    assert (envelope_of(deviation).cells != OPEN).mean() > least


def test_a_planted_cell_across_two_columns_is_found(monkeypatch):
    """Every cell decided by its first point alone: the law is off by less than a column."""
    true = envelope_of(Fraction(1, 2))
    first = np.arange(1 << CELL_CHOICE_BITS, dtype=np.int64) << (WORD_BITS - CELL_CHOICE_BITS)
    columns = np.searchsorted(true.starts, first, side="right") - 1 - true.reach
    planted = replace(true, cells=columns.astype(np.int16))
    monkeypatch.setattr(sampler, "envelope_of", lambda s: planted)
    law = gaussian_law(0.3, Fraction(1, 2))
    samples = drawn(0.3, Fraction(1, 2), 50_000)
    near = samples[np.abs(samples) < 5]
    assert chi_square(near, law) < 1e-12


def test_blocks_have_streams_of_their_own_and_threads_change_no_bit(monkeypatch):
    monkeypatch.setattr(sampler, "BLOCK_SAMPLES", 500)
    whole = drawn(0.3, Fraction(100), 2_750)
    blocks = [whole[begin : begin + 500] for begin in range(0, 2_500, 500)]
    assert len({block.tobytes() for block in blocks}) == len(blocks)
    assert chi_square(whole, gaussian_law(0.3, 100)) > LEAST
    monkeypatch.setattr(sampler, "WORTH_THREADS", 2_000)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert np.array_equal(drawn(0.3, Fraction(100), 2_750), whole)
    finally:
        torch.set_num_threads(before)
