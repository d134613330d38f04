"""Piles of messages: shared out evenly, and what messages share is in a pile once."""

from collections.abc import Iterable
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from simulations.grids.piles import PILE_SECONDS, Pace, Task, pack, take, unpack
from simulations.grids.virtual import FIRST_NODE, task_identity
from strategies.federation.serial import wire_size
from strategies.federation.wire import flat_bytes, raw_array


@pytest.fixture(autouse=True)
def _server() -> Iterable[None]:
    with task_identity():
        yield


def questions() -> list[Message]:
    shared = ArrayRecord({"flat": raw_array(np.zeros(10**5, dtype="float32"))})
    return [
        Message(RecordDict({"weights": shared, "own": ConfigRecord({"i": i})}), FIRST_NODE + i, "train", group_id="1")
        for i in range(7)
    ]


def test_what_messages_share_is_in_a_pile_once():
    asked = questions()
    pickled, (weights,) = pack(asked)
    assert len(pickled) < 4 * 10**4
    assert weights is flat_bytes(asked[0].content), "a large array is not even copied"
    arrived = unpack(pickled, [weights])
    assert [m.content for m in arrived] == [m.content for m in asked]
    assert [m.metadata.dst_node_id for m in arrived] == [m.metadata.dst_node_id for m in asked]
    assert [wire_size(m) for m in arrived] == [wire_size(m) for m in asked]
    assert len({id(flat_bytes(m.content)) for m in arrived}) == 1


@given(work=st.lists(st.integers(0, 100), max_size=20), workers=st.integers(1, 5), speed=st.floats(0.1, 1e4))
def test_piles_hold_every_task_once_and_are_as_long_as_wished(work, workers, speed):
    tasks = [Task(SimpleNamespace(), work=w) for w in sorted(work, reverse=True)]
    pace = Pace()
    waiting, piles = list(tasks), []
    while waiting:
        most = min(sum(task.work for task in waiting) / workers, pace.most)
        piles.append(take(waiting, workers, pace))
        done = sum(task.work for task in piles[-1])
        assert len(piles[-1]) == 1 or done <= most
        pace.took(done, done / speed)
    assert list(map(id, chain.from_iterable(piles))) == list(map(id, tasks))
    assert not work or len(piles[0]) == 1, "nothing is known of their speed yet"


def test_the_pace_follows_the_last_piles():
    pace = Pace()
    for _ in range(20):
        pace.took(10.0, 1.0)
    assert pace.most == pytest.approx(10 * PILE_SECONDS)
    for _ in range(20):
        pace.took(10.0, 10.0)
    assert pace.most == pytest.approx(PILE_SECONDS, rel=1e-3)


def test_a_pile_of_the_second_try_has_one_task():
    pace = Pace(one_by_one=True)
    pace.took(100.0, 1.0)
    for work in (0.0, 1.0):
        assert len(take([Task(SimpleNamespace(), work=work) for _ in range(2)], 1, pace)) == 1
