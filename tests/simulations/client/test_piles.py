"""Piles of messages: shared out evenly, and what messages share is in a pile once."""

from collections.abc import Iterable
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedlsg.simulations.client.piles import PILE_SECONDS, Pace, Task, divide, pack, unpack
from fedlsg.simulations.client.virtual import FIRST_NODE, task_identity
from fedlsg.strategies.protocol.round_report import wire_size
from fedlsg.strategies.protocol.wire import flat_bytes, raw_array


@pytest.fixture(autouse=True)
def _server() -> Iterable[None]:
    with task_identity():
        yield


def questions() -> list[Message]:
    shared = ArrayRecord({"flat": raw_array(np.zeros(10**5, dtype="float32"))})
    return [
        Message(
            RecordDict({"weights": shared, "own": ConfigRecord({"i": i})}),
            FIRST_NODE + i,
            "train",
            group_id="1",
        )
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


@given(
    work=st.lists(st.integers(0, 100), min_size=1, max_size=20),
    workers=st.integers(1, 5),
    speed=st.floats(0.1, 1e4),
)
def test_work_is_shared_out_whole_and_evenly(work, workers, speed):
    tasks = [Task(SimpleNamespace(), work=w) for w in work]
    pace = Pace()
    pace.add(100.0, 100.0 / speed)
    piles = divide(tasks, workers, pace)
    assert sorted(map(id, chain.from_iterable(piles))) == sorted(map(id, tasks))
    assert all(piles)
    assert len(piles) >= min(workers, len(tasks))
    loads = [sum(task.work + 1 for task in pile) for pile in piles]
    # Graham's bound for list scheduling
    assert max(loads) <= sum(work, len(work)) / len(piles) + max(work) + 1
    if len(piles) > workers and len(piles) < len(tasks):
        assert (len(piles) - 1) * PILE_SECONDS < sum(work) / speed, (
            "no more piles than their length asks for"
        )
