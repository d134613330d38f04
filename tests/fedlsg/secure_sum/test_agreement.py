"""Tags that say what a client was told: only those of m survivors over the same sets open its shares."""

from collections.abc import Collection, Mapping

import pytest

from fedlsg.secure_sum import SecureSumError
from fedlsg.secure_sum import messages as wire
from fedlsg.secure_sum.keys import TAG_BYTES
from tests.fedlsg.support.secure_rounds import body_of, make_terms
from tests.fedlsg.support.secure_session import EVERYONE, OTHER, WHO, Session, told, told_of


def with_tags(
    session: Session, request: bytes, senders: Collection[int], tags: Mapping[int, bytes] | None = None
) -> bytes:
    """The request with tags of these senders alone; some of them changed."""
    body, size = body_of(request), wire.set_bytes(session.terms)
    table = wire.read_table(body[size:], TAG_BYTES, EVERYONE - {WHO}, of="test")
    table = {who: tag for who, tag in table.items() if who in senders} | dict(tags or {})
    return wire.write(
        wire.REQUEST, WHO, session.terms, wire.write_set(senders, session.terms) + wire.write_table(table)
    )


def test_a_request_needs_the_tags_of_m_survivors():
    """m = 7 of 8: one tag may be missing or wrong, two may not."""
    session = Session()
    request, client = session.requests()[WHO], session.clients[WHO]
    with pytest.raises(SecureSumError, match="request: expected 7 clients at least, got 6"):
        client.unmask(with_tags(session, request, EVERYONE - {OTHER, 16}))
    with pytest.raises(SecureSumError, match="expected 7 clients that were told the same sets and keys, got 6"):
        client.unmask(with_tags(session, request, EVERYONE, {OTHER: bytes(16), 16: bytes(16)}))
    with pytest.raises(SecureSumError, match="expected 7 clients that were told the same sets and keys, got 6"):
        client.unmask(with_tags(session, request, EVERYONE - {OTHER}, {16: bytes(16)}))
    with pytest.raises(SecureSumError, match="expected tags of survivors, this client among them"):
        client.unmask(with_tags(session, request, EVERYONE - {WHO}))
    assert client.stage == "unmask"
    assert client.unmask(with_tags(session, request, EVERYONE, {OTHER: bytes(16)}))


def test_tags_of_clients_that_did_not_survive_are_refused():
    session = Session()
    session.masked()
    client = session.clients[WHO]
    client.agree(told_of(session, EVERYONE - {OTHER}))
    table = dict.fromkeys(EVERYONE - {WHO}, bytes(16))
    body = wire.write_set(EVERYONE, session.terms) + wire.write_table(table)
    with pytest.raises(SecureSumError, match="expected tags of survivors"):
        client.unmask(wire.write(wire.REQUEST, WHO, session.terms, body))


def test_a_tag_that_is_sent_back_or_to_another_client_does_not_count():
    session = Session()
    tags = {who: session.clients[who].agree(message) for who, message in session.survivors().items()}
    request = told(session.server.requests(tags.items()))[WHO]
    own = wire.read_table(body_of(tags[WHO]), TAG_BYTES, EVERYONE - {WHO}, of="test")
    others = wire.read_table(body_of(tags[OTHER]), TAG_BYTES, EVERYONE - {OTHER}, of="test")
    for wrong in ({who: own[who] for who in (OTHER, 16)}, {OTHER: others[16], 16: others[19]}):
        with pytest.raises(SecureSumError, match="told the same sets and keys, got 6"):
            session.clients[WHO].unmask(with_tags(session, request, EVERYONE, wrong))


def test_tags_are_over_keys_and_each_of_the_sets_and_the_terms():
    everyone = tuple(sorted(EVERYONE))
    keys = {who: bytes([who]) * 64 for who in everyone}
    one, other = (make_terms(8, survivors=7, attempt=attempt) for attempt in (0, 1))
    fewer = {who: keys[who] for who in everyone[1:]}
    other_share, other_mask = keys | {OTHER: b"s" + keys[OTHER][1:]}, keys | {OTHER: keys[OTHER][:-1] + b"m"}
    rosters = [wire.roster_digest(known, one) for known in (keys, fewer, other_share, other_mask)]
    rosters.append(wire.roster_digest(keys, other))
    digests = [wire.sets_digest(roster, everyone, everyone, one) for roster in rosters]
    digests += [wire.sets_digest(rosters[0], everyone[1:], everyone, one)]
    digests += [wire.sets_digest(rosters[0], everyone, everyone[1:], one)]
    digests += [wire.sets_digest(rosters[0], everyone, everyone, other)]
    assert len({*digests}) == len(digests) == 8
    assert wire.roster_digest(dict(reversed(keys.items())), one) == rosters[0], "the order of keys does not matter"
