"""Payloads: one flat (index, value) message of a client or server.

message   packs values, and unpacks them with all checks
layout    the bytes: header, indices, values, checksum
codecs    how values are written: one file for each codec
"""

from fedlsg.payload.codecs import (
    DEFAULT_CODEC,
    Codec,
    PayloadError,
    all_codecs,
    check_fits,
    codec_settings,
    find_codec,
    keeps_memory,
)
from fedlsg.payload.codecs.dither import LEVELS, Dither, quantize
from fedlsg.payload.layout import COMPACT, IndexMode, chosen_positions, encode_indices, value_bytes
from fedlsg.payload.message import Expected, pack, unpack

__all__ = [
    "COMPACT",
    "DEFAULT_CODEC",
    "LEVELS",
    "Codec",
    "Dither",
    "Expected",
    "IndexMode",
    "PayloadError",
    "all_codecs",
    "check_fits",
    "chosen_positions",
    "codec_settings",
    "encode_indices",
    "find_codec",
    "keeps_memory",
    "pack",
    "quantize",
    "unpack",
    "value_bytes",
]
