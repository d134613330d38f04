"""Whole attempts: the sum is exact modulo 2^b, or the attempt is given up by name, whichever
clients drop out.
"""

import random
import struct
from collections import Counter

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from fedlsg.secure_sum import Client, GivenUp, SecureSumError, Server, Total, reproducible_root
from fedlsg.secure_sum import messages as wire
from fedlsg.secure_sum.keys import AttemptSecrets, pair_seed, public_bytes
from fedlsg.secure_sum.messages import packed_bytes
from tests.fedlsg.support.secure_rounds import (
    exact_sum,
    make_clients,
    make_terms,
    random_inputs,
    run_attempt,
)

STAGES = ("keys", "shares", "masked", "agree", "unmask")


def random_round(seed: int, most: int) -> tuple[str, int]:
    """One attempt with random terms and dropouts, checked. How it ended, and how many clients
    dropped out.
    """
    rng = random.Random(seed)
    count = 5 + int((most - 4) * rng.random() ** 3)
    colluders = rng.randint(1, 2 if count > 7 else 1)
    survivors = rng.randint((count + colluders) // 2 + 1, count)
    terms = make_terms(
        tuple(sorted(rng.sample(range(1000), count))),
        survivors=survivors,
        colluders=colluders,
        length=rng.randint(1, 40),
        bits=rng.randint(8, 64),
        attempt=seed,
    )
    rates = {stage: rng.uniform(0, 0.4) if rng.random() < 0.5 else 0.0 for stage in STAGES}
    gone = {
        (stage, who) for stage in STAGES for who in terms.clients if rng.random() < rates[stage]
    }
    inputs = random_inputs(terms, seed)
    found = run_attempt(terms, inputs, seed=seed, drop=lambda stage, who: (stage, who) in gone)
    silent: set[int] = set()
    alive = []
    for stage in STAGES:
        silent |= {who for at, who in gone if at == stage}
        alive.append(count - len(silent))
    if isinstance(found.outcome, GivenUp):
        stage = STAGES.index(found.outcome.stage)
        if stage < 4:
            assert alive[stage] < survivors <= (alive[stage - 1] if stage else count)
            assert not found.answers
        else:
            assert alive[4] < survivors
        with pytest.raises(SecureSumError, match="given up"):
            found.server.total([])
        return found.outcome.stage, len(silent)
    assert found.outcome.survivors == frozenset(found.masked)
    assert found.outcome.values.tolist() == exact_sum(inputs, found.outcome.survivors, terms.bits)
    assert found.outcome.values.dtype == np.uint64
    assert not found.server.refused
    return "sum" if not silent else "sum after dropouts", len(silent)


def check_rounds(rounds: int, most: int) -> Counter[str]:
    ended = [random_round(seed, most) for seed in range(rounds)]
    return Counter(end for end, _ in ended)


@pytest.mark.slow
def test_two_hundred_rounds_with_dropouts_at_each_stage():
    """Also: as many dropouts as planned never end an attempt (alive < survivors above, whenever one
    is given up).
    """
    ended = check_rounds(200, 30)
    assert ended["sum after dropouts"] >= 25
    assert all(ended[stage] >= 5 for stage in STAGES), ended


@pytest.mark.parametrize("stage", STAGES)
def test_the_planned_dropouts_are_recovered_at_each_stage(stage):
    """K = 9, m = 6: any three may go."""
    terms = make_terms(9, survivors=6, colluders=2)
    inputs, gone = random_inputs(terms, 1), set(terms.clients[1:8:3])
    found = run_attempt(terms, inputs, drop=lambda at, who: at == stage and who in gone)
    assert isinstance(found.outcome, Total)
    left = frozenset(terms.clients) - (set() if stage in ("agree", "unmask") else gone)
    assert found.outcome.survivors == left
    assert found.outcome.values.tolist() == exact_sum(inputs, left, terms.bits)


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        ("keys", "6 clients at least, 5 of 9"),
        ("shares", "6 clients at least, 5 of 9"),
        ("masked", "6 clients at least, 5 of 9"),
        ("agree", "6 clients at least, 5 of 9"),
        ("unmask", "expected 6 shares at least, got 5"),
    ],
)
def test_one_more_dropout_gives_up_by_name(stage, text):
    terms = make_terms(9, survivors=6, colluders=2)
    gone = set(terms.clients[:4])
    found = run_attempt(
        terms, random_inputs(terms, 1), drop=lambda at, who: at == stage and who in gone
    )
    assert isinstance(found.outcome, GivenUp)
    assert found.outcome.stage == stage
    assert text in str(found.outcome)
    assert bool(found.answers) == (stage == "unmask")


@pytest.mark.parametrize("bits", [8, 16, 33, 64])
def test_sums_by_hand_wrap(bits):
    terms = make_terms(3, survivors=3, colluders=1, length=3, bits=bits)
    top = 2 ** (bits - 1)
    kind = np.uint64 if bits == 64 else np.int64
    inputs = {who: np.array([top, 1, top - 1], kind) for who in terms.clients}
    found = run_attempt(terms, inputs)
    assert isinstance(found.outcome, Total)
    assert found.outcome.values.tolist() == [top, 3, (3 * top - 3) % 2**bits]


