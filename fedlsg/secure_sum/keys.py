"""Secrets of one client in one attempt: keys and tags that two clients agree on, shares of a
secret, and masks.

All secrets of an attempt derive from one root of 32 bytes: two X25519 private keys (one for
sharing, one for masks), the seed b_i of the self-mask, and the polynomials of the shares. So
whatever is computed twice is equal: no polynomial is drawn twice, and no key encrypts two texts.
Primitives: X25519 (RFC 7748), HKDF-SHA-256 (RFC 5869), ChaCha20 (RFC 8439), AES-256-GCM, all from
``cryptography``.
Shares: Shamir 1979, "How to Share a Secret", of 32 bytes over the integers modulo the prime p =
2^256 - 189. A share of the holder at point x is f(x) for a random polynomial f of degree h - 1 with
f(0) = secret. Not constant-time: Python's integers are not.
Masks: key streams as words modulo 2^b, added to vectors of integers (Bonawitz et al. 2017, sec. 4):
    y_i = x_i + PRG(b_i) + sum over neighbours j of sign(i, j) PRG(s_ij)   mod 2^b
Symbols: x_i input, b_i self-mask seed, s_ij = s_ji pair seed, y_i masked vector.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from math import prod
from typing import NoReturn

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from jaxtyping import Integer, UInt

from fedlsg.secure_sum.terms import SecureSumError

Words = UInt[np.ndarray, " length"]

PRIME = 2**256 - 189
SHARE_BYTES = 32


def split(secret: bytes, coefficients: Sequence[int], points: Iterable[int]) -> dict[int, bytes]:
    """One share, 32 bytes, for every point; h is one more than the number of ``coefficients``.

    Guarantee: if the coefficients are uniform modulo p and secret, any h - 1 shares are uniform and
    independent of the secret, and any h give it back.
    Raises ValueError for a secret that is not 32 bytes below p, and for points or coefficients out
    of range.
    """
    polynomial = [_number(secret), *coefficients]
    if not all(0 <= a < PRIME for a in polynomial) or len(secret) != SHARE_BYTES:
        raise ValueError("expected a secret of 32 bytes and coefficients, all below 2^256 - 189")
    shares = {}
    for x in points:
        if not 0 < x < PRIME:
            raise ValueError(f"expected points from 1 to p - 1, got {x}")
        y = 0
        for a in reversed(polynomial):
            y = (y * x + a) % PRIME
        shares[x] = y.to_bytes(SHARE_BYTES, "big")
    return shares


def combine(shares: Mapping[int, bytes], threshold: int, of: str = "secret") -> bytes:
    """The secret of the first ``threshold`` shares in the order of points; others are not used.

    ``of``: its name in errors. Nothing is verified: a wrong share gives another secret. Compare the
    result with the owner's announcement.
    Raises SecureSumError for fewer shares than the threshold, or a share that is no 32 bytes below
    p.
    """
    points = tuple(sorted(shares)[:threshold])
    if len(points) < threshold:
        raise SecureSumError(f"{of}: expected {threshold} shares at least, got {len(points)}")
    values = [_number(shares[x]) for x in points]
    if not all(
        y < PRIME and len(shares[x]) == SHARE_BYTES for x, y in zip(points, values, strict=True)
    ):
        raise SecureSumError("share: expected 32 bytes below 2^256 - 189")
    weights = _weights(points)
    return (sum(y * w for y, w in zip(values, weights, strict=True)) % PRIME).to_bytes(
        SHARE_BYTES, "big"
    )


@lru_cache(maxsize=256)  # by its arguments alone: never stale
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights at 0: prod z / (z - x) over all other points z, for each point x.

    Cached: in a dense graph the same holders give many secrets.
    """
    weights = []
    for x in points:
        others = [z for z in points if z != x]
        weights.append(prod(others) * pow(prod(z - x for z in others), -1, PRIME) % PRIME)
    return tuple(weights)


def _number(share: bytes) -> int:
    """A share as an integer."""
    return int.from_bytes(share, "big")


ROOT_BYTES = KEY_BYTES = 32
SEALED_BYTES = 2 * SHARE_BYTES + 16
"""Two shares and the tag of AES-GCM."""
TAG_BYTES = 16
"""A tag on the sets that a client got."""
_NONCE = bytes(12)
"""The nonce of AES-GCM: every key encrypts one text alone."""


