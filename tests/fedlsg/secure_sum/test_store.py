"""A client's own store: a restored client goes on as the one that was written."""

import numpy as np
import pytest

from fedlsg.secure_sum import Client, SecureSumError, Server
from tests.fedlsg.support.secure_rounds import make_clients, make_terms, random_inputs, run_attempt

TERMS = make_terms(6, survivors=5, colluders=1)


def again(client: Client) -> Client:
    return Client.restore(client.terms, client.client, client.export())


def test_clients_restored_before_every_stage_end_with_the_same_messages():
    inputs = random_inputs(TERMS, 0)
    wanted = run_attempt(TERMS, inputs)
    clients, server = {who: again(client) for who, client in make_clients(TERMS).items()}, Server(TERMS)
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
