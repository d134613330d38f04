"""Piles of messages: shared out evenly, and what messages share is in a pile once."""

from collections.abc import Iterable
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from simulations.grids.piles import divide, pack, unpack
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


@given(work=st.lists(st.integers(0, 100), max_size=20), piles=st.integers(1, 5))
def test_work_is_shared_out_whole_and_evenly(work, piles):
    messages = [SimpleNamespace(work=w) for w in work]
    shared = divide(messages, work, piles)
    assert sorted(map(id, chain.from_iterable(shared))) == sorted(map(id, messages))
    assert all(shared)
    assert len(shared) == min(piles, len(work))
    if work:
        loads = [sum(m.work + 1 for m in pile) for pile in shared]
        assert max(loads) <= sum(work, len(work)) / piles + max(work) + 1  # Graham's bound for list scheduling
