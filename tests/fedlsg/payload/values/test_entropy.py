"""Integers under a Gaussian: the model against scipy, round trips, a stream by hand, and streams that lie."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedlsg.payload.values import CLASSES, LARGEST, decode, encode, leb128, outermost, read_leb128, scale_code, weights

ANY = 2**53


def scale(code: int) -> float:
    return 2 ** (code / 8 - 4)


@pytest.mark.parametrize("code", [0, 17, 32, 40, 61, 90, 120, 255])
@pytest.mark.parametrize("dither_class", [0, 3, CLASSES - 1])
def test_weights_are_the_gaussians(code, dither_class):
    """Against scipy's distribution function, outermost bins with their tails."""
    top, u = outermost(code), (dither_class + 0.5) / CLASSES - 0.5
    edges = np.concatenate([[-np.inf], np.arange(-top, top) + 0.5, [np.inf]])
    wanted = np.diff(norm.cdf((edges - u) / scale(code)))
    got = weights(code, dither_class)
    assert got.dtype == np.int64
    assert got.min() >= 1
    assert got.sum() < 2**53
    assert np.abs(got / got.sum() - wanted).max() < 4e-3 * max(wanted)
    used = wanted > 0  # what a wrong model would cost, in bits a value
    assert (wanted[used] * np.log2(wanted[used] / (got / got.sum())[used])).sum() < (2e-5 if top < LARGEST else 5e-4)


@given(count=st.integers(0, 200), spread=st.floats(0, 1e6), seed=st.integers(0, 2**32), fitted=st.booleans())
def test_round_trip(count, spread, seed, fitted):
    """Any integers under any scales, fitted or not."""
    rng = np.random.default_rng(seed)
    symbols = np.rint(spread * rng.standard_normal(count)).astype(np.int64)
    code = scale_code(spread**2) if fitted else int(rng.integers(256))
    codes = np.where(rng.random(count) < 0.8, code, rng.integers(0, 256, count)).astype(np.uint8)
    classes = rng.integers(0, CLASSES, count).astype(np.uint8)
    stream = encode(symbols, codes, classes)
    assert np.array_equal(decode(stream, codes, classes, largest=ANY), symbols)


@pytest.mark.parametrize("largest", [2**20, 2**53])
def test_extreme_symbols(largest):
    symbols = np.array([largest, -largest, 0])
    codes, classes = np.zeros(3, np.uint8), np.zeros(3, np.uint8)
    stream = encode(symbols, codes, classes)
    assert np.array_equal(decode(stream, codes, classes, largest=largest), symbols)
    with pytest.raises(ValueError, match=f"beyond {largest - 1}"):
        decode(stream, codes, classes, largest=largest - 1)


@pytest.mark.parametrize("step", [0.25, 0.5, 1.0, 2.0])
def test_bits_are_the_differential_entropy_of_value_and_error(step):
    """E[-log2 P(q | u)] = h(x + e) - log2 D with e uniform over a step: nothing is lost to the coder."""
    rng = np.random.default_rng(3)
    count = 60_000
    x, u = rng.standard_normal(count) / step, rng.random(count) - 0.5
    symbols = np.floor(x + u + 0.5).astype(np.int64)
    codes = np.full(count, scale_code(1 / step**2), np.uint8)
    bits = 8 * len(encode(symbols, codes, ((u + 0.5) * CLASSES).astype(np.uint8))) / count
    grid = np.linspace(-12 / step, 12 / step, 200_001)
    density = norm.cdf((grid + 0.5) * step) - norm.cdf((grid - 0.5) * step)
    inside = density[density > 0]
    wanted = -(inside * np.log2(inside)).sum() * (grid[1] - grid[0])
    assert bits == pytest.approx(wanted, rel=0.01)


@given(number=st.integers(0, 2**63 - 1), tail=st.binary(max_size=3))
def test_leb128(number, tail):
    assert read_leb128(leb128(number) + tail, 0) == (number, len(leb128(number)))


@given(data=st.data())
@settings(max_examples=100)
def test_any_bytes_are_symbols_or_a_value_error(data):
    """What is accepted has a bounded size and is what its own encoding says."""
    count = data.draw(st.integers(0, 20))
    codes = np.array(data.draw(st.lists(st.integers(0, 255), min_size=count, max_size=count)), np.uint8)
    classes = np.arange(count).astype(np.uint8) % CLASSES
    stream = data.draw(st.binary(max_size=80))
    try:
        symbols = decode(stream, codes, classes, largest=1000)
    except ValueError:
        return
    assert len(symbols) == count
    assert count == 0 or abs(symbols).max() <= 1000
    assert encode(symbols, codes, classes) == stream


def test_lengths_that_lie():
    codes, classes = np.zeros(2, np.uint8), np.zeros(2, np.uint8)
    honest = encode(np.array([0, 1]), codes, classes)
    for lie in (
        leb128(2**62) + honest[1:],
        leb128(len(honest)) + honest[1:],
        honest + bytes([1, 2, 3, 4]),
        honest[:-1],
    ):
        with pytest.raises(ValueError, match=r"payload values|Invalid compressed data"):
            decode(lie, codes, classes, largest=ANY)
