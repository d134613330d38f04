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
