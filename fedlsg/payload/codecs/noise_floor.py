"""About three bits a value: integers on a dithered grid as coarse as the noise allows,
entropy-coded.

Symbols: a = ``noise_floor_step``     s deviation of the noise on every value     D = a s grid step
The error has variance a^2 / 12 in units of the noise's: 2 % at a = 1/2.

The bytes are the grid step (float32), a scale code of each block that has values, and the coded
integers (see ``entropy_coder``).
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from fedlsg.config import Setting
from fedlsg.method import Method
from fedlsg.payload.codecs import Codec, entropy_coder
from fedlsg.payload.codecs.dither import LEVELS, Dither, dequantize, quantize, require_dither

STEP = struct.Struct("<f")
"""The grid step."""
STEP_TOLERANCE = 1e-6
"""Relative difference of grid steps that rounding on two machines explains."""
LARGEST_SYMBOL = 2**53
"""Magnitude from which integers have gaps in float64."""


@dataclass(frozen=True, kw_only=True)
class NoiseFloor(Codec):
    """The codec noise-floor: the noise decides the grid step, so values without noise are refused.

    noise_floor_step: a.
    """

    noise_floor_step: Annotated[
        float,
        Setting(
            "Grid step of codec noise-floor.", unit="noise deviations", above=0, below=math.inf
        ),
    ] = 0.5

    @property
    def added_variance(self) -> float:
        """Variance of the error in units of the noise's: a^2 / 12."""
        return self.noise_floor_step**2 / 12

    def summary(self) -> dict[str, Any]:
        """The step, and the variance that its error adds."""
        return {"step": self.noise_floor_step, "added_variance": self.added_variance}

    def width(self, dither: Dither | None) -> float:
        """Grid step D. Raises ValueError if the values have no noise."""
        noise_std = require_dither(dither, self.name).noise_std
        with np.errstate(over="ignore"):  # the deviation may come from a message
            width = float(np.float32(self.noise_floor_step * noise_std))
        if not 0 < width < math.inf:
            raise ValueError(
                f"codec {self.name!r} takes its grid step from the noise, and {noise_std=} x "
                f"{self.noise_floor_step=} gives none: choose a codec that needs no noise"
            )
        return width

    def check(self, method: Method) -> None:
        """Raise ValueError unless every value has the mechanism's noise."""
        if not method.mechanism.adds_noise:
            raise ValueError(
                f"codec {self.name!r} takes its grid from the noise, and mechanism "
                f"{method.mechanism.kind!r} adds none"
            )
        if not method.carrier.adds_up:
            raise ValueError(
                f"codec {self.name!r} needs values that all carry the mechanism's noise, and "
                f"{method.name!r} sends factors of the noisy update"
            )

    def rounding_bound(self, dither: Dither | None, count: int, max_norm: float) -> float:
        """Half a grid step a value: D / 2 sqrt(count)."""
        return self.width(dither) / 2 * math.sqrt(count) if dither is not None else 0.0

    def encode(
        self,
        values: Float[Tensor, " kept"],
        counts: Sequence[int],
        dither: Dither | None,
        round: int,
    ) -> bytes:
        """Encode as the header of this file says. Raises ValueError for values above 2^53 steps."""
        dither_draws = require_dither(dither, self.name).draw(round, sum(counts))
        width = self.width(dither)
        grid = quantize(values.numpy(), width, dither_draws)
        if len(grid) and not np.abs(grid).max() < LARGEST_SYMBOL:
            raise ValueError(
                f"values of more than 2^53 grid steps of {width:g}: choose a codec of floats"
            )
        parts = [part for part in values.double().split(list(counts)) if len(part)]
        codes = np.array(
            [entropy_coder.scale_code(float((part / width).square().mean())) for part in parts],
            np.uint8,
        )
        codes_of_values = np.repeat(codes, [len(part) for part in parts])
        symbols = entropy_coder.encode(
            grid.astype(np.int64), codes_of_values, dither_classes(dither_draws)
        )
        return STEP.pack(width) + codes.tobytes() + symbols

    def decode(
        self,
        body: bytes | memoryview,
        counts: Sequence[int],
        dither: Dither | None,
        round: int,
        *,
        max_norm: float,
    ) -> Float[Tensor, " kept"]:
        """Decode; raises ValueError for another grid step than the expected one, or a malformed
        stream.
        """
        body = bytes(body)
        lengths = np.array([count for count in counts if count], dtype=np.int64)
        if len(body) < STEP.size + len(lengths):
            raise ValueError("payload values: cut short")
        (width,) = STEP.unpack_from(body)
        expected = self.width(dither)
        if not abs(width / expected - 1) <= STEP_TOLERANCE:
            raise ValueError(f"payload grid step: expected {expected:g}, got {width:g}")
        codes = np.repeat(np.frombuffer(body, np.uint8, len(lengths), STEP.size), lengths)
        dither_draws = require_dither(dither, self.name).draw(round, int(lengths.sum()))
        stream = body[STEP.size + len(lengths) :]
        symbols = entropy_coder.decode(
            stream, codes, dither_classes(dither_draws), largest=symbol_bound(max_norm, width)
        )
        return dequantize(symbols, width, dither_draws)


def symbol_bound(max_norm: float, width: float) -> int:
    """Largest symbol of a value no larger than ``max_norm``."""
    bound = max_norm / width + 1
    return math.ceil(bound) if bound < LARGEST_SYMBOL else LARGEST_SYMBOL


def dither_classes(dither_draws: np.ndarray) -> np.ndarray:
    """Dither class of each draw, uint8: its first bits."""
    return (dither_draws // (LEVELS // entropy_coder.CLASSES)).astype(np.uint8)


CODEC = NoiseFloor(name="noise-floor", wire_id=4, grid_from_noise=True)