def test_a_masked_vector_by_hand():
    """Oracle: key streams and signs in Python's integers. A neighbour that sent no shares has no
    mask in it.
    """
    terms = make_terms(6, survivors=4, colluders=1, length=9, bits=13)
    inputs, gone, who = random_inputs(terms, 0), 25, 16
    found = run_attempt(
        terms, inputs, drop=lambda stage, client: (stage, client) == ("shares", gone)
    )
    secrets = {
        client: AttemptSecrets(reproducible_root(0, client), terms.digest, client)
        for client in terms.clients
    }

    def stream(seed: bytes) -> tuple[int, ...]:
        return struct.unpack(
            "<9H",
            Cipher(algorithms.ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(18)),
        )

    wanted = [
        int(x) + mask for x, mask in zip(inputs[who], stream(secrets[who].self_seed), strict=True)
    ]
    for other in set(terms.neighbours[who]) - {gone}:
        own, key = secrets[who].mask_key, public_bytes(secrets[other].mask_key)
        masks = stream(pair_seed(own, who, key, other, terms.digest))
        wanted = [
            y + (mask if who < other else -mask) for y, mask in zip(wanted, masks, strict=True)
        ]
    number = int.from_bytes(found.masked[who][wire.HEADER.size : -wire.CHECKSUM_BYTES], "little")
    assert [number >> 13 * at & 0x1FFF for at in range(9)] == [y % 2**13 for y in wanted]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("survivors", [50, 40, 30])
def test_keys_and_shares_of_fifty_clients_take_less_than_ten_kilobytes(survivors):
    """At survivors = 30 and nine colluders the graph is complete: no plan takes more."""
    terms = make_terms(50, survivors=survivors, colluders=9, length=1, bits=8)
    found = run_attempt(terms, random_inputs(terms, 0))
    sizes = [len(answer) for _, answer in found.clients[terms.clients[7]]._answers]
    assert sum(sizes) - packed_bytes(1, 8) < 7500


def test_a_masked_vector_that_comes_after_the_set_is_fixed_is_not_added():
    terms = make_terms(6, survivors=4)
    found = run_attempt(terms, random_inputs(terms, 0), drop=lambda s, w: (s, w) == ("masked", 13))
    with pytest.raises(SecureSumError, match="masked: out of order"):
        found.server.survivors([(13, b"")])


TERMS = make_terms(6, survivors=5, colluders=1)


def again(client: Client) -> Client:
    return Client.restore(client.terms, client.client, client.export())


def test_clients_restored_before_every_stage_end_with_the_same_messages():
    inputs = random_inputs(TERMS, 0)
    wanted = run_attempt(TERMS, inputs)
    clients = {who: again(client) for who, client in make_clients(TERMS).items()}
    server = Server(TERMS)
    sent = server.rosters([(who, client.keys()) for who, client in clients.items()])
    clients = {who: again(client) for who, client in clients.items()}
    sent = server.deliveries([(who, clients[who].shares(m)) for who, m in sent.items()])  # type: ignore[union-attr]
    clients = {who: again(client) for who, client in clients.items()}
    for who, message in sent.items():  # type: ignore[union-attr]
        clients[who].accept(message)
    clients = {who: again(client) for who, client in clients.items()}
    masked = {who: client.masked(inputs[who]) for who, client in clients.items()}
    assert masked == wanted.masked
    clients = {who: again(client) for who, client in clients.items()}
    assert {who: client.masked(inputs[who] + 1) for who, client in clients.items()} == masked
    told = server.survivors(masked.items())
    tags = {who: clients[who].agree(m) for who, m in told.items()}  # type: ignore[union-attr]
    clients = {who: again(client) for who, client in clients.items()}
    assert {who: clients[who].agree(m) for who, m in told.items()} == tags  # type: ignore[union-attr]
    requests = server.requests(tags.items())
    answers = {who: clients[who].unmask(m) for who, m in requests.items()}  # type: ignore[union-attr]
    assert answers == wanted.answers
    for who, client in clients.items():
        done = again(client)
        assert done.stage == "done"
        assert done.unmask(requests[who]) == answers[who]  # type: ignore[index]
        with pytest.raises(SecureSumError, match="has answered another message"):
            done.unmask(answers[who])
        with pytest.raises(SecureSumError, match="forgotten"):
            done._secret  # noqa: B018


def test_after_the_answer_no_secret_is_in_the_store():
    found = run_attempt(TERMS, {who: np.zeros(8, int) for who in TERMS.clients})
    before = make_clients(TERMS)[10]
    root = before._root
    assert root is not None
    assert root in before.export()
    assert root not in found.clients[10].export()


@pytest.mark.parametrize("spoil", ["terms", "client", "bit", "short", "empty"])
def test_another_store_is_refused(spoil):
    stored = make_clients(TERMS)[10].export()
    terms, who = TERMS, 10
    if spoil == "terms":
        terms = make_terms(6, survivors=5, colluders=1, attempt=1)
    elif spoil == "client":
        who = 13
    elif spoil == "bit":
        stored = stored[:50] + bytes([stored[50] ^ 1]) + stored[51:]
    else:
        stored = stored[:20] if spoil == "short" else b""
    with pytest.raises(SecureSumError, match="stored state"):
        Client.restore(terms, who, stored)
