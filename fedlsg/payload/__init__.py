"""One flat (index, value) message: indices, values in each codec, checksum."""

from fedlsg.payload.indices import encode_indices
from fedlsg.payload.message import COMPACT, Expected, IndexMode, check_codec, pack, unpack
from fedlsg.payload.quantization import DEFAULT_STEP, Dither, added_variance, quantize
from fedlsg.payload.sizes import value_bytes
from fedlsg.payload.values import Codec, PayloadError

__all__ = [
    "COMPACT",
    "DEFAULT_STEP",
    "Codec",
    "Dither",
    "Expected",
    "IndexMode",
    "PayloadError",
    "added_variance",
    "check_codec",
    "encode_indices",
    "pack",
    "quantize",
    "unpack",
    "value_bytes",
]
