"""The public draw of a round: the shuffle of torch, at the cost of the clients that are looked at."""

from dataclasses import replace
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.participation import Participation
from fedlsg.randomness import public_generator
from fedlsg.selection import SELECTIONS, TURNS, UNIFORM, Selection, draw_order
from fedlsg.units import CLIENT


@given(st.integers(1, 5000), st.integers(0, 99), st.integers(1, 99), st.data())
def test_the_draw_is_the_permutation_of_torch(clients, seed, round, data):
    """Oracle: runs of earlier versions selected the first of this permutation."""
    order = torch.randperm(clients, generator=public_generator(seed, "clients", round)).tolist()
    assert list(draw_order(clients, round=round, seed=seed)) == order
    number = data.draw(st.integers(1, clients))
    assert UNIFORM.select(clients, number, round=round, seed=seed) == sorted(order[:number])


def test_a_hundred_of_very_many_clients_are_drawn_without_a_list_of_all():
    """A list of 100 million numbers would not fit into the limit of a test."""
    clients = 10**8
    found = UNIFORM.select(clients, 100, round=1, seed=0)
    assert len(set(found)) == 100
    assert 0 <= found[0] <= found[-1] < clients
    assert set(found) == set(islice(draw_order(clients, round=1, seed=0), 100))


@pytest.mark.parametrize(("clients", "per_round"), [(10, 3), (7, 7), (12, 4), (5, 1)])
def test_turns_are_shared_out_evenly(clients, per_round):
    turns = Participation(clients=clients, per_round=per_round, seed=3, selection=TURNS)
    for rounds in (1, 4, 25):
        counts = [turns.selections(rounds)[client] for client in range(clients)]
        assert max(counts) - min(counts) <= 1
        assert sum(counts) == rounds * per_round
    drawn = Participation(clients=10, per_round=1, seed=3).most_selections(100)
    assert drawn > Participation(clients=10, per_round=1, seed=3, selection=TURNS).most_selections(100) == 10


@pytest.mark.parametrize("rule", SELECTIONS.values(), ids=list(SELECTIONS))
def test_a_rate_is_claimed_where_the_draw_is_secret_alone(rule):
    assert (rule.sample_rate(100, 5) < 1) == rule.secret
    replace(CLIENT, sample_rate=rule.sample_rate(100, 5), at_server=rule.secret)


def test_a_rate_that_is_claimed_for_a_public_draw_is_caught():
    """Planted: everybody sees who is drawn, and the rule claims that nobody does."""
    planted = Selection(name="planted", secret=True)
    with pytest.raises(ValueError, match="no amplification is claimed"):
        replace(CLIENT, sample_rate=planted.sample_rate(100, 5), at_server=False)
