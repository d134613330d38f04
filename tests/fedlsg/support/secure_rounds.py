"""Whole attempts at a secure sum in one process, with dropouts, and what the server sees of
them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedlsg.secure_sum import Client, GivenUp, Server, Terms, Total, reproducible_root
from fedlsg.secure_sum import messages as wire

RUN = bytes(range(32))
Drop = Callable[[str, int], bool]


def make_terms(
    clients: int | tuple[int, ...] = 6,
    *,
    survivors: int = 5,
    colluders: int = 1,
    length: int = 8,
    bits: int = 16,
    attempt: int = 0,
    round: int = 3,
) -> Terms:
    """Terms; clients as a number have ids from 10 in steps of 3."""
    members = tuple(range(10, 10 + 3 * clients, 3)) if isinstance(clients, int) else clients
    return Terms(
        run=RUN,
        round=round,
        attempt=attempt,
        clients=members,
        min_survivors=survivors,
        colluders=colluders,
        length=length,
        bits=bits,
    )


def make_clients(terms: Terms, seed: int = 0) -> dict[int, Client]:
    """Clients whose secrets repeat from the seed."""
    return {who: Client(terms, who, reproducible_root(seed, who)) for who in terms.clients}


def body_of(message: bytes) -> bytes:
    return message[wire.HEADER.size : -wire.CHECKSUM_BYTES]


@dataclass(kw_only=True)
class Attempt:
    """What happened, and all that the server saw."""

    outcome: Total | GivenUp
    server: Server
    clients: Mapping[int, Client]
    masked: dict[int, bytes]
    answers: dict[int, bytes]


def run_attempt(
    terms: Terms,
    inputs: Mapping[int, np.ndarray],
    *,
    seed: int = 0,
    drop: Drop = lambda stage, who: False,
    clients: Mapping[int, Client] | None = None,
) -> Attempt:
    """One attempt; ``drop`` says who is silent from which stage on: keys, shares, masked, agree or
    unmask.
    """
    clients = make_clients(terms, seed) if clients is None else clients
    server, masked, answers = Server(terms), dict[int, bytes](), dict[int, bytes]()

    def done(outcome: Total | GivenUp) -> Attempt:
        return Attempt(
            outcome=outcome, server=server, clients=clients, masked=masked, answers=answers
        )

    sent = server.rosters(
        (who, client.keys()) for who, client in clients.items() if not drop("keys", who)
    )
    if isinstance(sent, GivenUp):
        return done(sent)
    sent = server.deliveries(
        (who, clients[who].shares(roster))
        for who, roster in sent.items()
        if not drop("shares", who)
    )
    if isinstance(sent, GivenUp):
        return done(sent)
    for who, delivery in sent.items():
        if not drop("masked", who):
            clients[who].accept(delivery)
            masked[who] = clients[who].masked(inputs[who])
    sent = server.survivors(masked.items())
    if isinstance(sent, GivenUp):
        return done(sent)
    sent = server.requests(
        (who, clients[who].agree(told)) for who, told in sent.items() if not drop("agree", who)
    )
    if isinstance(sent, GivenUp):
        return done(sent)
    for who, request in sent.items():
        if not drop("unmask", who):
            answers[who] = clients[who].unmask(request)
    return done(server.total(answers.items()))


def exact_sum(inputs: Mapping[int, np.ndarray], members: frozenset[int], bits: int) -> list[int]:
    """The sum modulo 2^bits in Python's integers."""
    return [
        sum(int(inputs[who][at]) for who in members) % 2**bits
        for at in range(len(next(iter(inputs.values()))))
    ]


def random_inputs(terms: Terms, seed: int) -> dict[int, np.ndarray]:
    """Signed 64-bit integers."""
    rng = np.random.default_rng(seed)
    return {
        who: rng.integers(-(2**63), 2**63 - 1, terms.length, dtype=np.int64)
        for who in terms.clients
    }
