"""The enclosure of exp(-gamma), and every decision that is made with it, against mpmath."""

from fractions import Fraction

import mpmath
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.discrete.sampler import below, enclose_exp
from tests.fedlsg.support.discrete_laws import exact

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


@given(gamma=gammas.filter(lambda gamma: gamma > 0), scale=st.integers(1, 2**60), words=st.integers(1, 3))
def test_decisions_next_to_the_threshold_are_those_of_mpmath(gamma, scale, words):
    """U agrees with the fraction of scale exp(-gamma) in all bits of ``words`` words but the last one or two."""
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
    """An enclosure that rounds to nearest instead of outwards misses exp(-gamma) of half of all gamma."""
    gamma = Fraction(1, 3)
    low, high = enclose_exp(gamma, 64)
    nearest = (low + high) // 2
    with mpmath.workprec(300):
        true = mpmath.ldexp(mpmath.exp(-exact(gamma)), 64)
        assert not nearest <= true <= nearest
