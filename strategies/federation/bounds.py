"""What one node may send: the size of everything in a reply, compared before it is copied, parsed or kept.

An honest node keeps every bound. One that breaks a bound is left out by name, with the reason in the log, and the round
goes on without it. Sizes of arrays are not here: a payload is compared with what its round expects (``unpack``).
"""

import re
from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, Message

from fedlsg.privacy.ledger_copy import LARGEST_BYTES

CONTENT_BYTES = LARGEST_BYTES + 2**16
"""Of names, numbers, texts and ledger lines in a reply; without the values of arrays."""
RECORDS, ITEMS = 32, 64
"""Records of a reply, and arrays or values of a record."""
EXAMPLES = 10**9
"""Declared by one client."""
REASON_LENGTH = 300


class BoundError(ValueError):
    """A reply that no honest node sends."""


def reply_bytes(parameters: int) -> int:
    """Of any honest reply in a run with this many dense parameters: 20 a parameter, as payloads have 16 at most."""
    return 2 * CONTENT_BYTES + 20 * parameters


def check_reply(reply: Message) -> None:
    """Raise BoundError, which quotes nothing of it, for a reply with too many or too large parts next to its arrays."""
    if reply.has_error() or not reply.has_content():
        return  # of an error's text the ends are read
    size = 0
    for name, record in reply.content.items():
        size += len(name)
        if len(reply.content) > RECORDS or len(record) > ITEMS:
            raise BoundError(f"expected {RECORDS} records of {ITEMS} items at most in a reply, got more")
        size += sum(len(key) + _size(value) for key, value in _items(record).items())
    if size > CONTENT_BYTES:
        raise BoundError(f"expected {CONTENT_BYTES:,} bytes at most in a reply next to its arrays, got {size:,}")


def _items(record: Any) -> Mapping[str, Any]:
    if not isinstance(record, ArrayRecord):
        return dict(record)
    return {key: [array.dtype, array.stype, *([0] * len(array.shape))] for key, array in record.items()}


def _size(value: Any) -> int:
    if isinstance(value, list):
        return sum(_size(one) for one in value)
    return len(value) if isinstance(value, str | bytes) else 8


def shortened(text: str | None) -> str:
    """A text of a node as one printable line of bounded length; nothing of it is copied that is not in the line.

    A long text loses its middle: texts of Ray begin with the kind of error and end with its message.
    """
    text = text or ""
    if len(text) > 8 * REASON_LENGTH:
        text = f"{text[: 4 * REASON_LENGTH]} ... {text[-4 * REASON_LENGTH :]}"
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())
    text = "".join(character if character.isprintable() else "?" for character in text)
    half = REASON_LENGTH // 2
    return text if len(text) <= REASON_LENGTH else f"{text[:half]} ... {text[-half:]}"


def reason_of(error: Exception) -> str:
    """Why a reply was rejected, as ``shortened``: its text may be the client's own."""
    return shortened(str(error) or type(error).__name__)
