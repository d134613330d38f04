"""One bit a value: by hand, never longer than what it stands for, biased as predicted, and read without trust."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import erf

from fedlsg.payload.codecs.sign import CODEC


def encode_sign(values, counts):
    return CODEC.encode(values, counts, None, 0)


def decode_sign(body, counts):
    return CODEC.decode(body, counts, None, 0, max_norm=math.inf)


SPLITS = st.lists(st.integers(0, 9), min_size=1, max_size=4)


def test_by_hand():
    """Means 2 and 1/2 as float32, then + - + | + - - and two spare bits; 0 is positive, an empty block nothing."""
    values = torch.tensor([1.0, -2.0, 3.0, 0.0, -0.5, -1.0])
    body = encode_sign(values, [3, 0, 3])
    assert body.hex() == "00000040" + "0000003f" + "b0"
    assert decode_sign(body, [3, 0, 3]).tolist() == [2, -2, 2, 0.5, -0.5, -0.5]


@given(counts=SPLITS, seed=st.integers(0, 2**31))
@settings(max_examples=100)
def test_signs_and_mean_magnitudes_arrive_and_nothing_gets_longer(counts, seed):
    values = torch.randn(sum(counts), generator=torch.Generator().manual_seed(seed))
    body = encode_sign(values, counts)
    assert len(body) == 4 * sum(count > 0 for count in counts) + (sum(counts) + 7) // 8
    got = decode_sign(body, counts)
    for x, y in zip(values.split(counts), got.split(counts), strict=True):
        assert torch.equal(x >= 0, y >= 0)
        assert y.norm() <= x.norm() * (1 + 1e-6)
        if len(x):
            torch.testing.assert_close(y.abs(), x.abs().mean().expand(len(x)))


@given(counts=SPLITS, seed=st.integers(0, 2**31))
@settings(max_examples=50)
def test_it_is_a_contraction(counts, seed):
    """Karimireddy et al. 2019, Lemma 8: |x - C(x)|^2 = (1 - |x|_1^2 / (n |x|_2^2)) |x|^2 in every block."""
    values = torch.randn(sum(counts), generator=torch.Generator().manual_seed(seed)).double()
    got = decode_sign(encode_sign(values, counts), counts).double()
    for x, y in zip(values.split(counts), got.split(counts), strict=True):
        if len(x):
            wanted = x.square().sum() - x.abs().sum() ** 2 / len(x)
            torch.testing.assert_close((x - y).square().sum(), wanted, rtol=1e-5, atol=1e-6)


def test_the_bias_under_noise_is_the_predicted_one():
    """s erf(m / (d sqrt 2)), and 2 / pi of a small signal; s is the mean magnitude, d sqrt(2 / pi) of noise alone."""
    n, d = 400_000, 1.7
    noise, alone = d * torch.randn(5 * n, generator=torch.Generator().manual_seed(1)), d * math.sqrt(2 / math.pi)
    for m in (0.05, 0.3, 1.0):
        signal = torch.cat([torch.full((n,), m), torch.zeros(4 * n)])
        got = decode_sign(encode_sign(signal + noise, [len(signal)]), [len(signal)])[:n].double()
        folded = alone * math.exp(-((m / d) ** 2) / 2) + m * erf(m / (d * math.sqrt(2)))
        s = (folded + 4 * alone) / 5
        assert float(got.mean()) == pytest.approx(s * erf(m / (d * math.sqrt(2))), abs=5 * s / math.sqrt(n))
        assert float(got.abs()[0]) == pytest.approx(s, rel=0.01)
        if m == 0.05:
            assert float(got.mean()) == pytest.approx(2 / math.pi * m, abs=5 * s / math.sqrt(n))
            assert float(got.mean()) != pytest.approx(m, abs=5 * s / math.sqrt(n))  # it is biased


@pytest.mark.parametrize(
    ("body", "counts", "why"),
    [
        ("", [1], "expected 5 bytes of values, got 0"),
        ("0000803f80ff", [1], "expected 5 bytes"),
        ("0000c07f80", [1], "finite mean magnitudes"),
        ("0000807f80", [1], "finite mean magnitudes"),
        ("000080bf80", [1], "finite mean magnitudes"),
        ("0000008080", [1], "finite mean magnitudes"),
        ("0100807f80", [1], "finite mean magnitudes"),
        ("0000803f81", [1], "spare bits"),
        ("0000803fc0", [1], "spare bits"),
    ],
)
def test_bytes_that_no_encoder_makes(body, counts, why):
    with pytest.raises(ValueError, match=why):
        decode_sign(bytes.fromhex(body), counts)


def test_a_scale_of_the_largest_magnitude_would_not_contract():
    """Negative control: the mean makes it one."""
    x = torch.tensor([1.0] * 9 + [10.0]).double()
    got = decode_sign(encode_sign(x, [10]), [10]).double()
    assert (x - got).norm() < x.norm()
    assert (x - x.abs().max() * x.sign()).norm() > x.norm()
    assert np.allclose(got, 1.9)
