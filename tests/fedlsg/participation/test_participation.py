"""Who is drawn, asked again after failures, leaves or is late: worked by hand, against brute
force.
"""

from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.config.selection import SELECTIONS, TURNS, UNIFORM, Selection, draw_order
from fedlsg.config.units import CLIENT
from fedlsg.participation import Health, Participation, Trace, read_trace
from fedlsg.participation.health import LONGEST_PAUSE
from fedlsg.randomness import public_generator


def conditions(**more: Any) -> Participation:
    """Six clients, two a round; client i computes for i + 1 seconds."""
    known: dict[str, Any] = {
        "clients": 6,
        "per_round": 2,
        "seed": 0,
        "compute_seconds": [1.0, 2, 3, 4, 5, 6],
    }
    return Participation(**(known | more))


def trace(**intervals: tuple[float, float]) -> Trace:
    return Trace(intervals={int(name[1:]): (pair,) for name, pair in intervals.items()}, digest="")


@given(st.integers(1, 30), st.integers(0, 99), st.integers(1, 9), st.data())
def test_who_is_away_is_never_selected_and_the_others_are_drawn_as_without_them(
    clients, seed, round, data
):
    per_round = data.draw(st.integers(1, clients))
    there = data.draw(st.sets(st.integers(0, clients - 1)))
    found = UNIFORM.select(clients, per_round, round=round, seed=seed, available=there)
    assert len(found) == min(per_round, len(there))
    assert set(found) <= there
    order = torch.randperm(clients, generator=public_generator(seed, "clients", round)).tolist()
    assert found == sorted([client for client in order if client in there][:per_round])
    assert set(found) <= set(
        UNIFORM.select(clients, clients, round=round, seed=seed, available=there)
    )
    everybody = range(clients)
    assert UNIFORM.select(clients, per_round, round=round, seed=seed) == UNIFORM.select(
        clients, per_round, round=round, seed=seed, available=everybody
    )


@pytest.mark.parametrize(
    ("more", "seconds", "in_time"),
    [
        ({}, 2.0, {0, 1}),  # the first two of four
        ({"per_round": 4}, 5.0, {0, 1, 2, 4}),  # all of them
        # client 2 comes just in time, client 4 does not
        ({"per_round": 4, "deadline": 3.0}, 3.0, {0, 1, 2}),
        ({"per_round": 4, "deadline": 0.5}, 0.5, set()),
        ({"compute_seconds": [2.0] * 6}, 2.0, {0, 1}),  # equal times: the lower client first
    ],
)
def test_a_round_ends_with_its_last_reply_or_at_the_deadline(more, seconds, in_time):
    found = conditions(**more).finish(1, [0, 1, 2, 4], {})
    assert (found.seconds, found.in_time) == (seconds, in_time)


