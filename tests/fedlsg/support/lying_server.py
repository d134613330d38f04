"""A server that tells each client other sets and keys, t clients that show it all, and what they
read together.

The clients are the real ones. What comes out is found twice: by the secrets that the coalition puts
together from real shares, and from these by a rule of its own (``revealed``): the sum of a group of
vectors is read if each mask that the coalition does not know is in exactly two of them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedlsg.secure_sum import Client, SecureSumError, Terms, reproducible_root
from fedlsg.secure_sum import messages as wire
from fedlsg.secure_sum.keys import (
    SEALED_BYTES,
    AttemptSecrets,
    add_masks,
    agreement_tags,
    clear,
    combine,
    commitment_to,
    open_shares,
    pair_seed,
    private_key,
    public_bytes,
    sign,
)
from fedlsg.secure_sum.messages import unpack_bits
from fedlsg.secure_sum.server_attempt import Announced
from tests.fedlsg.support.secure_rounds import body_of, make_clients, random_inputs

Sets = Mapping[int, frozenset[int]]
"""For each client the set that it is told."""


def old_key(client: int) -> bytes:
    """The secret of a mask key that a client had in an earlier attempt, which was put together
    there.
    """
    return AttemptSecrets(reproducible_root(1, client), bytes(32), client).mask_secret


@dataclass
class Coalition:
    """A lying server and its colluders in one attempt. Call the stages in order; clients that
    refuse are left out.
    """

    terms: Terms
    colluders: frozenset[int]
    replaced: Sets = field(default_factory=dict)
    """For some clients: in whose place they are shown an old mask key, whose secret the server
    has.
    """
    clients: dict[int, Client] = field(init=False)
    refused: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        terms = self.terms
        self.clients, self.inputs = make_clients(terms), random_inputs(terms, 0)
        self.secrets = {
            who: AttemptSecrets(reproducible_root(0, who), terms.digest, who)
            for who in self.colluders
        }
        self.told: dict[str, dict[int, frozenset[int]]] = {
            "announced": {},
            "sharers": {},
            "survivors": {},
        }
        self.sealed: dict[int, dict[int, bytes]] = {}
        self.masked: dict[int, np.ndarray] = {}
        self.tags: dict[int, dict[int, bytes]] = {}
        self.shares: dict[tuple[str, int], dict[int, bytes]] = {}
        """Shares of ("seed" or "key", owner) by the holder's point."""
        self.found: dict[tuple[str, int], bytes] = {}
        size = 32
        bodies = {who: body_of(client.keys()) for who, client in self.clients.items()}
        self.public = {
            who: Announced(*(body[at : at + size] for at in (0, size, 2 * size)))
            for who, body in bodies.items()
        }

    def rosters(self, sets: Sets) -> None:
        for who, announced in sets.items():
            table = {other: self._shown(who, other) for other in announced if other != who}
            reply = self._send(
                who, wire.ROSTER, announced, wire.write_table(table), "shares", "announced"
            )
            if reply is not None:
                due = [other for other in self.terms.neighbours[who] if other in announced]
                self.sealed[who] = wire.read_table(body_of(reply), SEALED_BYTES, due, of="test")
        for owner, sealed in self.sealed.items():
            for holder in self.colluders & sealed.keys():
                key, public = self.secrets[holder].share_key, self.public[owner].share_key
                both = open_shares(
                    key, holder, public, owner, self.roster_digest(owner), sealed[holder]
                )
                self._learn(holder, owner, both[:32], both[32:])

    def roster_digest(self, who: int) -> bytes:
        """The digest of the roster that a client was shown."""
        return wire.roster_digest(
            {j: self._shown(who, j) for j in self.told["announced"][who]}, self.terms
        )

    def deliveries(self, sets: Sets) -> None:
        for who, sharers in sets.items():
            near = [other for other in self.terms.neighbours[who] if other in sharers]
            table = {
                other: self.sealed.get(other, {}).get(who, bytes(SEALED_BYTES)) for other in near
            }
            self._send(who, wire.DELIVERY, sharers, wire.write_table(table), "accept", "sharers")
            if who not in self.refused:
                body = body_of(self.clients[who].masked(self.inputs[who]))
                self.masked[who] = unpack_bits(body, self.terms.length, self.terms.bits)

    def survivors(self, sets: Sets) -> None:
        for who, survivors in sets.items():
            reply = self._send(who, wire.SURVIVORS, survivors, b"", "agree", "survivors")
            if reply is not None:
                self.tags[who] = wire.read_table(body_of(reply), 16, survivors - {who}, of="test")

    def requests(self, senders: Sets | None = None, *, sent_back: bool = False) -> frozenset[int]:
        """Ask each client for its shares, with all tags there are. Returns who answered.

        Colluders make tags that fit. Where a client gave none, or always if they are ``sent_back``,
        the server takes the receiver's own tag for it.
        """
        answered = set()
        for who, survivors in self.told["survivors"].items():
            among = survivors if senders is None else senders[who]
            fitting = wire.sets_digest(
                self.roster_digest(who), self.told["sharers"][who], survivors, self.terms
            )
            table = {
                other: self._tag(other, who, fitting, sent_back) for other in among if other != who
            }
            message = wire.write_set(among, self.terms) + wire.write_table(table)
            try:
                reply = self.clients[who].unmask(wire.write(wire.REQUEST, who, self.terms, message))
            except SecureSumError as error:
                self.refused[who] = str(error)
                continue
            answered.add(who)
            self._read_answer(who, body_of(reply))
        return frozenset(answered)

    def known(self, kind: str, owner: int) -> bytes | None:
        """A secret that the coalition can put together, checked against what its owner
        announced.
        """
        if owner in self.colluders:
            secret = self.secrets[owner]
            return secret.self_seed if kind == "seed" else secret.mask_secret
        shares = self.shares.get((kind, owner), {})
        if len(shares) < self.terms.plan.threshold or (kind, owner) in self.found:
            return self.found.get((kind, owner))
        secret, public = combine(shares, self.terms.plan.threshold), self.public[owner]
        if kind == "seed":
            assert commitment_to(secret, self.terms.digest, owner) == public.commitment
        else:
            assert public_bytes(private_key(secret)) == public.mask_key
        self.found[kind, owner] = secret
        return secret

    def revealed(self) -> list[frozenset[int]]:
        """The groups of honest clients whose sums the coalition reads."""
        unknown = {who: self._unknown(who) for who in self.masked.keys() - self.colluders}
        groups = []
        left = set(unknown)
        while left:
            group, new = set[int](), {left.pop()}
            while new:
                group |= new
                new = {b for a in new for pair in unknown[a] for b in pair if b in unknown} - group
            left -= group
            masks = Counter(mask for who in group for mask in unknown[who])
            if all(len(mask) == 2 == count for mask, count in masks.items()):
                groups.append(frozenset(group))
        return groups

    def read_sum(self, group: Iterable[int]) -> np.ndarray:
        """The sum of a group as the coalition computes it, from masked vectors and the secrets that
        it knows.
        """
        members, digest = frozenset(group), self.terms.digest
        words = np.zeros(self.terms.length, next(iter(self.masked.values())).dtype)
        for who in members:
            words += self.masked[who]
            seed, own = self.known("seed", who), self.known("key", who)
            assert seed is not None
            add_masks(words, [(seed, -1)])
            for other in self._near(who):
                ends = [(own, who, other), (self.known("key", other), other, who)]
                if other in self.replaced.get(who, ()):
                    ends = [(old_key(other), other, who)]
                (key, holder, far), *_ = [end for end in ends if end[0] is not None] or [
                    (None, 0, 0)
                ]
                if key is not None:
                    private = private_key(key)
                    seed = pair_seed(private, holder, self.public[far].mask_key, far, digest)
                    add_masks(words, [(seed, -sign(who, other))])
        return clear(words, self.terms.bits)

    def sum_of(self, group: Iterable[int]) -> np.ndarray:
        """The true sum."""
        words = np.sum([self.inputs[who] for who in group], axis=0).astype(
            next(iter(self.masked.values())).dtype
        )
        return clear(words, self.terms.bits)

    def _near(self, who: int) -> list[int]:
        """Whose pair masks are in the vector of a client."""
        return [other for other in self.terms.neighbours[who] if other in self.told["sharers"][who]]

    def _unknown(self, who: int) -> list[frozenset[int]]:
        """The masks of a client that the coalition does not know: its own as {who}, a pair's as
        both.

        A pair's where the other one was shown an old key, and has another mask, counts as its own.
        """
        own = [frozenset({who})] if self.known("seed", who) is None else []
        if self.known("key", who) is not None:
            return own
        near = set(self._near(who)) - self.replaced.get(who, frozenset())
        unknown = [other for other in near if self.known("key", other) is None]
        return own + [
            frozenset({who} if who in self.replaced.get(j, ()) else {who, j}) for j in unknown
        ]

    def _shown(self, who: int, other: int) -> bytes:
        """The two public keys that a client is shown as another one's."""
        keys = self.public[other].keys
        return (
            keys[:32] + public_bytes(private_key(old_key(other)))
            if other in self.replaced.get(who, ())
            else keys
        )

    def _send(
        self, who: int, kind: int, members: frozenset[int], rest: bytes, stage: str, name: str
    ) -> bytes | None:
        if who in self.refused:
            return None
        message = wire.write(kind, who, self.terms, wire.write_set(members, self.terms) + rest)
        try:
            reply: bytes | None = getattr(self.clients[who], stage)(message)
        except SecureSumError as error:
            self.refused[who] = str(error)
            return None
        self.told[name][who] = members
        return reply

    def _tag(self, sender: int, receiver: int, sets: bytes, sent_back: bool) -> bytes:
        if sender in self.colluders:
            key, public = self.secrets[sender].share_key, self.public[receiver].share_key
            return agreement_tags(key, sender, public, receiver, self.terms.digest, sets)[0]
        given = None if sent_back else self.tags.get(sender, {}).get(receiver)
        return self.tags[receiver][sender] if given is None else given

    def _read_answer(self, who: int, body: bytes) -> None:
        survivors, sharers = self.told["survivors"][who], self.told["sharers"][who]
        near = [other for other in self.terms.holders(who) if other in sharers]
        alive = [other for other in near if other in survivors]
        cut = 32 + wire.table_bytes(len(alive), 32)
        seeds = wire.read_table(body[32:cut], 32, alive, of="test")
        keys = wire.read_table(body[cut:], 32, set(near) - survivors, of="test")
        for owner in near:
            self._learn(who, owner, seeds.get(owner), keys.get(owner))

    def _learn(self, holder: int, owner: int, seed: bytes | None, key: bytes | None) -> None:
        for kind, share in (("seed", seed), ("key", key)):
            if share is not None:
                self.shares.setdefault((kind, owner), {})[self.terms.points[holder]] = share