def secret_root() -> bytes:
    """A root that nobody can repeat, from the operating system. One for each client and attempt."""
    return os.urandom(ROOT_BYTES)


def reproducible_root(seed: int, *labels: str | int) -> bytes:
    """A root that anyone can repeat from the seed. Test mode: nothing under it is private."""
    text = "\x1f".join(map(str, (seed, "reproducible secure sum", *labels)))
    return hashlib.sha256(text.encode()).digest()


class AttemptSecrets:
    """The secrets of a client in an attempt, derived from one root.

    ``terms``: the digest of the attempt's terms. The same root under other terms, or for another
    client, gives unrelated secrets. They refuse to be pickled, so that they cannot reach a
    checkpoint or a message.
    """

    def __init__(self, root: bytes, terms: bytes, client: int) -> None:
        if len(root) != ROOT_BYTES:
            raise ValueError(f"expected a root of {ROOT_BYTES} bytes, got {len(root)}")
        self._root, self._about, self.client = root, terms + _id(client), client
        self.share_key = private_key(self._secret(b"share key"))

    @cached_property
    def mask_secret(self) -> bytes:
        """The private key of the masks, 32 bytes: shared among the holders."""
        return self._secret(b"mask key")

    @cached_property
    def mask_key(self) -> X25519PrivateKey:
        """``mask_secret`` as a key object."""
        return private_key(self.mask_secret)

    @cached_property
    def self_seed(self) -> bytes:
        """The seed b_i of the self-mask, 32 bytes: shared among the holders."""
        return self._secret(b"self-mask seed")

    def coefficients(self, label: bytes, count: int) -> list[int]:
        """The random coefficients of one polynomial, uniform modulo p."""
        return self._draw(b"polynomial " + label, count)

    def _secret(self, label: bytes) -> bytes:
        """32 bytes for one purpose."""
        return self._draw(label, 1)[0].to_bytes(SHARE_BYTES, "big")

    def _draw(self, label: bytes, count: int) -> list[int]:
        """Uniform numbers below p: draws of 256 bits without those that are not below p."""
        key = _derive(self._root, b"attempt secret", self._about, label)
        stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
        numbers: list[int] = []
        while len(numbers) < count:
            number = int.from_bytes(stream.update(bytes(SHARE_BYTES)), "big")
            numbers += [number] * (number < PRIME)
        return numbers

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "secrets of a secure sum cannot be pickled: export them on purpose, for the client's "
            "own store"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(client={self.client})"


def private_key(secret: bytes) -> X25519PrivateKey:
    """The X25519 key of 32 bytes, which it clamps as RFC 7748 says."""
    return X25519PrivateKey.from_private_bytes(secret)


def public_bytes(key: X25519PrivateKey) -> bytes:
    """The 32 bytes of the public key."""
    return key.public_key().public_bytes_raw()


def commitment_to(seed: bytes, terms: bytes, client: int) -> bytes:
    """SHA-256 of a self-mask seed, 32 bytes, by which a wrong reconstruction is found.

    It shows nothing: a seed has 256 secret bits.
    """
    return hashlib.sha256(b"fedlsg self-mask seed\0" + terms + _id(client) + seed).digest()


def check_public(key: bytes) -> None:
    """Raise SecureSumError for a public key of small order: every exchange with it gives zero."""
    _exchange(X25519PrivateKey.generate(), key)


def pair_seed(
    own: X25519PrivateKey, own_client: int, other: bytes, other_client: int, terms: bytes
) -> bytes:
    """The seed s_ij of a pair mask, 32 bytes, equal for both clients.

    SecureSumError for a key of small order.
    """
    ends = sorted([(own_client, public_bytes(own)), (other_client, other)])
    return _derive(
        _exchange(own, other), b"pair mask", terms, *(_id(client) + key for client, key in ends)
    )


def seal_shares(
    own: X25519PrivateKey, sender: int, other: bytes, receiver: int, roster: bytes, shares: bytes
) -> bytes:
    """Encrypt two shares for one neighbour: 80 bytes.

    The key binds the roster (its digest), sender, receiver and both public keys, and encrypts this
    text alone: so the nonce is constant.
    """
    key = _derive(
        _exchange(own, other),
        b"shares",
        roster,
        _id(sender) + public_bytes(own),
        _id(receiver) + other,
    )
    return AESGCM(key).encrypt(_NONCE, shares, None)


