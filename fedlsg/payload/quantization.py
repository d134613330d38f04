"""Fewer bits a value by subtractive dither: below the noise that the values carry, or eight bits each.

Symbols: x a value     D grid step     u dither, uniform in [-1/2, 1/2), public     q integer sent
    q = floor(x / D + u + 1/2)        the receiver takes (q - u) D: x plus an error uniform in (-D/2, D/2]
The error does not depend on x (Roberts 1962; Schuchman 1964): it has zero mean whatever x is and variance D^2 / 12.
The dither has 2^24 levels: "uniform" holds up to 2^-25 of a step. Everything here works on values that the mechanism
has noised already: post-processing of each client's payload, epsilon is untouched.

    noise-floor   D = a times the standard deviation of the noise on every value; q entropy-coded (gaussian_code.py)
    int8          D = largest magnitude of the block / 126.5; q in one byte
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.payload import entropy as gaussian_code
from fedlsg.payload.entropy import CLASSES
from fedlsg.randomness import public_generator

LEVELS = 2**24
STEP = struct.Struct("<f")
STEP_TOLERANCE = 1e-6
LARGEST_SYMBOL = 2**53
INT8_SPAN = 126.5

DEFAULT_STEP = 0.5
"""a of codec noise-floor: 2 % more variance than the noise has, about 3 bits a value."""


@dataclass(frozen=True, kw_only=True)
class Dither:
    """What both sides know of one client's quantisation: the public seed, whose values, their noise, and a.

    noise_std: deviation of the noise on every value as it is sent, over all local steps (ranking.accumulated_noise).
    floor_step: a, the grid step in units of it.
    """

    seed: int
    client: int
    noise_std: float = 0.0
    floor_step: float = DEFAULT_STEP

    @property
    def width(self) -> float:
        """Grid step of codec noise-floor. Raises ValueError where values carry no noise."""
        with np.errstate(over="ignore"):  # a deviation that a message names
            width = float(np.float32(self.floor_step * self.noise_std))
        if not 0 < width < math.inf:
            raise ValueError(
                f"codec 'noise-floor' takes its step from the noise, and {self.noise_std=} x {self.floor_step=} gives "
                "none: choose codec 'int8' or 'float32'"
            )
        return width

    @property
    def received_noise(self) -> float:
        """Deviation of noise and quantisation error together, under codec noise-floor."""
        return self.noise_std * math.sqrt(1 + added_variance(self.floor_step))

    def draw(self, round: int, count: int) -> np.ndarray:
        """Levels d of the dither u = (d + 1/2) / 2^24 - 1/2, int64: one a value, new in every round."""
        generator = public_generator(self.seed, "dither", round, self.client)
        return torch.randint(LEVELS, (count,), generator=generator, dtype=torch.int64).numpy()


def added_variance(floor_step: float) -> float:
    """Variance of the quantisation error over that of the noise: a^2 / 12."""
    return floor_step**2 / 12


def quantize(values: np.ndarray, width: np.ndarray | float, levels: np.ndarray) -> np.ndarray:
    """q as float64 whole numbers."""
    return np.floor(values.astype(np.float64) / width + (levels + 0.5) / LEVELS)


def dequantize(symbols: np.ndarray, width: np.ndarray | float, levels: np.ndarray) -> Float[Tensor, " kept"]:
    """(q - u) D in float64, rounded once to float32: only IEEE operations, the same bits on every machine."""
    with np.errstate(over="ignore"):  # infinite values are refused by whoever unpacks
        return torch.from_numpy(((symbols + 0.5 - (levels + 0.5) / LEVELS) * width).astype(np.float32))


def encode_floor(values: Float[Tensor, " kept"], counts: Sequence[int], dither: Dither, round: int) -> bytes:
    """Bytes of codec noise-floor: grid step (float32), one scale code a block that has values, gaussian_code.encode.

    Raises ValueError for values more than 2^53 steps large.
    """
    levels = dither.draw(round, sum(counts))
    width = dither.width
    grid = quantize(values.numpy(), width, levels)
    if len(grid) and not np.abs(grid).max() < LARGEST_SYMBOL:
        raise ValueError(f"values of more than 2^53 grid steps of {width:g}: choose codec 'float32'")
    parts = [part for part in values.double().split(list(counts)) if len(part)]
    codes = np.array([gaussian_code.scale_code(float((part / width).square().mean())) for part in parts], np.uint8)
    symbols = grid.astype(np.int64)
    stream = gaussian_code.encode(symbols, np.repeat(codes, [len(part) for part in parts]), classes(levels))
    return STEP.pack(width) + codes.tobytes() + stream


def decode_floor(
    body: bytes, counts: Sequence[int], dither: Dither, round: int, max_norm: float
) -> Float[Tensor, " kept"]:
    """What ``encode_floor`` says. Raises ValueError for another grid step than the expected, or a malformed stream."""
    lengths = np.array([count for count in counts if count], dtype=np.int64)
    if len(body) < STEP.size + len(lengths):
        raise ValueError("payload values: cut short")
    (width,) = STEP.unpack_from(body)
    if not abs(width / dither.width - 1) <= STEP_TOLERANCE:
        raise ValueError(f"payload grid step: expected {dither.width:g}, got {width:g}")
    codes = np.frombuffer(body, np.uint8, len(lengths), STEP.size)
    levels = dither.draw(round, int(lengths.sum()))
    largest = symbol_bound(max_norm, width)
    stream = body[STEP.size + len(lengths) :]
    symbols = gaussian_code.decode(stream, np.repeat(codes, lengths), classes(levels), largest=largest)
    return dequantize(symbols, width, levels)


def symbol_bound(max_norm: float, width: float) -> int:
    """Largest symbol of a value no larger than ``max_norm``."""
    bound = max_norm / width + 1
    return math.ceil(bound) if bound < LARGEST_SYMBOL else LARGEST_SYMBOL


def classes(levels: np.ndarray) -> np.ndarray:
    """Dither class of each level, uint8: its first bits."""
    return (levels // (LEVELS // CLASSES)).astype(np.uint8)


def encode_int8(values: Float[Tensor, " kept"], counts: Sequence[int], dither: Dither, round: int) -> bytes:
    """Grid steps (float32, one a block), then one signed byte a value."""
    levels = dither.draw(round, sum(counts))
    largest = [float(part.abs().max()) if len(part) else 0.0 for part in values.split(list(counts))]
    widths = np.array(largest).astype(np.float32) / np.float32(INT8_SPAN)
    if not np.isfinite(widths).all():
        raise ValueError("payload values: not finite")
    each = np.repeat(widths, counts).astype(np.float64)
    symbols = quantize(values.numpy(), np.where(each > 0, each, 1.0), levels)
    body: bytes = widths.astype("<f4").tobytes() + np.clip(symbols, -127, 127).astype(np.int8).tobytes()
    return body


def decode_int8(
    body: bytes, counts: Sequence[int], dither: Dither, round: int, max_norm: float
) -> Float[Tensor, " kept"]:
    """What ``encode_int8`` says. Raises ValueError for another length, or a grid step that is no step."""
    if len(body) != 4 * len(counts) + sum(counts):
        raise ValueError(f"payload length: expected {4 * len(counts) + sum(counts)} bytes of values, got {len(body)}")
    with np.errstate(invalid="ignore"):  # a signalling NaN warns when it is widened
        widths = np.frombuffer(body, "<f4", len(counts)).astype(np.float64)
    if not (np.isfinite(widths).all() and (widths >= 0).all() and (widths * 126 <= max_norm).all()):
        raise ValueError("payload grid step: not one of values within the norm bound")
    symbols = np.frombuffer(body, np.int8, sum(counts), 4 * len(counts)).astype(np.int64)
    if (symbols == -128).any():
        raise ValueError("payload values: a symbol beyond 127")
    return dequantize(symbols, np.repeat(widths, counts), dither.draw(round, sum(counts)))