def test_a_trace_says_who_is_there_and_a_round_waits_for_enough(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(
        "client,from,to\n0,0,10\n0,20,30\n1,5,12\n1,12,14\n\n2,0,2\n3,0,2\n4,0,2\n5,0,2\n"
    )
    known = read_trace(path, 6)
    assert known.intervals[1] == ((5.0, 14.0),)
    when = [t for t in range(32) if known.available(0, t)]
    assert when == [*range(10), *range(20, 30)]
    assert known.arrivals == (0.0, 5.0, 20.0)
    one = conditions(availability=known)
    assert one.begin(1, 3.0) == (3.0, [0]), "client 0 alone is enough"
    assert one.begin(1, 15.0) == (20.0, [0]), "nobody until second 20"
    assert one.begin(1, 31.0) == (31.0, []), "nobody ever again"
    assert conditions(availability=known, least=2).begin(1, 3.0) == (5.0, [0, 1])
    assert read_trace(path, 7).available(6, 99.0), "a client without a line is always there"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n", "expected the first line client,from,to, got 'a,b'"),
        ("", "expected the first line"),
        ("client,from,to\n0,1\n", "line 2: expected client,from,to as numbers, got '0,1'"),
        ("client,from,to\n\n9,0,1\n", "line 3: expected a client from 0 to 5, got 9"),
        ("client,from,to\n1,4,2\n", "line 2: expected 0 <= from < to"),
        ("client,from,to\n1,nan,2\n", "line 2: expected 0 <= from < to"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_its_line(tmp_path, text, words):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=r"t\.csv") as refused:
        read_trace(tmp_path / "t.csv", 6)
    assert words in str(refused.value)
    with pytest.raises(
        ValueError, match=r"availability=.*no.csv: expected a share such as 0.8, or a trace"
    ):
        read_trace(tmp_path / "no.csv", 6)


def test_a_trace_with_links_is_refused_for_the_schedule_would_not_be_public():
    with pytest.raises(ValueError, match="leave out uplink_mbps and downlink_mbps"):
        conditions(availability=trace(c0=(0, 9)), uplink=1e6)


def test_the_public_schedule_counts_a_client_that_is_asked_more_often_because_others_are_away():
    """Clients 1 to 5 leave for good after ten seconds: the rounds after that are client 0's
    alone.
    """
    away = trace(**{f"c{i}": (0.0, 10.0) for i in range(1, 6)})
    one = conditions(availability=away)
    rounds = list(one.schedule(20))
    assert one.selections(20) == Counter(c for selected in rounds for c in selected)
    assert rounds[-10:] == [[0]] * 10
    without = Participation(clients=6, per_round=2, seed=0)
    assert one.selections(20)[0] > without.most_selections(20), (
        "a plan without availability would allow too few"
    )


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
    """Nobody can take its place: after one failure it is asked once more, then after 2, 4, 8, 16,
    16, ... rounds.
    """
    _, asked = history(3, 3, {1})
    rounds = [number for number, clients in enumerate(asked, 1) if 1 in clients]
    assert rounds == [1, 2, 5, 10, 19, 36, 53]
    assert LONGEST_PAUSE == 16
    assert all({0, 2} <= set(clients) for clients in asked), (
        "the healthy ones are asked in each round"
    )


def test_healthy_clients_take_the_place_of_one_that_failed_once():
    health = Health()
    health.count(1, [0, 1], [1])
    assert health.choose([1, 0, 2, 3], 2, round=2) == [0, 2]
    assert health.choose([1, 0, 2, 3], 2, round=3) == [0, 1], (
        "its pause is over, and it is drawn first"
    )
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


def test_who_is_left_out_is_said_with_the_round_in_which_it_is_asked_again():
    health, asked = Health(), {}
    for round in range(1, 11):
        asked[round] = health.choose([0, 1], 2, round=round)
        waiting = health.waiting(round, asked[round])
        assert set(waiting) == {0, 1} - set(asked[round])
        for words in waiting.values():
            due = int(words.split("round ")[1].split(",")[0])
            assert due > round
            assert health.choose([0, 1], 2, round=due) == [0, 1]
            assert health.choose([0, 1], 2, round=due - 1) == [0]
        health.count(round, asked[round], {1} & set(asked[round]))
    assert [round for round, clients in asked.items() if clients == [0]]


@given(st.integers(1, 8), st.data())
def test_no_client_is_asked_twice_in_a_round_and_some_are_always_asked(clients, data):
    per_round = data.draw(st.integers(1, clients))
    hanging = data.draw(st.sets(st.integers(0, clients - 1)))
    health, asked = history(clients, per_round, hanging)
    assert all(1 <= len(set(each)) == len(each) <= per_round for each in asked)
    if not hanging:
        assert health.since == 0
        assert asked == [
            sorted((r + i) % clients for i in range(per_round)) for r in range(1, ROUNDS + 1)
        ], "the draw"


def test_rounds_are_counted_from_the_first_failure_on():
    """Before it, the draw alone says who was asked: a checkpoint does not grow with the clients of
    a healthy run.
    """
    health = Health()
    for round in range(1, 10):
        health.count(round, [round, 20], [])
    assert (health.asked, health.since) == ({}, 0)
    health.count(10, [10, 20], [10])
    health.count(11, [11, 20], [])
    assert (health.asked, health.since) == ({10: 1, 11: 1, 20: 2}, 10)


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
    assert (
        drawn
        > Participation(clients=10, per_round=1, seed=3, selection=TURNS).most_selections(100)
        == 10
    )


@pytest.mark.parametrize("rule", SELECTIONS.values(), ids=list(SELECTIONS))
def test_a_rate_is_claimed_where_the_draw_is_secret_alone(rule):
    assert (rule.sample_rate(100, 5) < 1) == rule.secret
    replace(CLIENT, sample_rate=rule.sample_rate(100, 5), at_server=rule.secret)


def test_a_rate_that_is_claimed_for_a_public_draw_is_caught():
    """Planted: everybody sees who is drawn, and the rule claims that nobody does."""
    planted = Selection(name="planted", secret=True)
    with pytest.raises(ValueError, match="no amplification is claimed"):
        replace(CLIENT, sample_rate=planted.sample_rate(100, 5), at_server=False)
