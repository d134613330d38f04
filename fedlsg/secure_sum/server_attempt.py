"""The server in one attempt: it forwards keys and shares, adds masked vectors, and removes their
masks.

To remove masks, it puts secrets together from shares, and checks them against what their owners
announced.

Each stage takes what clients sent, as pairs of client and message, and returns a message for each
client that goes on, or ``GivenUp``. Clients whose message does not come, or is refused, have
dropped out; ``refused`` says why.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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
Read = TypeVar("Read")
WRONG = "answer: a share that does not fit the others: it is wrong, or was dealt so by its owner"


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

    ``seeds``: of each survivor shares of its self-mask seed; ``keys``: of each client that sent
    shares and did not survive, shares of its mask key. The masks between two survivors have
    cancelled.
    Guarantee: every secret is put together and checked before a mask is removed. Where one share of
    a secret is wrong, the others are enough if there are h of them; returns the points of the
    holders that gave one, each of which lies or was dealt a wrong share.
    Raises SecureSumError for fewer than h shares and for h of which one is wrong; WrongSharesError
    for a secret that its owner did not announce, unless several holders lie.
    """
    wrong = set[int]()
    known = {
        o: _revealed("self-mask seed", o, shares, terms, announced, wrong)
        for o, shares in seeds.items()
    }
    secret = {
        o: _revealed("mask key", o, shares, terms, announced, wrong) for o, shares in keys.items()
    }
    add_masks(words, ((seed, -1) for seed in known.values()))
    for gone, key in ((owner, private_key(own)) for owner, own in secret.items()):
        alive = [
            (other, announced[other].mask_key) for other in terms.neighbours[gone] if other in seeds
        ]
        add_masks(
            words,
            ((pair_seed(key, gone, its, o, terms.digest), -sign(o, gone)) for o, its in alive),
        )
    return wrong


def _revealed(
    what: str,
    owner: int,
    shares: Mapping[int, bytes],
    terms: Terms,
    announced: Mapping[int, Announced],
    wrong: set[int],
) -> bytes:
    """An owner's secret from the shares of ``what``; a holder whose share was wrong joins
    ``wrong``.

    One share may be wrong, and those of ``wrong`` are tried last: that of an honest holder is wrong
    where an owner has dealt it so. With h shares alone nobody knows whether their owner or a holder
    lies, and nobody is named.
    """
    trusted = {point: share for point, share in shares.items() if point not in wrong}
    threshold, whose = terms.plan.threshold, f"{what} of client {owner}"
    for tried in (trusted, shares) if len(trusted) >= threshold else (shares,):
        for point in (None, *sorted(tried)[: threshold if len(tried) > threshold else 0]):
            others = {other: share for other, share in tried.items() if other != point}
            if announced[owner].gave(
                secret := combine(others, threshold, whose), what, terms.digest, owner
            ):
                wrong |= set() if point is None else {point}
                return secret
    if len(shares) == threshold:
        raise SecureSumError(f"{whose}: its shares, or that of a holder, are wrong")
    raise WrongSharesError(what, owner)


@dataclass(frozen=True, kw_only=True, eq=False)
class Total:
    """A sum: ``values``, modulo 2^b as uint64, and the survivors, whose vectors it adds up.

    ``wrong``: clients that answered with a share that does not fit the others.
    """

    values: UInt64[np.ndarray, " length"]
    survivors: frozenset[int]
    wrong: frozenset[int] = frozenset()


