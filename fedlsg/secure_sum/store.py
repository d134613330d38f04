"""The state of a client as bytes, for its own store: magic, terms, client, parts with their lengths, checksum."""

import hashlib
import struct
from collections.abc import Sequence

from fedlsg.secure_sum.outcome import SecureSumError
from fedlsg.secure_sum.terms import Terms

HEADER = struct.Struct("<4sBI32s")
MAGIC, VERSION = b"FLSC", 2
_LENGTH = struct.Struct("<Q")


def write(terms: Terms, client: int, parts: Sequence[bytes | None]) -> bytes:
    """The parts; None is written as an empty one."""
    body = b"".join(_LENGTH.pack(len(part or b"")) + (part or b"") for part in parts)
    state = HEADER.pack(MAGIC, VERSION, client, terms.digest) + body
    return state + hashlib.sha256(state).digest()


def read(terms: Terms, client: int, stored: bytes) -> list[bytes]:
    """The parts; SecureSumError for bytes that ``write`` did not make for these terms and this client."""
    state, checksum = stored[:-32], stored[-32:]
    due = HEADER.pack(MAGIC, VERSION, client, terms.digest)
    if state[: HEADER.size] != due or hashlib.sha256(state).digest() != checksum:
        raise SecureSumError("stored state: damaged, or of other terms or of another client")
    parts, start = [], HEADER.size
    while start < len(state):
        (length,) = _LENGTH.unpack_from(state, start)
        parts.append(state[start + _LENGTH.size : start + _LENGTH.size + length])
        start += _LENGTH.size + length
    return parts
