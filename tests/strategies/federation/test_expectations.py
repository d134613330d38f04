"""What the server knows of the noise in a sum, from public terms alone."""

from math import hypot

import pytest

from fedlsg.method import LocalTraining
from fedlsg.payload import find_codec
from strategies.federation.expectations import Expectations
from strategies.strategy import FederationSettings
from tests.strategies.small_federation import public_terms, server_state


def test_the_noise_of_a_sum_is_that_of_all_clients_in_it():
    state = server_state(clip_norm=0.5)
    local, terms = LocalTraining(), [public_terms(1, noise_multiplier=sigma)[0] for sigma in (1.0, 2.0, 3.0)]
    settings = FederationSettings(terms=terms, clients_per_round=3, local=local, codec=find_codec("float32"))
    known = Expectations(state=state, settings=settings)
    for clients in ((0,), (0, 2), (0, 1, 2)):
        each = [0.5 * (client + 1) for client in clients]
        assert known.noise_of_sum(clients, state.plan(local)) == pytest.approx(hypot(*each))