class Server:
    """The server's side of an attempt under ``terms``. Order of calls: rosters, deliveries,
    survivors, requests, total.

    Guarantee: honest, it learns the sum of the survivors, their number at least m, or gives up
    before it asks for any share (see the package for what a dishonest one could do). It adds each
    masked vector as it comes, so its memory does not grow with clients times values.
    Raises SecureSumError for a stage out of order. ``sent`` holds the messages of the last stage,
    to send them again.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.refused: dict[int, str] = {}
        self.sent: ByClient = {}
        self.given_up: GivenUp | None = None
        self._stage = 0
        self._announced: dict[int, Announced] = {}
        self._sealed: dict[int, ByClient] = {}
        """Sealed shares by sender and receiver; for k receivers each."""
        self._survivors: frozenset[int] = frozenset()
        self._agreed: frozenset[int] = frozenset()
        """Survivors that sent tags: those that are asked for shares."""
        self._sets = b""
        """The digest of who announced which keys, sent shares and survived."""
        self._words = np.zeros(0, word(terms.bits))

    def rosters(self, keys: Pairs) -> ByClient | GivenUp:
        """Stage 0: public keys to all who announced theirs. A key that comes twice is refused the
        second time.
        """
        self._begin("keys")
        taken: set[bytes] = set()
        self._announced = dict(
            self._each(
                keys, self.terms.clients, lambda who, message: self._read_keys(who, message, taken)
            )
        )
        tables = {
            client: {
                other: announced.keys
                for other, announced in self._announced.items()
                if other != client
            }
            for client in self._announced
        }
        return self._forward("keys", wire.ROSTER, tables)

    def deliveries(self, shares: Pairs) -> ByClient | GivenUp:
        """Stage 1: sealed shares to their receivers. Shares for others than neighbours in the
        roster are refused.
        """
        self._begin("shares")
        most = wire.table_bytes(self.terms.plan.degree, SEALED_BYTES)

        def read(client: int, message: bytes) -> ByClient:
            body = wire.read(message, wire.SHARES, client, self.terms, least=0, most=most)
            due = self._near(client, self._announced)
            return wire.read_table(body, SEALED_BYTES, due, of=f"shares of client {client}")

        self._sealed = dict(self._each(shares, self._announced, read))
        tables = {
            client: {
                other: self._sealed[other][client] for other in self._near(client, self._sealed)
            }
            for client in self._sealed
        }
        return self._forward("shares", wire.DELIVERY, tables)

    def survivors(self, masked: Pairs) -> ByClient | GivenUp:
        """Stage 2: add the masked vectors; the set of survivors, fixed from now on, to all of
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
        """Stage 3: each client's tags to their receivers, which give their shares for them. Clients
        check them.
        """
        self._begin("agree")
        size = wire.table_bytes(len(self._survivors) - 1, TAG_BYTES)

        def read(client: int, message: bytes) -> ByClient:
            body = wire.read(message, wire.TAGS, client, self.terms, least=size, most=size)
            return wire.read_table(
                body, TAG_BYTES, self._survivors - {client}, of=f"tags of client {client}"
            )

        given = dict(self._each(tags, self._survivors, read))
        self._agreed = frozenset(given)
        tables = {
            client: {other: given[other][client] for other in given if other != client}
            for client in given
        }
        return self._forward("agree", wire.REQUEST, tables)

    def total(self, answers: Pairs) -> Total | GivenUp:
        """Stage 4: the sum of the survivors' vectors modulo 2^b.

        Given up if fewer than h answered of a neighbourhood whose secret is missing, or if no
        secret can be put together that its owner announced: one wrong share among more than h is
        found, and its holder named.
        """
        self._begin("unmask")
        seeds: Shares = {client: {} for client in self._survivors}
        keys: Shares = {client: {} for client in self._sealed if client not in self._survivors}
        read_all = self._each(
            answers, self._agreed, lambda who, message: self._read_answer(who, message, seeds, keys)
        )
        answered = sum(1 for _ in read_all)
        try:
            wrong = remove_masks(self._words, self.terms, self._announced, seeds, keys)
        except SecureSumError as error:
            owner = error.owner if isinstance(error, WrongSharesError) else None
            return replace(self._give_up("unmask", str(error), answered), owner=owner)
        finally:
            words, self._words = self._words, np.zeros(0, self._words.dtype)
        self.sent = {}
        named = frozenset(
            client for client in self.terms.clients if self.terms.points[client] in wrong
        )
        self.refused |= dict.fromkeys(named, WRONG)
        values = clear(words, self.terms.bits).astype(np.uint64)
        return Total(values=values, survivors=self._survivors, wrong=named)

    def _read_answer(self, client: int, message: bytes, seeds: Shares, keys: Shares) -> None:
        near = [other for other in self.terms.holders(client) if other in self._sealed]
        alive = [other for other in near if other in self._survivors]
        gone = [other for other in near if other not in self._survivors]
        cut = 32 + wire.table_bytes(len(alive), SHARE_BYTES)
        size = cut + wire.table_bytes(len(gone), SHARE_BYTES)
        body = wire.read(message, wire.ANSWER, client, self.terms, least=size, most=size)
        if body[:32] != self._sets:
            raise SecureSumError(f"answer of client {client}: it is for other sets of clients")
        whose = f"answer of client {client}"
        given_seeds = wire.read_table(body[32:cut], SHARE_BYTES, alive, of=whose)
        given_keys = wire.read_table(body[cut:], SHARE_BYTES, gone, of=whose)
        if any(
            int.from_bytes(share, "big") >= PRIME
            for share in (*given_seeds.values(), *given_keys.values())
        ):
            raise SecureSumError(f"{whose}: expected shares below 2^256 - 189")
        for given, known in ((given_seeds, seeds), (given_keys, keys)):
            for owner, share in given.items():
                known[owner][self.terms.points[client]] = share

    def _read_keys(self, client: int, message: bytes, taken: set[bytes]) -> Announced:
        """What a client announced; its keys join those that are ``taken``."""
        body = wire.read(
            message, wire.KEYS, client, self.terms, least=3 * KEY_BYTES, most=3 * KEY_BYTES
        )
        announced = Announced(*(body[at : at + KEY_BYTES] for at in (0, KEY_BYTES, 2 * KEY_BYTES)))
        both = {announced.share_key, announced.mask_key}
        if len(both - taken) < 2:
            raise SecureSumError("keys: expected public keys that differ from all others")
        for key in (announced.share_key, announced.mask_key):
            check_public(key)
        taken |= both
        return announced

    def _near(self, client: int, among: Mapping[int, object]) -> list[int]:
        return [other for other in self.terms.neighbours[client] if other in among]

    def _each(
        self, pairs: Pairs, due: Iterable[int], read: Callable[[int, bytes], Read]
    ) -> Iterator[tuple[int, Read]]:
        """What is read from clients that are due, the first message of each; one that is refused
        has dropped out.
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
        if self.given_up is not None:
            raise SecureSumError(f"{stage}: this attempt has been given up")
        if STAGES.index(stage) != self._stage:
            due = (*STAGES, "nothing more")[self._stage]
            raise SecureSumError(f"{stage}: out of order, expected {due}")
        self._stage += 1

    def _forward(
        self, stage: str, kind: int, tables: Mapping[int, Mapping[int, bytes]]
    ) -> ByClient | GivenUp:
        """One message for each client: the set of all of them, and its own table."""
        if reason := self._too_few(tables.keys()):
            return self._give_up(stage, reason, len(tables))
        members = wire.write_set(tables.keys(), self.terms)
        self.sent = {
            client: wire.write(kind, client, self.terms, members + wire.write_table(table))
            for client, table in sorted(tables.items())
        }
        return self.sent

    def _too_few(self, alive: Iterable[int]) -> str:
        """Why the attempt cannot go on with these clients; empty if it can."""
        left, terms = set(alive), self.terms
        if len(left) < terms.min_survivors:
            return (
                f"expected {terms.min_survivors} clients at least, {len(left)} of "
                f"{len(terms.clients)} are left"
            )
        thin = next(
            (c for c in left if len(left.intersection(terms.holders(c))) < terms.plan.threshold),
            None,
        )
        if thin is not None:
            return (
                f"fewer than {terms.plan.threshold} of the neighbourhood of client {thin} are left"
            )
        return ""

    def _give_up(self, stage: str, reason: str, alive: int) -> GivenUp:
        self.given_up, self.sent = GivenUp(stage=stage, reason=reason, alive=alive), {}
        self._words = np.zeros(0, self._words.dtype)
        return self.given_up
