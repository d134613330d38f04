"""The nine messages of an attempt as bytes, parsed strictly.

    up    keys       share key 32, mask key 32, commitment to the self-mask seed 32
    down  roster     clients that announced keys; of each other one: share key 32, mask key 32
    up    shares     for each neighbour in the roster: two sealed shares, 80
    down  delivery   clients that sent shares; of each neighbour among them: two sealed shares, 80
    up    masked     ``length`` integers of ``bits`` bits, packed: value i begins at bit i b, lowest
          bit first
    down  survivors  clients that sent masked values
    up    tags       for each other survivor: a tag on the digest of the roster and these two sets,
          16
    down  request    clients that sent tags; of each other one: its tag for the receiver, 16
    up    answer     that digest, 32; of each survivor in the closed neighbourhood a share of its
                     self-mask seed, 32; of each neighbour that sent shares and did not survive a
                     share of its mask key, 32

Numbers are sizes in bytes. Every message has a magic (4), the version (1), the kind (1), the client
that sends or receives it (4), the digest of the terms (16), the body, and the SHA-256 of all that
(16). A set of clients is one bit for each client of the terms. A table is a count (2), then for
each entry a client (4) and a fixed number of bytes, clients ascending. The checksum finds damage;
it is no signature.
"""

import hashlib
import struct
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt

from fedlsg.secure_sum.keys import commitment_to, private_key, public_bytes, word
from fedlsg.secure_sum.terms import SecureSumError, Terms

PACKED_AT_ONCE = 2**13
"""Values that are packed at once: they fit in the processor's cache, and a multiple of 8 fills
whole bytes.
"""


def packed_bytes(length: int, bits: int) -> int:
    """Bytes of ``length`` integers of ``bits`` bits."""
    return (length * bits + 7) // 8


def pack_bits(words: UInt[np.ndarray, " length"], bits: int) -> bytes:
    """Words below 2^bits as ``packed_bytes`` bytes."""
    if bits == 8 * words.itemsize:
        return words.tobytes()
    packed = bytearray()
    for start in range(0, len(words), PACKED_AT_ONCE):
        part = words[start : start + PACKED_AT_ONCE]
        spread = np.unpackbits(part.view(np.uint8), bitorder="little").reshape(len(part), -1)
        packed += np.packbits(spread[:, :bits], bitorder="little").data
    return bytes(packed)


