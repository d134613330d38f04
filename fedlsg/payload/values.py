"""The values of a message as bytes, in each codec; header, indices and checksum are payload.py's.

float32, float16, bfloat16   a value each, little-endian: exact, or rounded to the nearest
noise-floor, int8            integers on a dithered grid (quantize.py)
sign                         a bit each, and the mean magnitude of each block (sign_code.py)
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.payload.quantization import Dither, decode_floor, decode_int8, encode_floor, encode_int8
from fedlsg.payload.sign import decode_sign, encode_sign

Codec = Literal["float32", "float16", "bfloat16", "noise-floor", "int8", "sign"]

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}

AT_ONCE = 2**18
"""Values whose squares are added up in float32 at once."""


class PayloadError(ValueError):
    """A payload that is not what the receiver expects; the text says in which field."""


def encode_values(
    values: Float[Tensor, " kept"], counts: Sequence[int], codec: Codec, round: int, dither: Dither | None
) -> bytes | memoryview:
    """Bytes of float32 values, ``counts`` of them in each block. Raises PayloadError for values out of range.

    Of a float codec they may be the memory of ``values`` itself: copy them before those change.
    """
    if codec in DTYPES:
        encoded = values.to(DTYPES[codec]).contiguous()
        if not (math.isfinite(norm_of(encoded)) or bool(encoded.isfinite().all())):
            raise PayloadError(f"values are not finite as {codec}; float32 and bfloat16 have the widest range")
        return encoded.view(torch.uint8).numpy().data
    if not (math.isfinite(norm_of(values)) or bool(values.isfinite().all())):
        raise PayloadError(f"values are not finite as {codec}")
    encoder = encode_int8 if codec == "int8" else encode_floor
    try:
        if codec == "sign":
            return encode_sign(values, counts)
        return encoder(values, counts, _known(dither, codec), round)
    except ValueError as error:
        raise PayloadError(str(error)) from None


def decode_values(
    body: bytes | memoryview, counts: Sequence[int], codec: Codec, round: int, dither: Dither | None, *, max_norm: float
) -> Float[Tensor, " kept"]:
    """What ``encode_values`` says, to within rounding. Raises PayloadError for bytes that no encoder makes."""
    if codec in DTYPES:
        length = sum(counts) * DTYPES[codec].itemsize
        if len(body) != length:
            raise PayloadError(f"payload length: expected {length} bytes of values, got {len(body)}")
        return torch.frombuffer(bytearray(body), dtype=DTYPES[codec]).float() if length else torch.zeros(0)
    body = bytes(body)
    decoder = decode_int8 if codec == "int8" else decode_floor
    try:
        if codec == "sign":
            return decode_sign(body, counts)
        return decoder(body, counts, _known(dither, codec), round, max_norm)
    except ValueError as error:
        raise PayloadError(str(error)) from None


def norm_of(values: Float[Tensor, " kept"]) -> float:
    """L2 norm, to float32's precision at any length; not finite where a value is not, or where it overflows float32.

    In pieces: one float32 sum over very many values would stop growing, and a float64 one takes ten times as long.
    """
    if len(values) <= AT_ONCE:
        return float(torch.linalg.vector_norm(values))
    return float(torch.stack([torch.linalg.vector_norm(piece) for piece in values.split(AT_ONCE)]).double().norm())


def _known(dither: Dither | None, codec: str) -> Dither:
    if dither is None:
        raise ValueError(f"codec {codec!r} needs the public dither of the client")
    return dither
