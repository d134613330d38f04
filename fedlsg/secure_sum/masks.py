"""Masks: ChaCha20 key streams as words modulo 2^b, added to vectors of integers, and removed from their sum.

    y_i = x_i + PRG(b_i) + sum over neighbours j of sign(i, j) PRG(s_ij)   mod 2^b        (Bonawitz et al. 2017, sec. 4)

Symbols: x_i input, b_i self-mask seed, s_ij = s_ji pair seed, y_i masked vector. To remove masks, the server puts
secrets together from shares, and checks them against what their owners announced.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from jaxtyping import Integer, UInt

from fedlsg.secure_sum.keys import combine, commitment_to, pair_seed, private_key, public_bytes
from fedlsg.secure_sum.terms import SecureSumError, Terms, WrongSharesError

SEED_BYTES = 32
AT_ONCE = 2**16
"""Bytes of a key stream at once: they stay in the processor's cache."""
_ZEROS = bytes(AT_ONCE)


def word(bits: int) -> np.dtype:
    """The shortest unsigned little-endian word of at least ``bits`` bits: 1, 2, 4 or 8 bytes."""
    return np.dtype(f"<u{next(size for size in (1, 2, 4, 8) if 8 * size >= bits)}")


def reduced(values: Integer[np.ndarray, " length"], bits: int) -> UInt[np.ndarray, " length"]:
    """A copy of integers modulo 2^b, as words. Negative ones wrap: -1 becomes 2^b - 1. No value is refused.

    Raises ValueError for an array that is not of integers.
    """
    if values.dtype.kind not in "iu":
        raise ValueError(f"expected an array of integers, got {values.dtype}")
    return clear(values.astype(word(bits)), bits)


def clear(words: UInt[np.ndarray, " length"], bits: int) -> UInt[np.ndarray, " length"]:
    """Set the bits of words above ``bits`` to 0, in place."""
    words &= words.dtype.type(2**bits - 1)
    return words


def sign(own: int, other: int) -> int:
    """The sign of the pair mask in the masked vector of client ``own``: the two of a pair cancel."""
    return 1 if own < other else -1


def add_masks(words: UInt[np.ndarray, " length"], seeds: Iterable[tuple[bytes, int]]) -> None:
    """Add sign x PRG(seed) to words, in place, modulo the length of a word; ``clear`` the bits above b afterwards.

    Guarantee: without the seed a mask is computationally indistinguishable from uniform words (ChaCha20 under a key of
    256 bits); words modulo a power of two have no bias. Holds 64 KiB in addition to ``words``, for any number of seeds.
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


Shares = dict[int, dict[int, bytes]]
"""Shares of one kind of secret, by its owner and by the point of the holder."""


class Announced(NamedTuple):
    """What a client announced in stage 0: two public keys and the commitment to its self-mask seed, 32 bytes each."""

    share_key: bytes
    mask_key: bytes
    commitment: bytes

    @property
    def keys(self) -> bytes:
        """Both public keys."""
        return self.share_key + self.mask_key


def remove_masks(
    words: UInt[np.ndarray, " length"], terms: Terms, announced: Mapping[int, Announced], seeds: Shares, keys: Shares
) -> set[int]:
    """Subtract all masks that are left in the sum of the survivors' masked vectors, in place.

    ``seeds``: of each survivor shares of its self-mask seed; ``keys``: of each client that sent shares and did not
    survive, shares of its mask key. The masks between two survivors have cancelled.
    Guarantee: every secret is put together and checked before a mask is removed.
    Where one share of a secret is wrong, the others are enough if there are h of them; returns the points of the
    holders that gave one, each of which lies or was dealt a wrong share.
    Raises SecureSumError for fewer than h shares and for h of which one is wrong; WrongSharesError for a secret that
    its owner did not announce, unless several holders lie.
    """
    wrong = set[int]()
    known = {o: _secret("self-mask seed", o, shares, terms, announced, wrong) for o, shares in seeds.items()}
    secret = {o: _secret("mask key", o, shares, terms, announced, wrong) for o, shares in keys.items()}
    add_masks(words, ((seed, -1) for seed in known.values()))
    add_masks(words, _left_by(secret, terms, announced, seeds))
    return wrong


def _secret(
    what: str, owner: int, shares: Mapping[int, bytes], terms: Terms, announced: Mapping[int, Announced],
    wrong: set[int],
) -> bytes:  # fmt: skip
    """An owner's secret from the shares of ``what``; a holder whose share was wrong joins ``wrong``.

    One share may be wrong, and those of ``wrong`` are tried last: that of an honest holder is wrong where an owner has
    dealt it so. With h shares alone nobody knows whether their owner or a holder lies, and nobody is named.
    """
    trusted = {point: share for point, share in shares.items() if point not in wrong}
    threshold = terms.plan.threshold
    for some in (trusted, shares) if len(trusted) >= threshold else (shares,):
        for point in (None, *sorted(some)[: threshold if len(some) > threshold else 0]):
            others = {other: share for other, share in some.items() if other != point}
            if _is_announced(found := _combine(what, owner, others, terms), what, owner, terms, announced):
                wrong |= set() if point is None else {point}
                return found
    if len(shares) == threshold:
        raise SecureSumError(f"{what} of client {owner}: its shares, or that of a holder, are wrong")
    raise WrongSharesError(what, owner)


def _is_announced(secret: bytes, what: str, owner: int, terms: Terms, announced: Mapping[int, Announced]) -> bool:
    if what == "mask key":
        return public_bytes(private_key(secret)) == announced[owner].mask_key
    return commitment_to(secret, terms.digest, owner) == announced[owner].commitment


def _combine(what: str, owner: int, shares: Mapping[int, bytes], terms: Terms) -> bytes:
    if len(shares) < terms.plan.threshold:
        raise SecureSumError(
            f"{what} of client {owner}: expected {terms.plan.threshold} shares at least, got {len(shares)}"
        )
    return combine(shares, terms.plan.threshold)


def _left_by(
    secrets: Mapping[int, bytes], terms: Terms, announced: Mapping[int, Announced], survivors: Mapping[int, object]
) -> Iterator[tuple[bytes, int]]:
    """Pair masks of survivors with those that dropped out, with the signs that remove them."""
    for gone, secret in secrets.items():
        key = private_key(secret)
        for other in terms.neighbours[gone]:
            if other in survivors:
                yield pair_seed(key, gone, announced[other].mask_key, other, terms.digest), -sign(other, gone)
