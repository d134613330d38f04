"""Who is selected, who leaves, and when a round ends: worked by hand, and against brute force."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.participation import Participation, Trace, read_trace
from fedlsg.randomness import public_generator
from fedlsg.selection import UNIFORM


def conditions(**more: Any) -> Participation:
    """Six clients, two a round; client i computes for i + 1 seconds."""
    known: dict[str, Any] = {"clients": 6, "per_round": 2, "seed": 0, "compute_seconds": [1.0, 2, 3, 4, 5, 6]}
    return Participation(**(known | more))


def trace(**intervals: tuple[float, float]) -> Trace:
    return Trace(intervals={int(name[1:]): (pair,) for name, pair in intervals.items()}, digest="")


@given(st.integers(1, 30), st.integers(0, 99), st.integers(1, 9), st.data())
def test_who_is_away_is_never_selected_and_the_others_are_drawn_as_without_them(clients, seed, round, data):
    per_round = data.draw(st.integers(1, clients))
    there = data.draw(st.sets(st.integers(0, clients - 1)))
    found = UNIFORM.select(clients, per_round, round=round, seed=seed, available=there)
    assert len(found) == min(per_round, len(there))
    assert set(found) <= there
    order = torch.randperm(clients, generator=public_generator(seed, "clients", round)).tolist()
    assert found == sorted([client for client in order if client in there][:per_round])
    assert set(found) <= set(UNIFORM.select(clients, clients, round=round, seed=seed, available=there))
    everybody = range(clients)
    assert UNIFORM.select(clients, per_round, round=round, seed=seed) == UNIFORM.select(
        clients, per_round, round=round, seed=seed, available=everybody
    )


@pytest.mark.parametrize(
    ("more", "seconds", "in_time"),
    [
        ({}, 2.0, {0, 1}),  # the first two of four
        ({"per_round": 4}, 5.0, {0, 1, 2, 4}),  # all of them
        ({"per_round": 4, "deadline": 3.0}, 3.0, {0, 1, 2}),  # client 2 comes just in time, client 4 does not
        ({"per_round": 4, "deadline": 0.5}, 0.5, set()),
        ({"compute_seconds": [2.0] * 6}, 2.0, {0, 1}),  # equal times: the lower client first
    ],
)
def test_a_round_ends_with_its_last_reply_or_at_the_deadline(more, seconds, in_time):
    found = conditions(**more).finish(1, [0, 1, 2, 4], {})
    assert (found.seconds, found.in_time) == (seconds, in_time)


def test_a_trace_says_who_is_there_and_a_round_waits_for_enough(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("client,from,to\n0,0,10\n0,20,30\n1,5,12\n1,12,14\n\n2,0,2\n3,0,2\n4,0,2\n5,0,2\n")
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
    with pytest.raises(ValueError, match=r"availability=.*no.csv: expected a share such as 0.8, or a trace"):
        read_trace(tmp_path / "no.csv", 6)


def test_a_trace_with_links_is_refused_for_the_schedule_would_not_be_public():
    with pytest.raises(ValueError, match="leave out uplink_mbps and downlink_mbps"):
        conditions(availability=trace(c0=(0, 9)), uplink=1e6)


def test_the_public_schedule_counts_a_client_that_is_asked_more_often_because_others_are_away():
    """Clients 1 to 5 leave for good after ten seconds: the rounds after that are client 0's alone."""
    away = trace(**{f"c{i}": (0.0, 10.0) for i in range(1, 6)})
    one = conditions(availability=away)
    rounds = list(one.schedule(20))
    assert one.selections(20) == Counter(c for selected in rounds for c in selected)
    assert rounds[-10:] == [[0]] * 10
    without = Participation(clients=6, per_round=2, seed=0)
    assert one.selections(20)[0] > without.most_selections(20), "a plan without availability would allow too few"
