"""The client in one attempt: it gives keys, shares, masked values, tags and an answer, each once.

Guarantees, whatever the server sends (SecureSumError otherwise, and nothing is sent):
- a stage is answered once; the same message again gets the stored answer, another one is refused,
  and so is a stage out of order;
- masks are used for one vector;
- tags are given for one set of survivors: at least m of those that sent shares, this client among
  them, and at least h of its own closed neighbourhood;
- shares are given for that set alone, and only after the tags of m survivors, this client among
  them, have shown that they got the same sets and public keys. Of each neighbour one secret is
  given, never both. ``terms`` proves what follows.
"""

import hashlib
import hmac
from collections.abc import Callable
from typing import NoReturn, Self

import numpy as np
from jaxtyping import Integer

from fedlsg.secure_sum import messages as wire
from fedlsg.secure_sum.keys import (
    KEY_BYTES,
    SEALED_BYTES,
    SHARE_BYTES,
    TAG_BYTES,
    AttemptSecrets,
    add_masks,
    agreement_tags,
    clear,
    commitment_to,
    open_shares,
    pair_seed,
    public_bytes,
    reduced,
    seal_shares,
    sign,
    split,
)
from fedlsg.secure_sum.stored_state import read_state, write_state
from fedlsg.secure_sum.terms import STAGES, SecureSumError, Terms


