"""What the server of a secure sum can see of clients' mistakes or lies is refused by name; the
others go on.
"""

import pytest

from fedlsg.secure_sum import GivenUp, SecureSumError, Total
from fedlsg.secure_sum import messages as wire
from fedlsg.secure_sum.keys import SEALED_BYTES, SHARE_BYTES, TAG_BYTES, seal_shares
from tests.fedlsg.support.secure_rounds import body_of, exact_sum, make_terms
from tests.fedlsg.support.secure_session import EVERYONE, OTHER, WHO, Session, told


def test_a_client_that_lies_about_its_neighbours_is_refused():
    terms = make_terms(8, survivors=7, colluders=1)
    assert terms.plan.degree < 7
    session = Session(terms)
    shares = {who: session.clients[who].shares(roster) for who, roster in session.rosters().items()}
    near = terms.neighbours[WHO]
    far = next(c for c in terms.clients if c not in (*near, WHO))
    table = wire.read_table(body_of(shares[WHO]), SEALED_BYTES, near, of="test")
    table[far] = table.pop(near[0])
    shares[WHO] = wire.write(wire.SHARES, WHO, terms, wire.write_table(table))
    told(session.server.deliveries(shares.items()))
    assert f"client {far} is not expected here: no neighbour" in session.server.refused[WHO]


def test_second_and_unexpected_messages_are_refused():
    session = Session()
    keys = [(who, client.keys()) for who, client in session.clients.items()]
    told(session.server.rosters([*keys[1:], keys[1], (99, b"")]))
    assert "a second one" in session.server.refused[keys[1][0]]
    told(
        session.server.deliveries(
            [(keys[0][0], b"")]
            + [(w, session.clients[w].shares(m)) for w, m in session.server.sent.items()]
        )
    )
    assert "after a dropout" in session.server.refused[keys[0][0]]


def test_tags_that_are_not_for_all_other_survivors_are_refused():
    session = Session()
    tags = {
        who: session.clients[who].agree(message) for who, message in session.survivors().items()
    }
    table = wire.read_table(body_of(tags[WHO]), TAG_BYTES, EVERYONE - {WHO}, of="test")
    table[WHO] = table.pop(OTHER)
    tags[WHO] = wire.write(wire.TAGS, WHO, session.terms, wire.write_table(table))
    requests = told(session.server.requests(tags.items()))
    assert f"client {WHO} is not expected here" in session.server.refused[WHO]
    assert set(requests) == EVERYONE - {WHO}


def test_stages_of_the_server_out_of_order_are_refused():
    session = Session()
    server = session.server
    for step in (server.deliveries, server.survivors, server.requests, server.total):
        with pytest.raises(SecureSumError, match="out of order, expected keys"):
            step([])
    session.rosters()
    with pytest.raises(SecureSumError, match="keys: out of order, expected shares"):
        session.server.rosters([])


def answers_of(session: Session, *, gone: int | None = None) -> dict[int, bytes]:
    """Everybody's answers, after one client has dropped out."""
    masked = session.masked()
    if gone is not None:
        del masked[gone]
    survivors = told(session.server.survivors(masked.items()))
    tags = {who: session.clients[who].agree(message) for who, message in survivors.items()}
    requests = told(session.server.requests(tags.items()))
    return {who: session.clients[who].unmask(request) for who, request in requests.items()}


@pytest.mark.parametrize("byte", [1, 0xFF], ids=["another share", "no number below the prime"])
@pytest.mark.parametrize("secret", ["seed", "key"])
def test_a_wrong_share_costs_its_holder_alone(secret, byte):
    terms = make_terms(6, survivors=4, colluders=1)
    session = Session(terms)
    gone = terms.clients[-1]
    answers = answers_of(session, gone=gone)
    body = bytearray(body_of(answers[WHO]))
    at = 32 + 2 + 4 if secret == "seed" else len(body) - 32
    body[at : at + 8] = (
        bytes([byte]) * 8 if byte == 0xFF else body[at : at + 7] + bytes([body[at + 7] ^ 1])
    )
    body[at : at + 32] = b"\xff" * 32 if byte == 0xFF else body[at : at + 32]
    answers[WHO] = wire.write(wire.ANSWER, WHO, terms, bytes(body))
    outcome = session.server.total(answers.items())
    assert isinstance(outcome, Total)
    assert outcome.values.tolist() == exact_sum(session.inputs, outcome.survivors, terms.bits)
    assert set(session.server.refused) <= {WHO}
    assert ("below 2^256" if byte == 0xFF else "does not fit") in session.server.refused.get(
        WHO, "does not fit"
    )


