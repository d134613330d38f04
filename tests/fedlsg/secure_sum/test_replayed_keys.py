"""A server that shows one client keys of earlier attempts reads nothing: all who open, seal and tag
saw the same keys.

The attack: mask keys of clients that dropped out are put together, as they must be. In a later
attempt, where nobody drops out, one client is shown these in place of the mask keys of today, next
to the true share keys.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest

from fedlsg.secure_sum import Client, SecureSumError, Server, Terms, secret_root
from fedlsg.secure_sum import messages as wire
from fedlsg.secure_sum.keys import (
    add_masks,
    clear,
    combine,
    pair_seed,
    private_key,
    public_bytes,
    reduced,
    sign,
)
from fedlsg.secure_sum.messages import unpack_bits
from tests.fedlsg.support.secure_rounds import body_of, make_terms, random_inputs, run_attempt
from tests.fedlsg.support.secure_session import told

CLIENTS, SURVIVORS = 10, 8
TARGET = 10


def terms_of(attempt: int) -> Terms:
    return make_terms(CLIENTS, survivors=SURVIVORS, colluders=1, length=6, bits=32, attempt=attempt)


def secret_clients(terms: Terms) -> dict[int, Client]:
    return {who: Client(terms, who, secret_root()) for who in terms.clients}


def put_together(
    server: Server, answers: dict[int, bytes]
) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """The self-mask seeds of survivors, and the mask keys of clients that dropped out, as the
    server finds them.
    """
    seeds: dict[int, dict[int, bytes]] = {who: {} for who in server._survivors}
    keys: dict[int, dict[int, bytes]] = {
        who: {} for who in server._sealed if who not in server._survivors
    }
    for who, answer in answers.items():
        server._read_answer(who, answer, seeds, keys)
    need = server.terms.plan.threshold
    found, lost = (
        {who: combine(shares, need) for who, shares in known.items()} for known in (seeds, keys)
    )
    return found, lost


@pytest.fixture(scope="module")
def old_keys() -> dict[int, bytes]:
    """Mask keys of all but the target: in each attempt two others drop out, and the honest server
    finds their keys.
    """
    old: dict[int, bytes] = {}
    others = [who for who in terms_of(0).clients if who != TARGET]
    for attempt, gone in enumerate((others[at : at + 2] for at in range(0, len(others), 2)), 1):
        terms = terms_of(attempt)
        done = run_attempt(
            terms,
            random_inputs(terms, attempt),
            clients=secret_clients(terms),
            drop=lambda stage, who, gone=gone: stage == "masked" and who in gone,
        )
        old |= put_together(done.server, done.answers)[1]
    assert sorted(old) == others
    return old


@dataclass(kw_only=True)
class Attack:
    """The last attempt: everything is as it should be, but for the roster of the target."""

    old: dict[int, bytes]
    server: Server = field(default_factory=lambda: Server(terms_of(99)))
    masked: dict[int, bytes] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clients = secret_clients(self.server.terms)
        self.inputs = random_inputs(self.server.terms, 99)

    def up_to_masked(self) -> None:
        server, clients = self.server, self.clients
        rosters = told(server.rosters((who, client.keys()) for who, client in clients.items()))
        rosters[TARGET] = self.lie()
        shares = [(who, clients[who].shares(roster)) for who, roster in rosters.items()]
        for who, delivery in told(server.deliveries(shares)).items():
            try:
                clients[who].accept(delivery)
            except SecureSumError as error:
                self.refused[who] = str(error)
                continue
            self.masked[who] = clients[who].masked(self.inputs[who])

    def lie(self) -> bytes:
        """The roster with true share keys and old mask keys."""
        terms, known = self.server.terms, self.server._announced
        table = {
            who: known[who].share_key + public_bytes(private_key(key))
            for who, key in self.old.items()
        }
        return wire.write(
            wire.ROSTER,
            TARGET,
            terms,
            wire.write_set(terms.clients, terms) + wire.write_table(table),
        )

    def read_target(self) -> np.ndarray:
        """The vector of the target, from its masked one: all go on, and tag and answer as they
        should.
        """
        server, terms, clients = self.server, self.server.terms, self.clients
        survivors = told(server.survivors(self.masked.items()))
        requests = told(
            server.requests([(who, clients[who].agree(text)) for who, text in survivors.items()])
        )
        answers = {who: clients[who].unmask(request) for who, request in requests.items()}
        seed, mine = put_together(server, answers)[0][TARGET], server._announced[TARGET].mask_key
        words = unpack_bits(body_of(self.masked[TARGET]), terms.length, terms.bits).copy()
        pairs = {who: private_key(self.old[who]) for who in terms.neighbours[TARGET]}
        seeds = [
            (pair_seed(key, who, mine, TARGET, terms.digest), -sign(TARGET, who))
            for who, key in pairs.items()
        ]
        add_masks(words, [(seed, -1), *seeds])
        return clear(words, terms.bits)


def only_clients(keys: dict[int, bytes], terms: Terms) -> bytes:
    """The planted mistake: a digest that says who announced keys, and not which."""
    return wire.write_set(keys, terms)


def test_keys_of_earlier_attempts_are_refused_before_values_and_read_a_vector_without_the_digest(
    old_keys, monkeypatch
):
    attack = Attack(old=old_keys)
    attack.up_to_masked()
    near = attack.server.terms.neighbours[TARGET]
    assert attack.refused.keys() == {TARGET, *near}, "nobody opens shares across the two rosters"
    assert "by a client that was shown other keys" in attack.refused[TARGET]
    assert attack.clients[TARGET].stage == "masked"
    assert TARGET not in attack.masked

    monkeypatch.setattr(wire, "roster_digest", only_clients)
    attack = Attack(old=old_keys)
    attack.up_to_masked()
    assert not attack.refused
    assert np.array_equal(
        attack.read_target(), reduced(attack.inputs[TARGET], attack.server.terms.bits)
    )


def test_tags_alone_stop_the_attack_too(old_keys, monkeypatch):
    """Shares that anybody opens: then the target's tags fit nobody else's, and it gives no
    share.
    """
    real = wire.roster_digest
    attack = Attack(old=old_keys)
    with monkeypatch.context() as patch:
        patch.setattr(wire, "roster_digest", only_clients)
        attack.up_to_masked()
    assert not attack.refused
    for client in attack.clients.values():
        known = {who: share + mask for who, (share, mask) in client._public.items()}
        client._roster_digest = real(known, attack.server.terms)
    with pytest.raises(
        SecureSumError, match="expected 8 clients that were told the same sets and keys, got 1"
    ):
        attack.read_target()
