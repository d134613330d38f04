"""Who is asked after failures: worked by hand, and laws for any history."""

from hypothesis import given
from hypothesis import strategies as st

from fedlsg.participation import Health
from fedlsg.participation.health import LONGEST_PAUSE

ROUNDS = 60


def history(clients: int, per_round: int, hanging: set[int]) -> tuple[Health, list[list[int]]]:
    """Rounds whose draw is a rotation, with clients that never reply."""
    health, asked = Health(), list[list[int]]()
    for round in range(1, ROUNDS + 1):
        drawn = [(round + i) % clients for i in range(clients)]
        asked.append(health.choose(drawn, per_round, round=round))
        health.count(round, asked[-1], hanging & set(asked[-1]))
    return health, asked


def test_a_client_that_hangs_is_asked_after_pauses_that_double_up_to_the_longest():
    """Nobody can take its place: after one failure it is asked once more, then after 2, 4, 8, 16, 16, ... rounds."""
    _, asked = history(3, 3, {1})
    rounds = [number for number, clients in enumerate(asked, 1) if 1 in clients]
    assert rounds == [1, 2, 5, 10, 19, 36, 53]
    assert LONGEST_PAUSE == 16
    assert all({0, 2} <= set(clients) for clients in asked), "the healthy ones are asked in each round"


def test_healthy_clients_take_the_place_of_one_that_failed_once():
    health = Health()
    health.count(1, [0, 1], [1])
    assert health.choose([1, 0, 2, 3], 2, round=2) == [0, 2]
    assert health.choose([1, 0, 2, 3], 2, round=3) == [0, 1], "its pause is over, and it is drawn first"
    assert health.choose([1, 0], 2, round=2) == [0, 1], "there is no other"


def test_a_round_that_needs_all_of_its_clients_and_one_without_others_ask_who_waits():
    health = Health()
    for round in (1, 2):
        health.count(round, [0, 1, 2], [1, 2])
    assert health.choose([2, 1, 0], 3, round=3) == [0]
    assert health.choose([2, 1, 0], 3, round=3, least=3) == [0, 1, 2]
    everybody = Health()
    for round in (1, 2):
        everybody.count(round, [0, 1, 2], [0, 1, 2])
    assert everybody.choose([2, 1, 0], 3, round=3) == [0, 1, 2], "nobody else is left"


@given(st.integers(1, 8), st.data())
def test_no_client_is_asked_twice_in_a_round_and_some_are_always_asked(clients, data):
    per_round, hanging = data.draw(st.integers(1, clients)), data.draw(st.sets(st.integers(0, clients - 1)))
    health, asked = history(clients, per_round, hanging)
    assert all(1 <= len(set(each)) == len(each) <= per_round for each in asked)
    if not hanging:
        assert health.since == 0
        assert asked == [sorted((r + i) % clients for i in range(per_round)) for r in range(1, ROUNDS + 1)], "the draw"


def test_no_more_candidates_are_drawn_than_are_needed():
    health, drawn = Health(), list[int]()
    health.count(1, [7], [7])
    order = (drawn.append(client) or client for client in [7, *range(1000)])
    assert health.choose(order, 3, round=2) == [0, 1, 2]
    assert drawn == [7, 0, 1, 2]


def test_rounds_are_counted_from_the_first_failure_on():
    """Before it, the draw alone says who was asked: a checkpoint does not grow with the clients of a healthy run."""
    health = Health()
    for round in range(1, 10):
        health.count(round, [round, 20], [])
    assert (health.asked, health.since) == ({}, 0)
    health.count(10, [10, 20], [10])
    health.count(11, [11, 20], [])
    assert (health.asked, health.since) == ({10: 1, 11: 1, 20: 2}, 10)