def test_two_wrong_shares_give_the_attempt_up_and_name_whose_secret_is_missing():
    terms = make_terms(6, survivors=4, colluders=1)
    session = Session(terms)
    answers = answers_of(session)
    for who in terms.clients[1:]:  # of the secrets of the first client, and others
        body = bytearray(body_of(answers[who]))
        body[32 + 2 + 4 + 5] ^= 1
        answers[who] = wire.write(wire.ANSWER, who, terms, bytes(body))
    outcome = session.server.total(answers.items())
    assert isinstance(outcome, GivenUp)
    assert outcome.owner == terms.clients[0]
    assert f"self-mask seed of client {outcome.owner}: the shares do not fit" in outcome.reason


def wrong_shares_for(session: Session, who: int, answer: bytes, owners: set[int]) -> bytes:
    """The answer of a client with other shares of the self-mask seeds of these owners."""
    near = session.terms.holders(who)
    body, size = body_of(answer), 32 + wire.table_bytes(len(near), SHARE_BYTES)
    table = wire.read_table(body[32:size], SHARE_BYTES, near, of="test")
    table |= {owner: bytes(SHARE_BYTES) for owner in owners & table.keys()}
    return wire.write(
        wire.ANSWER, who, session.terms, body[:32] + wire.write_table(table) + body[size:]
    )


@pytest.mark.parametrize("clients", [3, 4])
def test_of_shares_that_are_just_enough_one_liar_makes_nobody_guilty(clients):
    """No share is left with which to find out who lies: the owner, or a holder."""
    session = Session(make_terms(clients, survivors=3, colluders=1))
    victim, liar = session.terms.clients[:2]
    answers = answers_of(session, gone=session.terms.clients[3] if clients == 4 else None)
    table = wire.table_bytes(3, SHARE_BYTES)
    body = bytearray(body_of(answers[liar]))
    assert int.from_bytes(body[34:38], "little") == victim
    body[38:70] = bytes(SHARE_BYTES)
    assert len(body) >= 32 + table
    answers[liar] = wire.write(wire.ANSWER, liar, session.terms, bytes(body))
    outcome = session.server.total(answers.items())
    assert isinstance(outcome, GivenUp)
    assert f"client {victim}: its shares, or that of a holder, are wrong" in outcome.reason
    assert outcome.owner is None


@pytest.mark.parametrize("liar", range(5))
def test_a_liar_that_deals_a_wrong_share_and_gives_wrong_ones_changes_no_sum_and_frames_nobody(
    liar,
):
    session = Session(make_terms(5, survivors=4, colluders=1))
    terms, clients = session.terms, session.clients
    liar = terms.clients[liar]
    near, own = terms.neighbours[liar], clients[liar]
    shares = {who: clients[who].shares(roster) for who, roster in session.rosters().items()}
    table = wire.read_table(body_of(shares[liar]), SEALED_BYTES, near, of="test")
    sealed = own._secret.share_key, liar, own._public[near[0]][0], near[0], own._roster_digest
    table[near[0]] = seal_shares(*sealed, bytes(2 * SHARE_BYTES))
    shares[liar] = wire.write(wire.SHARES, liar, terms, wire.write_table(table))
    for who, delivery in told(session.server.deliveries(shares.items())).items():
        clients[who].accept(delivery)
    masked = {who: client.masked(session.inputs[who]) for who, client in clients.items()}
    survivors = told(session.server.survivors(masked.items()))
    requests = told(
        session.server.requests([(who, clients[who].agree(m)) for who, m in survivors.items()])
    )
    answers = {who: clients[who].unmask(request) for who, request in requests.items()}
    answers[liar] = wrong_shares_for(session, liar, answers[liar], set(near[1:]))
    outcome = session.server.total(answers.items())
    assert isinstance(outcome, Total)
    assert outcome.values.tolist() == exact_sum(session.inputs, outcome.survivors, terms.bits)


def test_an_answer_for_another_set_is_refused():
    session = Session()
    requests = session.requests()
    answers = {who: session.clients[who].unmask(request) for who, request in requests.items()}
    answers[WHO] = wire.write(
        wire.ANSWER, WHO, session.terms, bytes(32) + body_of(answers[WHO])[32:]
    )
    total = session.server.total(answers.items())
    assert "other sets of clients" in session.server.refused[WHO]
    assert not isinstance(total, GivenUp)
    assert total.values.tolist() == exact_sum(session.inputs, total.survivors, session.terms.bits)
