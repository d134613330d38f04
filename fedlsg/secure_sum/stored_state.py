"""A client's stored state: magic, version, client, terms, parts with their lengths, checksum."""

import hashlib
import struct
from collections.abc import Sequence

from fedlsg.secure_sum.terms import SecureSumError, Terms

STATE = struct.Struct("<4sBI32s")
STATE_MAGIC, STATE_VERSION = b"FLSC", 2
_LENGTH = struct.Struct("<Q")


def write_state(terms: Terms, client: int, parts: Sequence[bytes | None]) -> bytes:
    """The bytes of a stored state with these parts; None is written as an empty one."""
    body = b"".join(_LENGTH.pack(len(part or b"")) + (part or b"") for part in parts)
    state = STATE.pack(STATE_MAGIC, STATE_VERSION, client, terms.digest) + body
    return state + hashlib.sha256(state).digest()


def read_state(terms: Terms, client: int, stored: bytes) -> list[bytes]:
    """The parts of a stored state.

    SecureSumError for bytes that ``write_state`` did not make for these terms and this client.
    """
    state, checksum = stored[:-32], stored[-32:]
    header = STATE.pack(STATE_MAGIC, STATE_VERSION, client, terms.digest)
    if state[: STATE.size] != header or hashlib.sha256(state).digest() != checksum:
        raise SecureSumError("stored state: damaged, or of other terms or of another client")
    parts, start = [], STATE.size
    while start < len(state):
        (length,) = _LENGTH.unpack_from(state, start)
        parts.append(state[start + _LENGTH.size : start + _LENGTH.size + length])
        start += _LENGTH.size + length
    return parts
