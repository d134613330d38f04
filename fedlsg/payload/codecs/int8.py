"""One byte a value: integers on a dithered grid whose step is the largest magnitude of the block /
126.5.

The bytes are the grid steps (float32, one a block), then one signed byte a value.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from torch import Tensor

from fedlsg.payload.codecs import Codec, check_length
from fedlsg.payload.codecs.dither import Dither, dequantize, quantize, require_dither

SPAN = 126.5
"""Largest magnitude of a block in grid steps: with the dither of 1/2 it rounds to 127 at most."""


class Int8(Codec):
    """The codec int8: the error of a value is uniform within half a grid step of its block."""

    def encode(
        self,
        values: Float[Tensor, " kept"],
        counts: Sequence[int],
        dither: Dither | None,
        round: int,
    ) -> bytes:
        """Encode as the header of this file says.

        Symbols are clipped to -127, ..., 127: only the rounding of a step can exceed that.
        """
        dither_draws = require_dither(dither, self.name).draw(round, sum(counts))
        blocks = values.split(list(counts))
        largest = [float(block.abs().max()) if len(block) else 0.0 for block in blocks]
        widths = np.array(largest).astype(np.float32) / np.float32(SPAN)
        if not np.isfinite(widths).all():
            raise ValueError("payload values: not finite")
        width = np.repeat(widths, counts).astype(np.float64)
        # in a block of zeros any step gives symbols 0, or -1 and 1 that decode to 0
        symbols = quantize(values.numpy(), np.where(width > 0, width, 1.0), dither_draws)
        symbols = np.clip(symbols, -127, 127).astype(np.int8)
        body: bytes = widths.astype("<f4").tobytes() + symbols.tobytes()
        return body

    def decode(
        self,
        body: bytes | memoryview,
        counts: Sequence[int],
        dither: Dither | None,
        round: int,
        *,
        max_norm: float,
    ) -> Float[Tensor, " kept"]:
        """Decode; raises ValueError for another length, a grid step that is negative or too large,
        or the symbol -128.
        """
        check_length(body, 4 * len(counts) + sum(counts))
        with np.errstate(invalid="ignore"):  # converting a signalling NaN to float64 warns
            widths = np.frombuffer(body, "<f4", len(counts)).astype(np.float64)
        if not (
            np.isfinite(widths).all() and (widths >= 0).all() and (widths * 126 <= max_norm).all()
        ):
            raise ValueError("payload grid step: not one of values within the norm bound")
        symbols = np.frombuffer(body, np.int8, sum(counts), 4 * len(counts)).astype(np.int64)
        if (symbols == -128).any():
            raise ValueError("payload values: a symbol beyond 127")
        dither_draws = require_dither(dither, self.name).draw(round, sum(counts))
        return dequantize(symbols, np.repeat(widths, counts), dither_draws)

    def rounding_bound(self, dither: Dither | None, count: int, max_norm: float) -> float:
        """2 % of ``max_norm``."""
        return 0.02 * max_norm


CODEC = Int8(name="int8", wire_id=5)
