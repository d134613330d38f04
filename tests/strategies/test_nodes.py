"""Which node holds which partition, whatever ids Flower gives the nodes."""

from typing import Any

import pytest
from flwr.app import Message

import strategies.nodes
from simulations.engines.local import LocalGrid
from simulations.engines.virtual import FIRST_NODE
from strategies.nodes import find_partitions, wait_for_nodes
from strategies.wire import failure, identity


class Nodes(LocalGrid):
    """Nodes with the given partition and number of examples each, in the order given."""

    def __init__(self, *nodes: tuple[int, int] | None) -> None:
        def client(message: Message, context: Any) -> Message:
            node = nodes[int(context.node_config["partition-id"])]
            return failure("planted", 1001, message) if node is None else Message(identity(*node), reply_to=message)

        super().__init__(client, len(nodes), {})


def test_partitions_are_found_whatever_the_node_ids():
    assert find_partitions(Nodes((2, 7), (0, 5), (1, 6)), [5, 6, 7], 1.0) == {
        2: FIRST_NODE, 0: FIRST_NODE + 1, 1: FIRST_NODE + 2,
    }  # fmt: skip


def test_nodes_beyond_the_clients_stay_idle():
    assert find_partitions(Nodes((0, 5), (1, 6), (2, 0)), [5, 6], 1.0) == {0: FIRST_NODE, 1: FIRST_NODE + 1}


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (((0, 5), (0, 5)), r"holds partitions \[1\]: give the federation 2 nodes"),
        (((0, 5), (1, 7)), r"client 1 holds 7 examples, the run declares \[5, 6\]"),
        (((0, 5), None), "a client could not start: planted"),
    ],
)
def test_a_federation_that_does_not_fit_is_refused(nodes, message):
    with pytest.raises(RuntimeError, match=message):
        find_partitions(Nodes(*nodes), [5, 6], 1.0)


def test_too_few_nodes_are_named_with_the_fix(monkeypatch):
    monkeypatch.setattr(strategies.nodes, "CONNECT_SECONDS", 0.15)
    with pytest.raises(RuntimeError, match=r'the run has 3 clients, the federation only 1 nodes.*"num-supernodes=3"'):
        wait_for_nodes(Nodes((0, 5)), 3)


def test_nodes_that_connect_late_are_waited_for(monkeypatch):
    grid = Nodes((0, 5), (1, 6))
    counts = iter([0, 1, 2])
    monkeypatch.setattr(grid, "get_node_ids", lambda: list(range(next(counts))))
    assert wait_for_nodes(grid, 2) == [0, 1]
