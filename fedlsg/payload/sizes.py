"""How many bytes of a payload are values, apart from header, indices and checksum.

Values are what a codec makes of the kept numbers: 4 bytes each for float32, 2 for float16 and bfloat16, one each and a
step a block for int8; for noise-floor the grid step, a scale a block and the coded stream; for sign a scale a block and
a bit each.
"""

import struct

from fedlsg.payload.indices import DIGEST_BYTES
from fedlsg.payload.message import CHECKSUM_BYTES, CHOSEN, COMPACT, COMPACT_VERSION, DERIVED, EXPLICIT, HEADER

LENGTH = struct.Struct("<I")


def value_bytes(message: bytes) -> int:
    """Bytes of the values in a payload that ``unpack`` has accepted.

    Never raises: any other message gives some number from 0 to its length, one too short to be a payload 0.
    """
    if len(message) < COMPACT.size + CHECKSUM_BYTES:
        return 0
    start = COMPACT.size if message[4] == COMPACT_VERSION else HEADER.size
    if start == COMPACT.size and message[6] in (EXPLICIT, CHOSEN):
        start += LENGTH.size + LENGTH.unpack_from(message, start)[0]  # there are 16 bytes of checksum to read it from
    elif start == COMPACT.size and message[6] != DERIVED:
        start += DIGEST_BYTES
    return max(0, len(message) - start - CHECKSUM_BYTES)
