"""Subtractive dither: an error of zero mean and known variance whatever the value is, and what spoils it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.payload.codecs import Codec, int8, noise_floor
from fedlsg.payload.codecs.values import LEVELS, Dither, dequantize, quantize

COUNT = 40_000
WIDTH = 0.25
FIXED = (0.0, 0.03, WIDTH / 4, WIDTH / 2, 1.0, -7.77)
"""Values whose rounding to the nearest would always err by the same amount."""


def dither(client=0, seed=1, noise_std=0.5) -> Dither:
    return Dither(seed=seed, client=client, noise_std=noise_std)


def floor(step=0.5) -> noise_floor.NoiseFloor:
    return noise_floor.CODEC.with_settings({"noise_floor_step": step})


def received(codec: Codec, values, counts, d, round):
    return codec.decode(codec.encode(values, counts, d, round), counts, d, round, max_norm=math.inf)


def by_floor(values, client, round):
    return received(floor(), values, [len(values)], dither(client), round)


def by_int8(values, client, round):
    """With one value that sets the block's step to ``WIDTH``."""
    values = torch.cat([values, torch.tensor([126.5 * WIDTH])])
    return received(int8.CODEC, values, [len(values)], dither(client), round)[:-1]


def errors(send, value, client=0, round=1) -> np.ndarray:
    values = torch.full((COUNT,), value)
    return (send(values, client, round).double() - values.double()).numpy()


def faults(send) -> list[str]:
    """What is wrong with a quantiser: its error's mean and variance at fixed values, and between clients and rounds."""
    found = []
    sd = WIDTH / math.sqrt(12)
    for value in FIXED:
        e = errors(send, value)
        if abs(e.mean()) > 4.5 * sd / math.sqrt(COUNT):
            found.append("mean")
        if abs(e.var() / sd**2 - 1) > 4.5 * math.sqrt(0.8 / COUNT):  # a uniform number's fourth moment is 9/5 sd^4
            found.append("variance")
        if abs(e).max() > WIDTH / 2 * (1 + 1e-5):
            found.append("largest error")
    base = errors(send, 0.03)
    for other in (errors(send, 0.03, client=1), errors(send, 0.03, round=2), np.roll(base, 1)):
        if not abs(np.corrcoef(base, other)[0, 1] if base.std() and other.std() else 1) < 4.5 / math.sqrt(COUNT):
            found.append("reuse")
    return found


@pytest.mark.parametrize("send", [by_floor, by_int8])
def test_the_error_is_what_is_promised(send):
    assert faults(send) == []


def rounded(values, client, round):
    """Planted: to the nearest, without dither."""
    return (torch.round(values / WIDTH) * WIDTH).float()


def truncated(values, client, round):
    """Planted: the dither's half step forgotten, so that every value is rounded down."""
    d = dither(client)
    levels = d.draw(round, len(values))
    symbols = np.floor(values.double().numpy() / WIDTH + (levels + 0.5) / LEVELS - 0.5)
    return dequantize(symbols, WIDTH, levels)


def other_dither(values, client, round):
    """Planted: the receiver takes off another client's dither."""
    levels, wrong = dither(client).draw(round, len(values)), dither(client + 1).draw(round, len(values))
    return dequantize(quantize(values.numpy(), WIDTH, levels), WIDTH, wrong)


def kept_dither(values, client, round):
    """Planted: the dither is not taken off (stochastic rounding): no bias, but twice the variance and more."""
    levels = dither(client).draw(round, len(values))
    return torch.from_numpy((quantize(values.numpy(), WIDTH, levels) * WIDTH).astype(np.float32))


def one_for_all(values, client, round):
    """Planted: one dither for all clients and rounds."""
    return by_floor(values, 0, 1)


def one_for_a_round(values, client, round):
    """Planted: a single dither for all values."""
    levels = np.repeat(dither(client).draw(round, 1), len(values))
    return dequantize(quantize(values.numpy(), WIDTH, levels), WIDTH, levels)


@pytest.mark.parametrize(
    ("planted", "fault"),
    [
        (rounded, "mean"),
        (truncated, "mean"),
        (other_dither, "variance"),
        (kept_dither, "largest error"),
        (one_for_all, "reuse"),
        (one_for_a_round, "reuse"),
    ],
)
def test_planted_quantisers_are_caught(planted, fault):
    assert fault in faults(planted)


@given(seed=st.integers(0, 2**32), step=st.floats(0.05, 4), noise=st.floats(1e-6, 1e6), scale=st.floats(0, 100))
def test_floor_round_trip_is_within_half_a_step(seed, step, noise, scale):
    values = scale * noise * torch.randn(31, generator=torch.Generator().manual_seed(seed))
    codec, d = floor(step), dither(3, noise_std=noise)
    got = received(codec, values, [10, 0, 1, 20], d, 5)
    assert got.dtype == torch.float32
    assert bool(((got - values).abs() <= codec.width(d) / 2 * (1 + 1e-6) + 1e-6 * values.abs()).all())


def test_the_step_is_that_of_the_noise():
    assert floor().width(dither(noise_std=2.0)) == 1.0
    assert floor().added_variance == 0.25 / 12
    assert floor(0.5) == noise_floor.CODEC
    for bad in (0.0, math.nan, math.inf, 1e-60):
        with pytest.raises(ValueError, match="choose a codec that needs no noise"):
            floor().width(dither(noise_std=bad))
