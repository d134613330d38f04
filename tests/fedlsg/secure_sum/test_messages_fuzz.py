"""Random, damaged and resealed bytes on every parser: nothing but SecureSumError, no change of
state, no memory.
"""

import copy
import hashlib
import random
import struct
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from fedlsg.secure_sum import Client, GivenUp, SecureSumError, Server, Terms
from fedlsg.secure_sum import messages as wire
from tests.fedlsg.support.secure_rounds import make_clients, make_terms

TERMS = make_terms(7, survivors=5, colluders=1, length=20, bits=13)
WHO = 10


def damaged(message: bytes, rng: random.Random) -> bytes:
    """One of many ways to spoil bytes; most of them are sealed again, so that the parser behind is
    reached.
    """
    data = bytearray(message)
    low = wire.HEADER.size if rng.random() < 0.8 else 0
    place = rng.randrange(low, len(data))
    match rng.randrange(7):
        case 0:
            data = data[:place]
        case 1:
            data += rng.randbytes(rng.randrange(1, 100))
        case 2:
            for _ in range(rng.randrange(1, 5)):
                data[rng.randrange(low, len(data))] ^= 1 << rng.randrange(8)
        case 3:
            data[place : place + 2] = struct.pack(
                "<H", rng.choice([0, 1, 5, 2**16 - 1, rng.getrandbits(16)])
            )
        case 4:
            data[place : place + 4] = struct.pack(
                "<I", rng.choice([10, 13, 16, 28, 2**32 - 1, rng.getrandbits(32)])
            )
        case 5:
            data[place:] = rng.randbytes(len(data) - place)
        case 6:
            return rng.randbytes(rng.randrange(400))
    return sealed(bytes(data)) if rng.random() < 0.8 else bytes(data)


def sealed(message: bytes) -> bytes:
    if len(message) < wire.OVERHEAD:
        return message
    body = message[: -wire.CHECKSUM_BYTES]
    return body + hashlib.sha256(body).digest()[: wire.CHECKSUM_BYTES]


class Honest:
    """All messages of an honest attempt, and the server before each stage."""

    def __init__(self, terms: Terms) -> None:
        clients, server = make_clients(terms), Server(terms)
        self.servers: list[Server] = []
        self.up: list[dict[int, bytes]] = []
        self.down: list[dict[int, bytes]] = []
        sent: dict[int, bytes] = {}
        for stage in range(5):
            self.servers.append(copy.deepcopy(server))
            if stage == 2:
                for who, message in sent.items():
                    clients[who].accept(message)
            steps = (
                lambda c, m: c.keys(),
                lambda c, m: c.shares(m),
                lambda c, m: c.masked(np.arange(20)),
                lambda c, m: c.agree(m),
                lambda c, m: c.unmask(m),
            )
            self.up.append(
                {who: steps[stage](client, sent.get(who, b"")) for who, client in clients.items()}
            )
            answer = steps_of(server)[stage](self.up[-1].items())
            if stage < 4:
                assert isinstance(answer, dict)
                sent = answer
                self.down.append(dict(sent))


def steps_of(server: Server) -> tuple[Callable[..., object], ...]:
    return server.rosters, server.deliveries, server.survivors, server.requests, server.total


HONEST = Honest(TERMS)


def fuzz_client(count: int, seed: int) -> int:
    """How many spoilt messages a client refused. It goes on as if they had not come.

    A roster with other public keys is a roster, and another set of m survivors is one: the client
    cannot know better. A request with too few wrong tags to matter is a request, and gets the
    honest answer.
    """
    rng, refused = random.Random(seed), 0
    client = announced()
    for stage in range(4):
        if stage == 2:
            client.masked(np.arange(20))
        honest, before = HONEST.down[stage][WHO], client.export()
        for _ in range(count):
            spoilt = damaged(honest, rng)
            if spoilt == honest:
                continue
            try:
                answer = (client.shares, client.accept, client.agree, client.unmask)[stage](spoilt)
            except SecureSumError:
                refused += 1
                continue
            assert stage in (0, 2) or (stage == 3 and answer == HONEST.up[4][WHO])
            assert len(spoilt) == len(honest)
            client = Client.restore(TERMS, WHO, before)
        (client.shares, client.accept, client.agree, client.unmask)[stage](honest)
    assert client.unmask(HONEST.down[3][WHO]) == HONEST.up[4][WHO]
    return refused


def announced() -> Client:
    client = make_clients(TERMS)[WHO]
    client.keys()
    return client


def fuzz_server(count: int, seed: int) -> int:
    """How many spoilt messages a server refused, one of each stage and attempt. The others are not
    touched.
    """
    rng, refused = random.Random(seed), 0
    for at in range(count):
        stage = at % 5
        server = copy.deepcopy(HONEST.servers[stage])
        messages = dict(HONEST.up[stage])
        messages[WHO] = damaged(messages[WHO], rng)
        outcome = steps_of(server)[stage](messages.items())
        assert set(server.refused) <= {WHO}
        refused += WHO in server.refused
        assert (
            WHO in server.refused
            or not isinstance(outcome, GivenUp)
            or "do not fit" in outcome.reason
        )
    return refused


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "servers"),
    [(500, 600), pytest.param(20_000, 10_000, marks=pytest.mark.slow, id="many")],
)
def test_only_the_named_error_comes_out(clients, servers):
    assert fuzz_client(clients, 0) > 3 * clients
    assert fuzz_server(servers, 1) > 0.6 * servers


@pytest.mark.parametrize(
    "wrong", [None, 3, "text", bytearray(200), memoryview(bytes(200)), [b""], {}]
)
def test_what_is_no_bytes_is_refused_by_name(wrong):
    client = make_clients(TERMS)[WHO]
    client.keys()
    with pytest.raises(SecureSumError, match="roster: expected bytes"):
        client.shares(wrong)
    server = Server(TERMS)
    server.rosters([(WHO, wrong)])
    assert "keys: expected bytes" in server.refused[WHO]


@pytest.mark.parametrize("field", ["magic", "version", "kind", "client", "digest of the terms"])
def test_every_wrong_field_is_named(field):
    at = {"magic": 0, "version": 4, "kind": 5, "client": 6, "digest of the terms": 10}[field]
    message = bytearray(HONEST.up[0][WHO])
    message[at] ^= 1
    server = Server(TERMS)
    server.rosters([(WHO, sealed(bytes(message)))])
    assert f"keys: expected {field}" in server.refused[WHO]


def test_a_huge_message_is_refused_before_it_is_read():
    client, huge = make_clients(TERMS)[WHO], bytes(30_000_000)
    client.keys()
    tracemalloc.start()
    with pytest.raises(SecureSumError, match="roster: expected"):
        client.shares(huge)
    server = Server(TERMS)
    server.rosters([(WHO, huge)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    assert "bytes, got 30000000" in server.refused[WHO]
