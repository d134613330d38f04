"""The public draw of a round: the shuffle of torch, at the cost of the clients that are looked at."""

from itertools import islice

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.participation import draw_order, select_clients
from fedlsg.randomness import public_generator


@given(st.integers(1, 5000), st.integers(0, 99), st.integers(1, 99), st.data())
def test_the_draw_is_the_permutation_of_torch(clients, seed, round, data):
    """Oracle: runs of earlier versions selected the first of this permutation."""
    order = torch.randperm(clients, generator=public_generator(seed, "clients", round)).tolist()
    assert list(draw_order(clients, round=round, seed=seed)) == order
    number = data.draw(st.integers(1, clients))
    assert select_clients(clients, number, round=round, seed=seed) == sorted(order[:number])


def test_a_hundred_of_very_many_clients_are_drawn_without_a_list_of_all():
    """A list of 100 million numbers would not fit into the limit of a test."""
    clients = 10**8
    found = select_clients(clients, 100, round=1, seed=0)
    assert len(set(found)) == 100
    assert 0 <= found[0] <= found[-1] < clients
    assert set(found) == set(islice(draw_order(clients, round=1, seed=0), 100))
