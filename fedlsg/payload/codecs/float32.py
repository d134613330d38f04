"""Four bytes a value: exact."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.payload.codecs import Codec, check_length
from fedlsg.payload.codecs.dither import Dither


@dataclass(frozen=True, kw_only=True)
class FloatCodec(Codec):
    """The codecs of floats: each value as one of ``dtype``, little-endian, exact or rounded to
    nearest.
    """

    dtype: torch.dtype

    def encode(
        self,
        values: Float[Tensor, " kept"],
        counts: Sequence[int],
        dither: Dither | None,
        round: int,
    ) -> memoryview:
        """The memory of the floats: that of ``values`` itself if the type is the same."""
        encoded = values.to(self.dtype).contiguous()
        if not self.exact and not bool(encoded.isfinite().all()):
            largest = torch.finfo(self.dtype).max
            raise ValueError(
                f"values are not finite as {self.name} (largest {largest:g}): take a wider codec"
            )
        memory: memoryview = encoded.view(torch.uint8).numpy().data
        return memory

    def decode(
        self,
        body: bytes | memoryview,
        counts: Sequence[int],
        dither: Dither | None,
        round: int,
        *,
        max_norm: float,
    ) -> Float[Tensor, " kept"]:
        """Decode; raises ValueError for another length."""
        check_length(body, sum(counts) * self.dtype.itemsize)
        if not len(body):  # frombuffer takes no empty memory
            return torch.zeros(0)
        return torch.frombuffer(bytearray(body), dtype=self.dtype).float()


CODEC = FloatCodec(name="float32", wire_id=1, bytes_each=4, exact=True, dtype=torch.float32)
