"""Put secrets together from shares, check them against what was announced, and remove the masks that they give."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt

from fedlsg.secure_sum.keys import commitment_to, pair_seed, private_key, public_bytes
from fedlsg.secure_sum.masks import add_masks, sign
from fedlsg.secure_sum.outcome import SecureSumError, WrongSharesError
from fedlsg.secure_sum.shares import combine
from fedlsg.secure_sum.terms import Terms

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