def unpack_bits(packed: bytes | memoryview, length: int, bits: int) -> UInt[np.ndarray, " length"]:
    """The words of ``pack_bits``; a view of ``packed`` if they have the full width.

    SecureSumError for another number of bytes, or bits after the last value that are not 0.
    """
    if len(packed) != packed_bytes(length, bits):
        raise SecureSumError(
            f"masked values: expected {packed_bytes(length, bits)} bytes, got {len(packed)}"
        )
    if length * bits % 8 and packed[-1] >> length * bits % 8:
        raise SecureSumError("masked values: expected zero bits behind the last value")
    kind = word(bits)
    if bits == 8 * kind.itemsize:
        return np.frombuffer(packed, kind)
    raw, words = np.frombuffer(packed, np.uint8), np.empty(length, kind)
    for start in range(0, length, PACKED_AT_ONCE):
        part = words[start : start + PACKED_AT_ONCE]
        spread = np.zeros((len(part), 8 * kind.itemsize), np.uint8)
        window = raw[start * bits // 8 :]
        spread[:, :bits] = np.unpackbits(window, count=len(part) * bits, bitorder="little").reshape(
            -1, bits
        )
        part[:] = np.packbits(spread, bitorder="little").view(kind)
    return words


class Announced(NamedTuple):
    """The announcement of a client in stage 0, 32 bytes each.

    share_key, mask_key: its public keys.
    commitment: to its self-mask seed.
    """

    share_key: bytes
    mask_key: bytes
    commitment: bytes

    @property
    def keys(self) -> bytes:
        """Both public keys."""
        return self.share_key + self.mask_key

    def is_mask_key(self, secret: bytes) -> bool:
        """Whether a secret is the mask key of this announcement."""
        return public_bytes(private_key(secret)) == self.mask_key

    def is_self_mask_seed(self, secret: bytes, terms: bytes, owner: int) -> bool:
        """Whether a secret is the ``owner``'s self-mask seed; ``terms``: their digest."""
        return commitment_to(secret, terms, owner) == self.commitment


MAGIC, VERSION = b"FLSS", 2
HEADER = struct.Struct("<4sBBI16s")
CHECKSUM_BYTES = 16
OVERHEAD = HEADER.size + CHECKSUM_BYTES
KEYS, ROSTER, SHARES, DELIVERY, MASKED, SURVIVORS, TAGS, REQUEST, ANSWER = range(1, 10)
NAMES = {
    KEYS: "keys",
    ROSTER: "roster",
    SHARES: "shares",
    DELIVERY: "delivery",
    MASKED: "masked values",
    SURVIVORS: "survivors",
    TAGS: "tags",
    REQUEST: "request",
    ANSWER: "answer",
}
_COUNT, _CLIENT = struct.Struct("<H"), struct.Struct("<I")


def write(kind: int, client: int, terms: Terms, body: bytes) -> bytes:
    """A whole message."""
    message = HEADER.pack(MAGIC, VERSION, kind, client, terms.digest[:16]) + body
    return message + hashlib.sha256(message).digest()[:CHECKSUM_BYTES]


def read(message: bytes, kind: int, client: int, terms: Terms, *, least: int, most: int) -> bytes:
    """The body, of ``least`` to ``most`` bytes, of a message of this kind, client and terms.

    Guarantee: ``message`` may be any bytes; its length is compared before anything is copied or
    hashed.
    Raises SecureSumError naming what differs: type, length, magic, version, kind, client, terms,
    checksum.
    """
    name = NAMES[kind]
    if not isinstance(message, bytes):
        raise SecureSumError(f"{name}: expected bytes, got {type(message).__name__}")
    if not least + OVERHEAD <= len(message) <= most + OVERHEAD:
        raise SecureSumError(
            f"{name}: expected {least + OVERHEAD} to {most + OVERHEAD} bytes, got {len(message)}"
        )
    wanted = (MAGIC, VERSION, kind, client, terms.digest[:16])
    for field, expected, got in zip(
        ("magic", "version", "kind", "client", "digest of the terms"),
        wanted,
        HEADER.unpack_from(message),
        strict=True,
    ):
        if expected != got:
            raise SecureSumError(f"{name}: expected {field} {_text(expected)}, got {_text(got)}")
    view = memoryview(message)
    if (
        hashlib.sha256(view[:-CHECKSUM_BYTES]).digest()[:CHECKSUM_BYTES]
        != message[-CHECKSUM_BYTES:]
    ):
        raise SecureSumError(f"{name}: the bytes were damaged, the checksum differs")
    return message[HEADER.size : -CHECKSUM_BYTES]


def set_bytes(terms: Terms) -> int:
    """Bytes of a set of clients."""
    return (len(terms.clients) + 7) // 8


def write_set(members: Collection[int], terms: Terms) -> bytes:
    """A set of clients, one bit for each client of the terms."""
    bits = sum(1 << place for place, client in enumerate(terms.clients) if client in members)
    return bits.to_bytes(set_bytes(terms), "little")


def read_set(bits: bytes, terms: Terms, *, of: str) -> frozenset[int]:
    """The members of a set.

    SecureSumError for bits of no client, and for fewer than ``min_survivors`` members. ``of``: the
    name of the set.
    """
    number = int.from_bytes(bits, "little")
    if number >> len(terms.clients):
        raise SecureSumError(
            f"{of}: expected {len(terms.clients)} clients, got bits of unknown ones"
        )
    members = frozenset(client for place, client in enumerate(terms.clients) if number >> place & 1)
    if len(members) < terms.min_survivors:
        raise SecureSumError(
            f"{of}: expected {terms.min_survivors} clients at least, got {len(members)}"
        )
    return members


def read_with_set(
    message: bytes, kind: int, client: int, terms: Terms, width: int
) -> tuple[frozenset[int], bytes]:
    """The set at the start of a body (see ``read_set``), and the rest: a table of entries of
    ``width`` bytes.
    """
    size, others = set_bytes(terms), len(terms.clients) - 1
    least, most = size + table_bytes(0, width), size + table_bytes(others, width)
    body = read(message, kind, client, terms, least=least, most=most)
    return read_set(body[:size], terms, of=NAMES[kind]), body[size:]


def table_bytes(entries: int, width: int) -> int:
    """Bytes of a table of entries of ``width`` bytes each."""
    return _COUNT.size + entries * (_CLIENT.size + width)


def write_table(entries: Mapping[int, bytes]) -> bytes:
    """A table, clients ascending."""
    rows = [_CLIENT.pack(client) + entries[client] for client in sorted(entries)]
    return _COUNT.pack(len(rows)) + b"".join(rows)


def read_table(body: bytes, width: int, expected: Collection[int], *, of: str) -> dict[int, bytes]:
    """The entries of a table that must have exactly the clients ``expected``; ``of``: its name.

    Raises SecureSumError for another length, a repeated, unordered, unexpected or missing client.
    """
    if len(body) != table_bytes(len(expected), width) or _COUNT.unpack_from(body)[0] != len(
        expected
    ):
        raise SecureSumError(
            f"{of}: expected {len(expected)} entries in {table_bytes(len(expected), width)} bytes, "
            f"got {len(body)} bytes"
        )
    entries: dict[int, bytes] = {}
    last = -1
    for start in range(_COUNT.size, len(body), _CLIENT.size + width):
        (client,) = _CLIENT.unpack_from(body, start)
        if client <= last:
            raise SecureSumError(
                f"{of}: expected clients in ascending order without repeats, got {client} behind "
                f"{last}"
            )
        if client not in expected:
            raise SecureSumError(
                f"{of}: client {client} is not expected here: no neighbour, or not in this stage"
            )
        entries[client] = body[start + _CLIENT.size : start + _CLIENT.size + width]
        last = client
    return entries


def roster_digest(keys: Mapping[int, bytes], terms: Terms) -> bytes:
    """SHA-256 of the terms, and of the clients that announced keys with both keys of each.

    ``keys``: share key and mask key, 64 bytes, of every client that announced; also the reader's
    own.
    """
    return hashlib.sha256(b"fedlsg secure sum roster\0" + terms.digest + write_table(keys)).digest()


def sets_digest(
    roster: bytes, sharers: Collection[int], survivors: Collection[int], terms: Terms
) -> bytes:
    """SHA-256 of the terms, a roster (its digest), the senders of shares, and the survivors."""
    sets = b"".join(write_set(members, terms) for members in (sharers, survivors))
    return hashlib.sha256(b"fedlsg secure sum sets\0" + terms.digest + roster + sets).digest()


def _text(value: object) -> str:
    """A header field for a message."""
    return value.hex() if isinstance(value, bytes) else str(value)