def open_shares(
    own: X25519PrivateKey, receiver: int, other: bytes, sender: int, roster: bytes, sealed: bytes
) -> bytes:
    """The two shares that a neighbour sealed.

    SecureSumError if they, the roster, a client or a key differ from those of the sender.
    """
    key = _derive(
        _exchange(own, other),
        b"shares",
        roster,
        _id(sender) + other,
        _id(receiver) + public_bytes(own),
    )
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, None)
    except InvalidTag:
        raise SecureSumError(
            f"shares of client {sender} for client {receiver}: altered, or made under other terms, "
            "or by a client that was shown other keys"
        ) from None


def agreement_tags(
    own: X25519PrivateKey,
    own_client: int,
    other: bytes,
    other_client: int,
    terms: bytes,
    sets: bytes,
) -> tuple[bytes, bytes]:
    """The tag on the digest ``sets`` for another client, and the tag that is due from it.

    HMAC-SHA-256 (the second half of HKDF) under a key that only these two have: nobody else can
    make either tag. Sender and receiver are in it, so a tag that is sent back is not the other one.
    """
    secret = _exchange(own, other)
    ends = [_id(own_client) + public_bytes(own), _id(other_client) + other]
    mine, due = (
        _derive(secret, b"agreement", terms, *both, sets)[:TAG_BYTES] for both in (ends, ends[::-1])
    )
    return mine, due


def _exchange(own: X25519PrivateKey, other: bytes) -> bytes:
    """The shared secret of two keys. SecureSumError for a public key of small order."""
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise SecureSumError(
            "public key: expected 32 bytes of a key that is not of small order"
        ) from None


def _derive(secret: bytes, label: bytes, *about: bytes) -> bytes:
    """A key of 32 bytes for one label, bound to ``about``."""
    info = b"fedlsg secure sum, " + label + b"\0" + b"".join(about)
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)


def _id(client: int) -> bytes:
    """Four bytes of a client's number."""
    return client.to_bytes(4, "little")


SEED_BYTES = 32
AT_ONCE = 2**16
"""Bytes of a key stream at once: they stay in the processor's cache."""
_ZEROS = bytes(AT_ONCE)


def word(bits: int) -> np.dtype:
    """The shortest unsigned little-endian word of at least ``bits`` bits: 1, 2, 4 or 8 bytes."""
    return np.dtype(f"<u{next(size for size in (1, 2, 4, 8) if 8 * size >= bits)}")


def reduced(values: Integer[np.ndarray, " length"], bits: int) -> Words:
    """A copy of integers modulo 2^b, as words; -1 becomes 2^b - 1.

    Raises ValueError for an array that is not of integers.
    """
    if values.dtype.kind not in "iu":
        raise ValueError(f"expected an array of integers, got {values.dtype}")
    return clear(values.astype(word(bits)), bits)


def clear(words: Words, bits: int) -> Words:
    """Set the bits of words above ``bits`` to 0, in place."""
    words &= words.dtype.type(2**bits - 1)
    return words


def sign(own: int, other: int) -> int:
    """The sign of a pair mask in the masked vector of client ``own``; the other client has the
    other sign.
    """
    return 1 if own < other else -1


def add_masks(words: Words, seeds: Iterable[tuple[bytes, int]]) -> None:
    """Add sign x PRG(seed) to words, in place, modulo the length of a word; ``clear`` the bits
    above b afterwards.

    Guarantee: without the seed a mask is computationally indistinguishable from uniform words
    (ChaCha20 under a key of 256 bits); words modulo a power of two have no bias. Holds 64 KiB in
    addition to ``words``, for any number of seeds.
    Raises ValueError for a seed that is not 32 bytes: a shorter one could be found by trial.
    """
    stream = bytearray(AT_ONCE)
    step = AT_ONCE // words.dtype.itemsize
    for seed, direction in seeds:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"expected a mask seed of {SEED_BYTES} bytes, got {len(seed)}")
        cipher = Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor()
        change = np.add if direction > 0 else np.subtract
        for start in range(0, len(words), step):
            part = words[start : start + step]
            cipher.update_into(_ZEROS[: part.nbytes] if part.nbytes < AT_ONCE else _ZEROS, stream)
            change(part, np.frombuffer(stream, words.dtype, count=len(part)), out=part)
