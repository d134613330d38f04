"""A public dither: values become integers on a grid, with an error that does not depend on them.

Symbols: x a value, D grid step, u dither, uniform in [-1/2, 1/2) and public, q integer sent.
    q = floor(x / D + u + 1/2)
The receiver takes (q - u) D: x plus an error uniform in (-D/2, D/2]. The error does not depend on x
(Roberts 1962; Schuchman 1964): it has zero mean whatever x is and variance D^2 / 12. The dither has
2^24 levels: "uniform" holds up to 2^-25 of a step.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.randomness import public_generator

LEVELS = 2**24
"""Levels of the dither."""


@dataclass(frozen=True, kw_only=True)
class Dither:
    """The public dither of one client's values.

    seed: the public seed.
    client: the client's number.
    noise_std: deviation of the noise on every value as it is sent, over all local steps (see
        ``accumulated_noise``).
    """

    seed: int
    client: int
    noise_std: float = 0.0

    def draw(self, round: int, count: int) -> np.ndarray:
        """Draws d of the dither u = (d + 1/2) / 2^24 - 1/2, int64: one a value, new in every
        round.
        """
        generator = public_generator(self.seed, "dither", round, self.client)
        return torch.randint(LEVELS, (count,), generator=generator, dtype=torch.int64).numpy()


def require_dither(dither: Dither | None, codec: str) -> Dither:
    """The dither of a codec that needs one. Raises ValueError if there is none."""
    if dither is None:
        raise ValueError(f"codec {codec!r} needs the public dither of the client")
    return dither


def quantize(
    values: np.ndarray, grid_step: np.ndarray | float, dither_draws: np.ndarray
) -> np.ndarray:
    """q = floor(x / D + u + 1/2), whole numbers in float64, from the draws of ``Dither.draw``."""
    return np.floor(values.astype(np.float64) / grid_step + (dither_draws + 0.5) / LEVELS)


def dequantize(
    symbols: np.ndarray, grid_step: np.ndarray | float, dither_draws: np.ndarray
) -> Float[Tensor, " kept"]:
    """(q - u) D in float64, rounded once to float32.

    IEEE operations alone: the same bits on every machine.
    """
    with np.errstate(over="ignore"):  # the receiver refuses infinite values
        return torch.from_numpy(
            ((symbols + 0.5 - (dither_draws + 0.5) / LEVELS) * grid_step).astype(np.float32)
        )
