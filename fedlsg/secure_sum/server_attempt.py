"""The server in one attempt: it forwards keys and shares, adds masked vectors, and removes their
masks.

To remove masks, it reconstructs secrets from shares, and checks them against the announcements of
their owners.

Each stage takes the messages of clients, as pairs of client and message. It returns a message for
each client that is still in the attempt, or ``GivenUp``. Clients whose message does not come, or is
refused, have dropped out; ``refused`` has the reasons.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
from jaxtyping import UInt, UInt64

from fedlsg.secure_sum import messages as wire
from fedlsg.secure_sum.keys import (
    KEY_BYTES,
    PRIME,
    SEALED_BYTES,
    SHARE_BYTES,
    TAG_BYTES,
    add_masks,
    check_public,
    clear,
    combine,
    pair_seed,
    private_key,
    sign,
    word,
)
from fedlsg.secure_sum.messages import Announced, packed_bytes, unpack_bits
from fedlsg.secure_sum.terms import STAGES, GivenUp, SecureSumError, Terms, WrongSharesError

ByClient = dict[int, bytes]
"""Messages of clients."""

Pairs = Iterable[tuple[int, bytes]]
"""Clients, each with a message."""
Read = TypeVar("Read")
WRONG = "answer: a share that does not fit the others: it is wrong, or was dealt so by its owner"
"""Why the answer of a client in ``Total.wrong`` is refused."""
Shares = dict[int, ByClient]
"""Shares of one kind of secret, by its owner and by the point of the holder."""


def remove_masks(
    words: UInt[np.ndarray, " length"],
    terms: Terms,
    announced: Mapping[int, Announced],
    seeds: Shares,
    keys: Shares,
) -> set[int]:
    """Subtract all masks that are left in the sum of the survivors' masked vectors, in place.

    seeds: of each survivor, shares of its self-mask seed.
    keys: of each client that sent shares and did not survive, shares of its mask key. The masks
        between two survivors have cancelled.
    Guarantee: every secret is reconstructed and checked before a mask is removed. One wrong share
    of a secret does no harm if there are h others. Returns the points of holders that gave such a
    share: each of them lies, or got a wrong share from its owner.
    Raises SecureSumError for fewer than h shares and for h of which one is wrong; WrongSharesError
    for a secret that its owner did not announce, unless several holders lie.
    """
    wrong: set[int] = set()
    self_seeds = []
    for owner, shares in seeds.items():
        is_seed = partial(announced[owner].is_self_mask_seed, terms=terms.digest, owner=owner)
        self_seeds.append(_reconstruct("self-mask seed", owner, shares, terms, is_seed, wrong))
    mask_keys = {}
    for owner, shares in keys.items():
        is_key = announced[owner].is_mask_key
        secret = _reconstruct("mask key", owner, shares, terms, is_key, wrong)
        mask_keys[owner] = private_key(secret)
    add_masks(words, ((seed, -1) for seed in self_seeds))
    for gone, key in mask_keys.items():
        # its pair masks with survivors, whose vectors are in the sum
        masks = []
        for other in terms.neighbours[gone]:
            if other in seeds:
                seed = pair_seed(key, gone, announced[other].mask_key, other, terms.digest)
                masks.append((seed, -sign(other, gone)))
        add_masks(words, masks)
    return wrong


def _reconstruct(
    what: str,
    owner: int,
    shares: Mapping[int, bytes],
    terms: Terms,
    is_secret: Callable[[bytes], bool],
    wrong: set[int],
) -> bytes:
    """The secret ``what`` that the owner announced (``is_secret``), from its shares; a holder whose
    share was wrong is added to ``wrong``.

    First without the shares of holders in ``wrong``, if h others are left; they may be wrong for
    one owner only, who dealt them so. Each time with all shares, and then without each one of the
    first h: ``combine`` uses the first h, so one wrong share is among these. With h shares in all
    nobody knows whether the owner or a holder lies, and nobody is named.
    """
    trusted = {point: share for point, share in shares.items() if point not in wrong}
    threshold, whose = terms.plan.threshold, f"{what} of client {owner}"
    for candidates in (trusted, shares) if len(trusted) >= threshold else (shares,):
        suspects = sorted(candidates)[:threshold] if len(candidates) > threshold else []
        for suspect in (None, *suspects):
            others = {point: share for point, share in candidates.items() if point != suspect}
            secret = combine(others, threshold, whose)
            if is_secret(secret):
                if suspect is not None:
                    wrong.add(suspect)
                return secret
    if len(shares) == threshold:
        raise SecureSumError(f"{whose}: its shares, or that of a holder, are wrong")
    raise WrongSharesError(what, owner)


@dataclass(frozen=True, kw_only=True, eq=False)
class Total:
    """A sum.

    values: modulo 2^b, as uint64.
    survivors: the clients whose vectors are in the sum.
    wrong: clients that answered with a share that does not fit the others.
    """

    values: UInt64[np.ndarray, " length"]
    survivors: frozenset[int]
    wrong: frozenset[int] = frozenset()


class Server:
    """The server's side of an attempt. Order of calls: rosters, deliveries, survivors, requests,
    total.

    terms: of the attempt.
    refused: by client, why a message was refused.
    sent: the messages of the last stage, to send them again.
    given_up: how the attempt ended without a sum; None if it did not.
    Guarantee: an honest server learns the sum of at least m survivors, or gives up before it asks
    for any share (the package's docstring has what a dishonest one could do). It adds each masked
    vector when it comes, so its memory does not grow with clients times values.
    Raises SecureSumError for a stage out of order.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.refused: dict[int, str] = {}
        self.sent: ByClient = {}
        self.given_up: GivenUp | None = None
        self._stage = 0
        self._announced: dict[int, Announced] = {}
        self._sealed: dict[int, ByClient] = {}
        """Sealed shares by sender and receiver; each sender has k receivers."""
        self._survivors: frozenset[int] = frozenset()
        self._agreed: frozenset[int] = frozenset()
        """Survivors that sent tags; only they are asked for shares."""
        self._sets = b""
        """The digest of the roster with its keys, the senders of shares, and the survivors."""
        self._words = np.zeros(0, word(terms.bits))

    def rosters(self, keys: Pairs) -> ByClient | GivenUp:
        """Stage 0: public keys to all clients that announced theirs.

        A key that comes a second time is refused.
        """
        self._begin("keys")
        seen: set[bytes] = set()

        def read(client: int, message: bytes) -> Announced:
            return self._read_keys(client, message, seen)

        self._announced = dict(self._each(keys, self.terms.clients, read))
        public = {client: announced.keys for client, announced in self._announced.items()}
        tables = {client: _without(public, client) for client in public}
        return self._forward("keys", wire.ROSTER, tables)

    def deliveries(self, shares: Pairs) -> ByClient | GivenUp:
        """Stage 1: sealed shares to their receivers.

        Shares for clients that are not neighbours in the roster are refused.
        """
        self._begin("shares")
        most = wire.table_bytes(self.terms.plan.degree, SEALED_BYTES)

        def read(client: int, message: bytes) -> ByClient:
            body = wire.read(message, wire.SHARES, client, self.terms, least=0, most=most)
            receivers = self._near(client, self._announced)
            return wire.read_table(body, SEALED_BYTES, receivers, of=f"shares of client {client}")

        self._sealed = dict(self._each(shares, self._announced, read))
        tables = {}
        for client in self._sealed:
            senders = self._near(client, self._sealed)
            tables[client] = {sender: self._sealed[sender][client] for sender in senders}
        return self._forward("shares", wire.DELIVERY, tables)

    def survivors(self, masked: Pairs) -> ByClient | GivenUp:
        """Stage 2: add the masked vectors; send the set of survivors, fixed from now on, to all of
        them.
        """
        self._begin("masked")
        length, bits = self.terms.length, self.terms.bits
        self._words = np.zeros(length, word(bits))
        size = packed_bytes(length, bits)

        def add(client: int, message: bytes) -> None:
            body = wire.read(message, wire.MASKED, client, self.terms, least=size, most=size)
            self._words += unpack_bits(body, length, bits)

        self._survivors = survivors = frozenset(
            client for client, _ in self._each(masked, self._sealed, add)
        )
        if reason := self._too_few(self._survivors):
            return self._give_up("masked", reason, len(survivors))
        keys = {client: known.keys for client, known in self._announced.items()}
        self._sets = wire.sets_digest(
            wire.roster_digest(keys, self.terms), self._sealed, survivors, self.terms
        )
        body = wire.write_set(survivors, self.terms)
        self.sent = {
            client: wire.write(wire.SURVIVORS, client, self.terms, body)
            for client in sorted(survivors)
        }
        return self.sent

    def requests(self, tags: Pairs) -> ByClient | GivenUp:
        """Stage 3: each client's tags to their receivers, which check them before stage 4."""
        self._begin("agree")
        size = wire.table_bytes(len(self._survivors) - 1, TAG_BYTES)

        def read(client: int, message: bytes) -> ByClient:
            body = wire.read(message, wire.TAGS, client, self.terms, least=size, most=size)
            return wire.read_table(
                body, TAG_BYTES, self._survivors - {client}, of=f"tags of client {client}"
            )

        by_sender = dict(self._each(tags, self._survivors, read))
        self._agreed = frozenset(by_sender)
        tables = {}
        for client in by_sender:
            senders = _without(by_sender, client)
            tables[client] = {sender: tags[client] for sender, tags in senders.items()}
        return self._forward("agree", wire.REQUEST, tables)

    def total(self, answers: Pairs) -> Total | GivenUp:
        """Stage 4: the sum of the survivors' vectors modulo 2^b.

        The attempt is given up if fewer than h holders of a secret answered, or if their shares do
        not give the announced secret. One wrong share among more than h is found, and its holder is
        in ``Total.wrong``.
        """
        self._begin("unmask")
        seeds: Shares = {client: {} for client in self._survivors}
        keys: Shares = {client: {} for client in self._sealed if client not in self._survivors}

        def read(client: int, message: bytes) -> None:
            self._read_answer(client, message, seeds, keys)

        answered = len(list(self._each(answers, self._agreed, read)))
        try:
            wrong = remove_masks(self._words, self.terms, self._announced, seeds, keys)
        except SecureSumError as error:
            owner = error.owner if isinstance(error, WrongSharesError) else None
            return replace(self._give_up("unmask", str(error), answered), owner=owner)
        finally:
            words, self._words = self._words, np.zeros(0, self._words.dtype)
        self.sent = {}
        liars = frozenset(
            client for client in self.terms.clients if self.terms.points[client] in wrong
        )
        self.refused |= dict.fromkeys(liars, WRONG)
        values = clear(words, self.terms.bits).astype(np.uint64)
        return Total(values=values, survivors=self._survivors, wrong=liars)

    def _read_answer(self, client: int, message: bytes, seeds: Shares, keys: Shares) -> None:
        """Add the shares of one answer to ``seeds`` and ``keys``."""
        near = [other for other in self.terms.holders(client) if other in self._sealed]
        alive = [other for other in near if other in self._survivors]
        gone = [other for other in near if other not in self._survivors]
        cut = 32 + wire.table_bytes(len(alive), SHARE_BYTES)
        size = cut + wire.table_bytes(len(gone), SHARE_BYTES)
        body = wire.read(message, wire.ANSWER, client, self.terms, least=size, most=size)
        if body[:32] != self._sets:
            raise SecureSumError(f"answer of client {client}: it is for other sets of clients")
        whose = f"answer of client {client}"
        of_seeds = wire.read_table(body[32:cut], SHARE_BYTES, alive, of=whose)
        of_keys = wire.read_table(body[cut:], SHARE_BYTES, gone, of=whose)
        shares = (*of_seeds.values(), *of_keys.values())
        if any(int.from_bytes(share, "big") >= PRIME for share in shares):
            raise SecureSumError(f"{whose}: expected shares below 2^256 - 189")
        point = self.terms.points[client]
        for owner, share in of_seeds.items():
            seeds[owner][point] = share
        for owner, share in of_keys.items():
            keys[owner][point] = share

    def _read_keys(self, client: int, message: bytes, seen: set[bytes]) -> Announced:
        """The announcement of a client, whose keys are added to ``seen``.

        Raises SecureSumError for a key that was seen, or is of small order.
        """
        body = wire.read(
            message, wire.KEYS, client, self.terms, least=3 * KEY_BYTES, most=3 * KEY_BYTES
        )
        starts = (0, KEY_BYTES, 2 * KEY_BYTES)
        announced = Announced(*(body[start : start + KEY_BYTES] for start in starts))
        both = {announced.share_key, announced.mask_key}
        if len(both - seen) < 2:
            raise SecureSumError("keys: expected public keys that differ from all others")
        for key in (announced.share_key, announced.mask_key):
            check_public(key)
        seen |= both
        return announced

    def _near(self, client: int, among: Mapping[int, object]) -> list[int]:
        """The neighbours of a client that are in ``among``."""
        return [other for other in self.terms.neighbours[client] if other in among]

    def _each(
        self, pairs: Pairs, due: Iterable[int], read: Callable[[int, bytes], Read]
    ) -> Iterator[tuple[int, Read]]:
        """The results of ``read`` for the first message of each client that is due.

        A client whose message is refused has dropped out.
        """
        left = set(due)
        for client, message in pairs:
            if client in left:
                left.remove(client)
                try:
                    body = read(client, message)
                except SecureSumError as error:
                    self.refused[client] = str(error)
                else:
                    yield client, body
            elif client in self.terms.points:
                self.refused.setdefault(
                    client, "a message that was not expected: a second one, or after a dropout"
                )

    def _begin(self, stage: str) -> None:
        """Begin a stage. Raises SecureSumError if it is out of order."""
        if self.given_up is not None:
            raise SecureSumError(f"{stage}: this attempt has been given up")
        if STAGES.index(stage) != self._stage:
            due = (*STAGES, "nothing more")[self._stage]
            raise SecureSumError(f"{stage}: out of order, expected {due}")
        self._stage += 1

    def _forward(
        self, stage: str, kind: int, tables: Mapping[int, Mapping[int, bytes]]
    ) -> ByClient | GivenUp:
        """One message for each client in ``tables``: the set of all of them, and its own table."""
        if reason := self._too_few(tables.keys()):
            return self._give_up(stage, reason, len(tables))
        members = wire.write_set(tables.keys(), self.terms)
        self.sent = {
            client: wire.write(kind, client, self.terms, members + wire.write_table(table))
            for client, table in sorted(tables.items())
        }
        return self.sent

    def _too_few(self, alive: Iterable[int]) -> str:
        """Why the attempt cannot continue with these clients; "" if it can."""
        left, terms = set(alive), self.terms
        if len(left) < terms.min_survivors:
            return (
                f"expected {terms.min_survivors} clients at least, {len(left)} of "
                f"{len(terms.clients)} are left"
            )
        threshold = terms.plan.threshold
        for client in left:
            if len(left.intersection(terms.holders(client))) < threshold:
                return f"fewer than {threshold} of the neighbourhood of client {client} are left"
        return ""

    def _give_up(self, stage: str, reason: str, alive: int) -> GivenUp:
        """End the attempt without a sum, and forget the vectors."""
        self.given_up = GivenUp(stage=stage, reason=reason, alive=alive)
        self.sent = {}
        self._words = np.zeros(0, self._words.dtype)
        return self.given_up


def _without(values: Mapping[int, Read], client: int) -> dict[int, Read]:
    """The values of all other clients."""
    return {other: value for other, value in values.items() if other != client}
