"""Planted mistakes of the protocol, each caught; tags open shares for m survivors over the same
sets alone.
"""

from collections.abc import Collection, Mapping

import numpy as np
import pytest

from fedlsg.secure_sum import SecureSumError, Terms, Total, keys, reproducible_root
from fedlsg.secure_sum import client_attempt as client_file
from fedlsg.secure_sum import messages as wire
from fedlsg.secure_sum.keys import (
    TAG_BYTES,
    AttemptSecrets,
    add_masks,
    clear,
    pair_seed,
    public_bytes,
    reduced,
    sign,
)
from fedlsg.secure_sum.messages import unpack_bits
from tests.fedlsg.support.secure_rounds import (
    body_of,
    exact_sum,
    make_terms,
    random_inputs,
    run_attempt,
)
from tests.fedlsg.support.secure_session import EVERYONE, OTHER, WHO, Session, told, told_of

TERMS = make_terms(5, survivors=4, colluders=1, length=64)
INPUTS = random_inputs(TERMS, 0)


def sum_is_exact() -> bool:
    found = run_attempt(
        TERMS, INPUTS, drop=lambda stage, who: stage == "unmask" and who == 10
    ).outcome
    return isinstance(found, Total) and found.values.tolist() == exact_sum(
        INPUTS, found.survivors, TERMS.bits
    )


def vector(message: bytes, terms: Terms) -> np.ndarray:
    return unpack_bits(message[wire.HEADER.size : -wire.CHECKSUM_BYTES], terms.length, terms.bits)


def late_vector_shows_the_input() -> bool:
    """A client is counted as absent, its mask key is put together, and its masked vector comes
    after all.
    """
    words = vector(run_attempt(TERMS, INPUTS).masked[10], TERMS).copy()
    secrets = {
        who: AttemptSecrets(reproducible_root(0, who), TERMS.digest, who) for who in TERMS.clients
    }
    others = TERMS.neighbours[10]
    pairs = [
        pair_seed(secrets[10].mask_key, 10, public_bytes(secrets[j].mask_key), j, TERMS.digest)
        for j in others
    ]
    add_masks(words, [(seed, -sign(10, j)) for seed, j in zip(pairs, others, strict=True)])
    return np.array_equal(clear(words, TERMS.bits), reduced(INPUTS[10], TERMS.bits))


def masks_repeat(one: Terms, two: Terms) -> bool:
    """Whether the difference of two masked vectors is that of their inputs."""
    inputs = random_inputs(one, 1), random_inputs(two, 2)
    y = [vector(run_attempt(t, x).masked[10], t) for t, x in zip((one, two), inputs, strict=True)]
    x = [reduced(values[10], one.bits) for values in inputs]
    return np.array_equal(y[0] - y[1], x[0] - x[1])


def test_the_honest_protocol_passes_all_checks():
    assert sum_is_exact()
    assert not late_vector_shows_the_input()
    assert not masks_repeat(TERMS, make_terms(5, survivors=4, colluders=1, length=64, attempt=1))


def forget_self_mask(words, seeds) -> None:
    """The first call of a client is that of its self-mask."""
    if not isinstance(seeds, list):
        add_masks(words, seeds)


def test_a_forgotten_self_mask_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client_file, "add_masks", forget_self_mask)
    assert not sum_is_exact()
    assert late_vector_shows_the_input()


def test_equal_signs_are_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client_file, "sign", lambda own, other: 1)
    assert not sum_is_exact()


def test_one_mask_in_two_attempts_is_caught(monkeypatch: pytest.MonkeyPatch):
    """Keys that do not bind the attempt."""
    monkeypatch.setattr(Terms, "digest", bytes(32))
    one, two = (
        make_terms(5, survivors=4, colluders=1, length=64, attempt=attempt) for attempt in (0, 1)
    )
    assert masks_repeat(one, two)


def test_a_seed_folded_to_32_bits_is_caught(monkeypatch: pytest.MonkeyPatch):
    honest = keys.pair_seed
    monkeypatch.setattr(client_file, "pair_seed", lambda *about: honest(*about)[:4])
    with pytest.raises(ValueError, match="seed of 32 bytes, got 4"):
        sum_is_exact()


def with_tags(
    session: Session,
    request: bytes,
    senders: Collection[int],
    tags: Mapping[int, bytes] | None = None,
) -> bytes:
    """The request with tags of these senders alone; some of them changed."""
    body, size = body_of(request), wire.set_bytes(session.terms)
    table = wire.read_table(body[size:], TAG_BYTES, EVERYONE - {WHO}, of="test")
    table = {who: tag for who, tag in table.items() if who in senders} | dict(tags or {})
    return wire.write(
        wire.REQUEST,
        WHO,
        session.terms,
        wire.write_set(senders, session.terms) + wire.write_table(table),
    )


def test_a_request_needs_the_tags_of_m_survivors():
    """m = 7 of 8: one tag may be missing or wrong, two may not."""
    session = Session()
    request, client = session.requests()[WHO], session.clients[WHO]
    with pytest.raises(SecureSumError, match="request: expected 7 clients at least, got 6"):
        client.unmask(with_tags(session, request, EVERYONE - {OTHER, 16}))
    with pytest.raises(
        SecureSumError, match="expected 7 clients that were told the same sets and keys, got 6"
    ):
        client.unmask(with_tags(session, request, EVERYONE, {OTHER: bytes(16), 16: bytes(16)}))
    with pytest.raises(
        SecureSumError, match="expected 7 clients that were told the same sets and keys, got 6"
    ):
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
    tags = {
        who: session.clients[who].agree(message) for who, message in session.survivors().items()
    }
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
    other_share = keys | {OTHER: b"s" + keys[OTHER][1:]}
    other_mask = keys | {OTHER: keys[OTHER][:-1] + b"m"}
    rosters = [wire.roster_digest(known, one) for known in (keys, fewer, other_share, other_mask)]
    rosters.append(wire.roster_digest(keys, other))
    digests = [wire.sets_digest(roster, everyone, everyone, one) for roster in rosters]
    digests += [wire.sets_digest(rosters[0], everyone[1:], everyone, one)]
    digests += [wire.sets_digest(rosters[0], everyone, everyone[1:], one)]
    digests += [wire.sets_digest(rosters[0], everyone, everyone, other)]
    assert len({*digests}) == len(digests) == 8
    assert wire.roster_digest(dict(reversed(keys.items())), one) == rosters[0], (
        "the order of keys does not matter"
    )