class Client:
    """One client's side of an attempt. Order of calls: keys, shares, accept, masked, agree, unmask.

    terms: of the attempt.
    client: its number.
    root: 32 secret bytes for this client and attempt alone, from ``secret_root`` (or
        ``reproducible_root``, not private).
    After ``unmask`` all secrets are forgotten; the answers are kept. It refuses to be pickled;
    ``export`` writes it for the client's own store.
    """

    def __init__(self, terms: Terms, client: int, root: bytes) -> None:
        if client not in terms.points:
            raise ValueError(
                f"expected one of the {len(terms.clients)} clients of the terms, got {client}"
            )
        self.terms, self.client = terms, client
        self._root: bytes | None = root
        self._secrets: AttemptSecrets | None = AttemptSecrets(root, terms.digest, client)
        self._answers: list[tuple[bytes, bytes]] = []
        """For each stage answered: SHA-256 of the message, and the answer."""
        self._roster: bytes | None = None
        self._delivery: bytes | None = None
        self._public: dict[int, tuple[bytes, bytes]] = {}
        """Share key and mask key of each client in the roster, its own too."""
        self._seeds: dict[int, bytes] = {}
        """The pair seed s_ij of each neighbour in the roster."""
        self._announced: frozenset[int] = frozenset()
        self._roster_digest = b""
        """The digest of the roster: clients and their keys, its own too. Sealing, opening and tags
        depend on it.
        """
        self._sharers: frozenset[int] = frozenset()
        self._held: dict[int, bytes] = {}
        """Of each client of its closed neighbourhood that sent shares: a share of the self-mask
        seed, then one of the mask key.
        """
        self._told: bytes | None = None
        """The message with the survivors."""
        self._survivors: frozenset[int] = frozenset()
        self._sets = b""
        """The digest of the roster, sharers and survivors."""
        self._due: dict[int, bytes] = {}
        """The tag that each other survivor sends if it got the same sets and keys."""

    @property
    def stage(self) -> str:
        """The next stage: keys, shares, masked, agree, unmask, or done."""
        return (*STAGES, "done")[len(self._answers)]

    def keys(self) -> bytes:
        """Stage 0: announce two public keys and the commitment to the self-mask seed."""
        return self._answer("keys", b"", self._make_keys)

    def shares(self, roster: bytes) -> bytes:
        """Stage 1: shares of both secrets for each neighbour in the roster, sealed.

        SecureSumError if fewer than m clients announced keys or fewer than h of the closed
        neighbourhood, and for keys that repeat or, of a neighbour, are of small order.
        """
        return self._answer("shares", roster, lambda: self._make_shares(roster))

    def accept(self, delivery: bytes) -> None:
        """Stage 2, first half: open the shares of the neighbours.

        The same message again is accepted, and no other. Call it before the input is computed: a
        delivery that is refused then costs no privacy. SecureSumError if fewer than m clients sent
        shares, for senders that are not neighbours in the roster, and for altered shares.
        """
        self._reach("masked")
        if self._delivery is not None:
            if self._delivery != delivery:
                raise SecureSumError("delivery: this attempt has accepted another one")
            return
        self._open(delivery)
        self._delivery = delivery

    def masked(self, values: Integer[np.ndarray, " length"]) -> bytes:
        """Stage 2, second half: the masked vector of ``length`` integers, which are taken modulo
        2^b.

        Called again it returns the stored message, whatever the values: masks are used once.
        ValueError for values of another shape or type.
        """
        if len(self._answers) > STAGES.index("masked"):
            return self._answers[STAGES.index("masked")][1]
        if self._delivery is None:
            raise SecureSumError("masked: expected a delivery before the values")
        if values.shape != (self.terms.length,):
            raise ValueError(f"expected {self.terms.length} values, got shape {values.shape}")
        return self._answer("masked", self._delivery, lambda: self._make_masked(values))

    def agree(self, told: bytes) -> bytes:
        """Stage 3: a tag for each other survivor on all sets that this client got.

        They are fixed from now on. ``told``: the message with the survivors.

        SecureSumError for another set than before, survivors that sent no shares, a set without
        this client or of fewer than m, and if fewer than h of the closed neighbourhood survived.
        """
        return self._answer("agree", told, lambda: self._make_tags(told))

    def unmask(self, request: bytes) -> bytes:
        """Stage 4: shares for the one set of survivors of this attempt; then all secrets are
        forgotten.

        SecureSumError unless m survivors, this client among them, got the same sets: wrong tags do
        not count.
        """
        return self._answer("unmask", request, lambda: self._make_answer(request))

    def _make_keys(self) -> bytes:
        """The message of stage 0."""
        secrets = self._secret
        commitment = commitment_to(secrets.self_seed, self.terms.digest, self.client)
        body = public_bytes(secrets.share_key) + public_bytes(secrets.mask_key) + commitment
        return wire.write(wire.KEYS, self.client, self.terms, body)

    def _make_shares(self, roster: bytes) -> bytes:
        """The message of stage 1; keeps what the roster has, and the client's own shares."""
        self._read_roster(roster)
        secrets, terms, digest = self._secret, self.terms, self._roster_digest
        holders = {client: terms.points[client] for client in (self.client, *self._seeds)}
        degree = terms.plan.threshold - 1
        seeds = split(
            secrets.self_seed, secrets.coefficients(b"self-mask seed", degree), holders.values()
        )
        keys = split(
            secrets.mask_secret, secrets.coefficients(b"mask key", degree), holders.values()
        )
        both = {client: seeds[point] + keys[point] for client, point in holders.items()}
        self._held = {self.client: both[self.client]}
        sealed = {}
        for other in self._seeds:
            share_key, _ = self._public[other]
            sealed[other] = seal_shares(
                secrets.share_key, self.client, share_key, other, digest, both[other]
            )
        self._roster = roster
        return wire.write(wire.SHARES, self.client, terms, wire.write_table(sealed))

    def _read_roster(self, roster: bytes) -> None:
        """Keep the clients and keys of a roster, and derive the pair seeds with neighbours."""
        announced, body = wire.read_with_set(
            roster, wire.ROSTER, self.client, self.terms, 2 * KEY_BYTES
        )
        neighbours = self._near(announced, "roster")
        table = wire.read_table(body, 2 * KEY_BYTES, announced - {self.client}, of="roster")
        table[self.client] = public_bytes(self._secret.share_key) + public_bytes(
            self._secret.mask_key
        )
        public = {other: (keys[:KEY_BYTES], keys[KEY_BYTES:]) for other, keys in table.items()}
        if len({key for pair in public.values() for key in pair}) != 2 * len(public):
            raise SecureSumError("roster: expected public keys that differ, got one twice")
        self._seeds = {
            other: pair_seed(
                self._secret.mask_key, self.client, public[other][1], other, self.terms.digest
            )
            for other in neighbours
        }
        self._announced, self._public = announced, public
        self._roster_digest = wire.roster_digest(table, self.terms)

    def _open(self, delivery: bytes) -> None:
        """Keep the clients that sent shares, and open the shares of neighbours."""
        sharers, body = wire.read_with_set(
            delivery, wire.DELIVERY, self.client, self.terms, SEALED_BYTES
        )
        if not sharers <= self._announced:
            raise SecureSumError("delivery: clients sent shares that had announced no keys")
        sealed = wire.read_table(body, SEALED_BYTES, self._near(sharers, "delivery"), of="delivery")
        key, digest = self._secret.share_key, self._roster_digest
        held = {
            other: open_shares(key, self.client, self._public[other][0], other, digest, text)
            for other, text in sealed.items()
        }
        self._sharers, self._held = sharers, {self.client: self._held[self.client], **held}

    def _make_masked(self, values: np.ndarray) -> bytes:
        """The message of stage 2."""
        secrets, terms = self._secret, self.terms
        words = reduced(values, terms.bits)
        add_masks(words, [(secrets.self_seed, 1)])
        neighbours = [other for other in self._held if other != self.client]
        add_masks(words, ((self._seeds[other], sign(self.client, other)) for other in neighbours))
        packed = wire.pack_bits(clear(words, terms.bits), terms.bits)
        return wire.write(wire.MASKED, self.client, terms, packed)

    def _make_tags(self, told: bytes) -> bytes:
        """The message of stage 3; keeps the survivors, and the tags that are due from them."""
        size = wire.set_bytes(self.terms)
        body = wire.read(told, wire.SURVIVORS, self.client, self.terms, least=size, most=size)
        survivors = wire.read_set(body, self.terms, of="survivors")
        if not survivors <= self._sharers:
            raise SecureSumError("survivors: expected clients that sent shares, got others")
        self._near(survivors, "survivors")
        sets = wire.sets_digest(self._roster_digest, self._sharers, survivors, self.terms)
        key, terms = self._secret.share_key, self.terms.digest
        mine: dict[int, bytes] = {}
        self._due = {}
        for other in survivors - {self.client}:
            share_key, _ = self._public[other]
            mine[other], self._due[other] = agreement_tags(
                key, self.client, share_key, other, terms, sets
            )
        self._told, self._survivors, self._sets = told, survivors, sets
        return wire.write(wire.TAGS, self.client, self.terms, wire.write_table(mine))

    def _make_answer(self, request: bytes) -> bytes:
        """The message of stage 4: of each holding one share; then the secrets are forgotten."""
        self._check_agreement(request)
        seeds, keys = {}, {}
        for other, both in self._held.items():
            if other in self._survivors:
                seeds[other] = both[:SHARE_BYTES]
            else:
                keys[other] = both[SHARE_BYTES:]
        answer = self._sets + wire.write_table(seeds) + wire.write_table(keys)
        message = wire.write(wire.ANSWER, self.client, self.terms, answer)
        self._forget()
        return message

    def _check_agreement(self, request: bytes) -> None:
        """Raise SecureSumError unless m survivors, this client among them, tagged the sets that it
        got.
        """
        senders, body = wire.read_with_set(
            request, wire.REQUEST, self.client, self.terms, TAG_BYTES
        )
        if self.client not in senders or not senders <= self._survivors:
            raise SecureSumError("request: expected tags of survivors, this client among them")
        tags = wire.read_table(body, TAG_BYTES, senders - {self.client}, of="request")
        agreed = 1 + sum(hmac.compare_digest(tag, self._due[other]) for other, tag in tags.items())
        if agreed < self.terms.min_survivors:
            least = self.terms.min_survivors
            raise SecureSumError(
                f"request: expected {least} clients that were told the same sets and keys, got "
                f"{agreed}"
            )

    def _near(self, clients: frozenset[int], of: str) -> list[int]:
        """The neighbours of this client in ``clients``.

        Raises SecureSumError unless they have this client, and h of its closed neighbourhood.
        """
        if self.client not in clients:
            raise SecureSumError(f"{of}: client {self.client} itself is missing")
        near = [other for other in self.terms.neighbours[self.client] if other in clients]
        least, got = self.terms.plan.threshold, len(near) + 1
        if got < least:
            raise SecureSumError(
                f"{of}: expected {least} of the neighbourhood of client {self.client}, got {got}"
            )
        return near

    def _answer(self, stage: str, message: bytes, make: Callable[[], bytes]) -> bytes:
        """The stored answer of a stage, or the one that ``make`` returns, which is stored."""
        at = STAGES.index(stage)
        asked = hashlib.sha256(message).digest() if isinstance(message, bytes) else b""
        if at < len(self._answers):
            if self._answers[at][0] != asked:
                raise SecureSumError(
                    f"{stage}: this attempt has answered another message of this stage"
                )
            return self._answers[at][1]
        self._reach(stage)
        answer = make()
        self._answers.append((asked, answer))
        return answer

    def _forget(self) -> None:
        """Forget all secrets."""
        self._root, self._secrets, self._seeds, self._held, self._due = None, None, {}, {}, {}

    def export(self) -> bytes:
        """The whole state with its secrets, for the client's own store alone.

        Write it before the last answer is sent: a client that is restored to an earlier state could
        answer twice.
        """
        answers = [part for pair in self._answers for part in pair]
        heard = [self._roster, self._delivery, self._told]
        return write_state(self.terms, self.client, [self._root or b"", *heard, *answers])

    @classmethod
    def restore(cls, terms: Terms, client: int, stored: bytes) -> Self:
        """The client that ``export`` wrote. SecureSumError for damaged bytes, other terms or
        another client.
        """
        root, roster, delivery, told, *pairs = read_state(terms, client, stored)
        restored = cls(terms, client, root or bytes(KEY_BYTES))
        if root and roster:
            restored._make_shares(roster)
        if root and delivery:
            restored._open(delivery)
        if root and told:
            restored._make_tags(told)
        if not root:
            restored._forget()
        restored._roster = roster or None
        restored._delivery = delivery or None
        restored._told = told or None
        restored._answers = list(zip(pairs[::2], pairs[1::2], strict=True))
        return restored

    def _reach(self, stage: str) -> None:
        """Raise SecureSumError for a stage that comes too early."""
        if STAGES.index(stage) > len(self._answers):
            raise SecureSumError(f"{stage}: out of order, the next stage is {self.stage}")

    @property
    def _secret(self) -> AttemptSecrets:
        """The secrets. Raises SecureSumError if they are forgotten."""
        if self._secrets is None:
            raise SecureSumError("the secrets of this attempt are forgotten: it has been unmasked")
        return self._secrets

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a client of a secure sum cannot be pickled: use export, for the client's own store "
            "alone"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(client={self.client}, stage={self.stage!r})"
