"""One bit a value: its sign, and one scale a block, the mean magnitude (scaled sign; Karimireddy et
al. 2019, sec. 4).

The bytes are the scale (float32) of each block that has values, then a bit a value, the first in a
byte's highest bit.

Symbols: x the n values of a block      s = mean |x|, float32      received: s where x >= 0, else -s
The received block is never longer than x: s sqrt(n) <= |x|. It is biased. Let a coordinate be a
signal m plus Gaussian noise of deviation d, which is equal in the whole block. Its received mean is
s erf(m / (d sqrt 2)). For m << d, s = d sqrt(2 / pi) and this mean is (2 / pi) m: the signal
arrives at 0.64 of its size, and relative to it the variance is pi / 2 times that of the noise. A
signal well above the block's mean magnitude is clipped to it. Without noise the bias does not
vanish by averaging: error feedback then sends the error with later payloads.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.method import Method
from fedlsg.payload.codecs import Codec, check_length
from fedlsg.payload.codecs.dither import Dither


class Sign(Codec):
    """The codec sign. Received values have no magnitudes, so neither rankings nor factors can be
    sent.
    """

    def check(self, method: Method) -> None:
        """Raise ValueError for factors, and for values whose magnitudes are ranked."""
        if not method.carrier.adds_up:
            raise ValueError(
                f"codec {self.name!r} keeps no magnitudes, and {method.name!r} sends factors, "
                "whose product would be longer than the update"
            )
        if method.mask.ranking == "gradients" or method.prune.reads_data:
            raise ValueError(
                f"codec {self.name!r} keeps no magnitudes, and {method.name!r} ranks by them"
            )

    def encode(
        self,
        values: Float[Tensor, " kept"],
        counts: Sequence[int],
        dither: Dither | None,
        round: int,
    ) -> bytes:
        """Encode as the header of this file says; 0 counts as positive."""
        parts = [part for part in values.split(list(counts)) if len(part)]
        means = np.array([float(part.abs().mean(dtype=torch.float64)) for part in parts])
        body: bytes = means.astype("<f4").tobytes() + np.packbits(values.numpy() >= 0).tobytes()
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
        """Decode; raises ValueError for another length, a scale that is negative or not finite, or
        spare bits that are not 0.
        """
        total = sum(counts)
        lengths = [count for count in counts if count]
        check_length(body, 4 * len(lengths) + (total + 7) // 8)
        scales = np.frombuffer(body, "<f4", len(lengths))
        if not np.isfinite(scales).all() or np.signbit(scales).any():
            raise ValueError("payload scale: expected finite mean magnitudes")
        bits = np.unpackbits(np.frombuffer(body, np.uint8, offset=4 * len(lengths)))
        if bits[total:].any():
            raise ValueError("payload values: spare bits that are not 0")
        s = np.repeat(scales, lengths)
        return torch.from_numpy(np.where(bits[:total] == 1, s, -s).astype(np.float32))


CODEC = Sign(name="sign", wire_id=6, goes_down=False, known_noise=False, needs_feedback=True)
