"""What each side can see of the other's mistakes or lies is refused by name, and nothing leaves."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

from fedlsg.secure_sum import GivenUp, SecureSumError, reproducible_root
from fedlsg.secure_sum import messages as wire
from fedlsg.secure_sum.keys import SEALED_BYTES, AttemptSecrets, public_bytes
from tests.fedlsg.support.secure_rounds import body_of, make_clients, make_terms
from tests.fedlsg.support.secure_session import (
    EVERYONE,
    OTHER,
    WHO,
    Session,
    told,
    told_of,
    with_table,
)


def test_stages_out_of_order_are_refused():
    client = make_clients(make_terms())[WHO]
    for step in (client.shares, client.accept, client.agree, client.unmask):
        with pytest.raises(SecureSumError, match="out of order, the next stage is keys"):
            step(b"")
    with pytest.raises(SecureSumError, match="expected a delivery before the values"):
        client.masked(np.zeros(8, int))
    client.keys()
    with pytest.raises(SecureSumError, match="unmask: out of order, the next stage is shares"):
        client.unmask(b"")
    session = Session()
    session.masked()
    with pytest.raises(SecureSumError, match="unmask: out of order, the next stage is agree"):
        session.clients[WHO].unmask(b"")


def test_a_repeated_message_gets_the_stored_answer_and_another_one_is_refused():
    session = Session()
    client = session.clients[WHO]
    assert client.keys() == client.keys()
    rosters = session.rosters()
    shares = client.shares(rosters[WHO])
    assert client.shares(rosters[WHO]) == shares
    other = wire.write(wire.ROSTER, WHO, session.terms, body_of(rosters[WHO])[:-1] + b"\0")
    with pytest.raises(SecureSumError, match="shares: this attempt has answered another message"):
        client.shares(other)
    session = Session()
    client, masked = session.clients[WHO], session.masked()
    assert client.masked(session.inputs[WHO] + 1) == masked[WHO]
    survivors = told(session.server.survivors(masked.items()))
    tags = {who: session.clients[who].agree(message) for who, message in survivors.items()}
    assert client.agree(survivors[WHO]) == tags[WHO]
    with pytest.raises(SecureSumError, match="agree: this attempt has answered another message"):
        client.agree(told_of(session, set(session.terms.clients) - {OTHER}))
    requests = told(session.server.requests(tags.items()))
    answer = client.unmask(requests[WHO])
    assert client.unmask(requests[WHO]) == answer
    with pytest.raises(SecureSumError, match="unmask: this attempt has answered another message"):
        client.unmask(requests[OTHER])
    with pytest.raises(SecureSumError, match="agree: this attempt has answered another message"):
        client.agree(told_of(session, set(session.terms.clients) - {OTHER}))
    assert client.masked(session.inputs[WHO] + 2) == masked[WHO]
    assert client.stage == "done"


def test_messages_of_another_attempt_are_refused():
    old, new = Session(), Session(make_terms(8, survivors=7, colluders=1, attempt=1))
    rosters = old.rosters()
    new.clients[WHO].keys()
    with pytest.raises(SecureSumError, match="roster: expected digest of the terms"):
        new.clients[WHO].shares(rosters[WHO])
    told(new.server.rosters((w, c.keys()) for w, c in new.clients.items()))
    sent = new.server.deliveries([(w, old.clients[w].shares(m)) for w, m in rosters.items()])
    assert isinstance(sent, GivenUp)
    assert "digest of the terms" in new.server.refused[WHO]


@pytest.mark.parametrize("stranger", [7, WHO])
def test_a_roster_with_keys_of_others_than_its_clients_is_refused(stranger):
    session = Session()
    roster = session.rosters()[WHO]
    spoilt = with_table(
        session, roster, wire.ROSTER, lambda t: t.update({stranger: t.pop(OTHER)}), 64
    )
    with pytest.raises(SecureSumError, match=f"client {stranger} is not expected here"):
        session.clients[WHO].shares(spoilt)


def test_a_delivery_from_a_client_that_is_no_neighbour_is_refused():
    session = Session()
    delivery, near = session.deliveries()[WHO], session.terms.neighbours[WHO]
    far = next(c for c in session.terms.clients if c not in (*near, WHO))
    spoilt = with_table(
        session, delivery, wire.DELIVERY, lambda t: t.update({far: t.pop(near[0])}), SEALED_BYTES
    )
    with pytest.raises(SecureSumError, match=f"client {far} is not expected here"):
        session.clients[WHO].accept(spoilt)


def test_a_roster_without_a_client_or_with_one_twice_is_refused():
    session = Session()
    roster, near = session.rosters()[WHO], session.terms.neighbours[WHO]
    with pytest.raises(SecureSumError, match="roster: expected 7 entries"):
        session.clients[WHO].shares(
            with_table(session, roster, wire.ROSTER, lambda t: t.pop(near[0]), 64)
        )
    body, size = bytearray(body_of(roster)), wire.set_bytes(session.terms)
    body[size + 2 + 68 : size + 6 + 68] = body[size + 2 : size + 6]
    with pytest.raises(SecureSumError, match="without repeats"):
        session.clients[WHO].shares(wire.write(wire.ROSTER, WHO, session.terms, bytes(body)))


@pytest.mark.parametrize("key", ["small order", "repeated", "own"])
def test_bad_public_keys_are_refused_by_client_and_server(key):
    session = Session()
    roster, near = session.rosters()[WHO], session.terms.neighbours[WHO]
    own = AttemptSecrets(reproducible_root(0, WHO), session.terms.digest, WHO)

    def spoil(table: dict[int, bytes]) -> None:
        bad = {
            "small order": bytes(32),
            "repeated": table[near[1]][:32],
            "own": public_bytes(own.mask_key),
        }[key]
        table[near[0]] = table[near[0]][:32] + bad

    with pytest.raises(SecureSumError, match="public key"):
        session.clients[WHO].shares(with_table(session, roster, wire.ROSTER, spoil, 64))
    again = Session()
    keys = {who: client.keys() for who, client in again.clients.items()}
    bad = bytes(32) if key == "small order" else body_of(keys[OTHER])[:32]
    keys[WHO] = wire.write(wire.KEYS, WHO, again.terms, bad + body_of(keys[WHO])[32:])
    told(again.server.rosters(reversed(keys.items())))
    assert "public key" in again.server.refused[WHO]


@pytest.mark.parametrize("place", [0, 40, SEALED_BYTES - 1])
def test_an_altered_ciphertext_is_refused(place):
    session = Session()
    delivery, sender = session.deliveries()[WHO], session.terms.neighbours[WHO][0]

    def spoil(table: dict[int, bytes]) -> None:
        text = bytearray(table[sender])
        text[place] ^= 1
        table[sender] = bytes(text)

    spoilt = with_table(session, delivery, wire.DELIVERY, spoil, SEALED_BYTES)
    with pytest.raises(
        SecureSumError, match=f"shares of client {sender} for client {WHO}: altered"
    ):
        session.clients[WHO].accept(spoilt)
    session.clients[WHO].accept(delivery)


def test_shares_of_another_sender_or_receiver_are_refused():
    session = Session()
    deliveries = session.deliveries()
    one, two = session.terms.neighbours[WHO][:2]

    def swap(table: dict[int, bytes]) -> None:
        table[one], table[two] = table[two], table[one]

    with pytest.raises(SecureSumError, match="altered"):
        session.clients[WHO].accept(
            with_table(session, deliveries[WHO], wire.DELIVERY, swap, SEALED_BYTES)
        )


@pytest.mark.parametrize(
    ("survivors", "bits", "text"),
    [
        (EVERYONE - {WHO}, 0, "client 10 itself is missing"),
        (set(sorted(EVERYONE)[:6]), 0, "expected 7 clients at least, got 6"),
        (set(), 0, "expected 7 clients at least, got 0"),
    ],
)
def test_survivors_that_a_client_can_refuse(survivors, bits, text):
    session = Session()
    session.masked()
    with pytest.raises(SecureSumError, match=text):
        session.clients[WHO].agree(told_of(session, survivors, bits=bits))


def test_survivors_that_are_unknown_or_sent_no_shares_are_refused():
    terms = make_terms(7, survivors=5, colluders=1)
    session = Session(terms)
    rosters = session.rosters()
    gone = terms.clients[-1]
    sent = told(
        session.server.deliveries(
            [(w, session.clients[w].shares(m)) for w, m in rosters.items() if w != gone]
        )
    )
    for who, delivery in sent.items():
        session.clients[who].accept(delivery)
        session.clients[who].masked(session.inputs[who])
    client = session.clients[WHO]
    with pytest.raises(SecureSumError, match="survivors: expected clients that sent shares"):
        client.agree(told_of(session, set(terms.clients)))
    with pytest.raises(SecureSumError, match="bits of unknown"):
        client.agree(told_of(session, set(sent), bits=1 << 7))
    assert client.agree(told_of(session, set(sent)))


def test_a_thin_neighbourhood_is_refused_by_itself():
    """Behind the check of m, which implies it for the plans of ``plan_graph``."""
    session = Session(make_terms(8, survivors=7, colluders=1))
    near = session.terms.neighbours[WHO]
    everyone = frozenset(session.terms.clients)
    with pytest.raises(
        SecureSumError, match="survivors: expected 3 of the neighbourhood of client 10, got 2"
    ):
        session.clients[WHO]._near(everyone - set(near[:2]), "survivors")
    assert session.server._too_few(everyone) == ""
    object.__setattr__(session.terms, "min_survivors", 2)
    assert "fewer than 3 of the neighbourhood of client" in session.server._too_few(
        everyone - set(near[:2])
    )


def test_never_both_secrets_of_one_neighbour():
    """A second message counts a neighbour as absent; over all of them one share of each neighbour
    is given.
    """
    session = Session()
    requests = session.requests()
    client = session.clients[WHO]
    answer = client.unmask(requests[WHO])
    with pytest.raises(SecureSumError, match="has answered another message"):
        client.agree(told_of(session, EVERYONE - {OTHER}))
    body = body_of(answer)
    seeds, keys = len(session.terms.holders(WHO)), 0
    assert len(body) == 32 + wire.table_bytes(seeds, 32) + wire.table_bytes(keys, 32)
    assert (client._held, client._seeds, client._due, client._secrets) == ({}, {}, {}, None)


@pytest.mark.parametrize(
    "change",
    [
        {"run": bytes(31)},
        {"round": -1},
        {"attempt": 2**64},
        {"bits": 7},
        {"bits": 65},
        {"length": 0},
        {"clients": (2, 1, 3)},
        {"clients": (1, 1, 3)},
        {"clients": ()},
        {"clients": (1, 2, 2**32)},
        {"colluders": 5},
    ],
)
def test_terms_out_of_range_are_refused(change):
    with pytest.raises(ValueError, match="expected"):
        replace(make_terms(), **change)


@pytest.mark.parametrize(
    "change",
    [
        {"run": bytes(32)},
        {"round": 9},
        {"attempt": 9},
        {"bits": 17},
        {"length": 9},
        {"clients": (1, 2, 3, 4, 5, 6)},
        {"min_survivors": 6},
        {"colluders": 2},
    ],
)
def test_every_term_is_in_the_digest(change):
    assert replace(make_terms(), **change).digest != make_terms().digest


@pytest.mark.parametrize("escape", [pickle.dumps, copy.copy, copy.deepcopy])
def test_secrets_reach_no_checkpoint(escape):
    client = make_clients(make_terms())[WHO]
    for thing in (client, AttemptSecrets(bytes(32), bytes(32), 1)):
        with pytest.raises(TypeError, match="cannot be pickled"):
            escape(thing)
        assert bytes(32).hex() not in repr(thing)
