"""Which node is which client, for any ids that Flower gives the nodes, when nodes leave and come
back.
"""

import math
import time
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message

import fedlsg.strategies.protocol.nodes
from fedlsg.simulations.client.virtual import FIRST_NODE
from fedlsg.simulations.engines.local import LocalGrid
from fedlsg.strategies.protocol.nodes import Roster, wait_for_nodes
from fedlsg.strategies.protocol.wire import FAILED, REFUSED_RUN, failure, identity

Node = tuple[int, int] | str
"""Partition and number of examples, or an error."""


class Nodes(LocalGrid):
    """Nodes that answer in order; ``there`` says which are connected, ``nodes`` what each says,
    both may change.
    """

    def __init__(self, *nodes: Node) -> None:
        self.nodes, self.there, self.questions = list(nodes), list(range(len(nodes))), list[int]()
        super().__init__(self.client, len(nodes), {})

    def representatives(self) -> range:
        return range(len(self.nodes))

    def client(self, message: Message, context: Any) -> Message:
        number = int(context.node_config["partition-id"])
        self.questions.append(number)
        said = self.nodes[number]
        if isinstance(said, str):
            return failure(said, 1001, message)
        return Message(identity(*said), reply_to=message)

    def get_node_ids(self) -> list[int]:
        return [FIRST_NODE + number for number in self.there]


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(fedlsg.strategies.protocol.nodes, "CONNECT_SECONDS", 0.15)
    monkeypatch.setattr(fedlsg.strategies.protocol.nodes, "ASK_AGAIN_SECONDS", 0.0)


def found(roster: Roster, clients: int) -> list[int | None]:
    nodes = [roster.node(partition) for partition in range(clients)]
    return [None if node is None else node - FIRST_NODE for node in nodes]


def gathered(grid: Nodes, sizes: list[int]) -> Roster:
    roster = Roster(1.0, declared=sizes)
    assert roster.gather(grid, len(sizes)) == sizes
    assert roster.complete
    return roster


def test_partitions_are_found_whatever_the_node_ids():
    grid = Nodes((2, 7), (0, 5), (1, 6))
    assert found(gathered(grid, [5, 6, 7]), 3) == [1, 2, 0]
    assert grid.questions == [0, 1, 2], "each node is asked once"


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            ((0, 5), (0, 5)),
            r"one of the clients \[1\]: give the federation 2 nodes.*both declare that they are "
            r"client 0",
        ),
        (
            ((0, 5), (1, 7)),
            r"client 1 holds 7 examples, the run declares 6: data, partition settings or seed "
            r"differ",
        ),
        (((0, 5), "planted"), "node .*: planted"),
    ],
)
def test_a_federation_that_does_not_fit_is_refused(nodes, message):
    with pytest.raises(RuntimeError, match=message):
        Roster(1.0, declared=[5, 6]).gather(Nodes(*nodes), 2)


@pytest.mark.parametrize("declared", [[5, 6], None])
def test_one_error_in_the_first_query_does_not_end_a_run(declared):
    """Planted: the second node fails once."""
    grid = Nodes((0, 5), "planted")
    honest = grid.client

    def client(message: Message, context: Any) -> Message:
        reply = honest(message, context)
        grid.nodes[1] = (1, 6)
        return reply

    grid.client = client
    roster = Roster(1.0, declared=declared)
    assert roster.gather(grid, 2) == [5, 6]
    assert found(roster, 2) == [0, 1]
    assert roster.refused == {}


@pytest.mark.parametrize("again", [1, 2], ids=["same id", "other id"])
def test_a_node_that_comes_back_is_asked_who_it_is(again):
    grid = Nodes((0, 5), (1, 6), (1, 6))
    grid.there = [0, 1]
    roster = gathered(grid, [5, 6])
    grid.there, grid.questions = [0], []
    roster.refresh(grid)
    assert found(roster, 2) == [0, None]
    assert grid.questions == []
    grid.there = [0, again]
    roster.refresh(grid)
    assert found(roster, 2) == [0, again]
    assert grid.questions == [again]
    roster.refresh(grid)
    assert grid.questions == [again], "it is known now"


def deployed(grid: Nodes, clients: int, **settings: Any) -> Roster:
    roster = Roster(1.0, **settings)
    assert roster.gather(grid, clients)[0] == 5
    return roster


def test_a_deployment_without_half_of_its_clients_does_not_start():
    with pytest.raises(RuntimeError, match=r"one of the clients \[1\].*planted"):
        Roster(1.0).gather(Nodes((0, 5), "planted"), 2)


class Refusing(Nodes):
    """Nodes whose errors have one code."""

    def __init__(self, code: int, *nodes: Node) -> None:
        super().__init__(*nodes)
        self.code = code

    def client(self, message: Message, context: Any) -> Message:
        reply = super().client(message, context)
        return failure(reply.error.reason, self.code, message) if reply.has_error() else reply


def seconds_and_words(grid: Nodes, monkeypatch: pytest.MonkeyPatch) -> tuple[float, str]:
    """How long the server was patient with nodes that refuse, and its last words."""
    monkeypatch.setattr(fedlsg.strategies.protocol.nodes, "CONNECT_SECONDS", 1.0)
    monkeypatch.setattr(fedlsg.strategies.protocol.nodes, "ASK_AGAIN_SECONDS", 0.05)
    began = time.monotonic()
    with pytest.raises(RuntimeError) as refused:
        Roster(1.0).gather(grid, 2)
    return time.monotonic() - began, str(refused.value)


def test_where_every_node_refuses_the_run_it_ends_at_once_with_the_reason(monkeypatch, caplog):
    grid = Refusing(REFUSED_RUN, "epsilon=3 is too much", "epsilon=3 is too much")
    seconds, words = seconds_and_words(grid, monkeypatch)
    assert seconds < 0.5
    assert grid.questions == [0, 1]
    assert words.startswith("all 2 nodes refuse this run, and nothing was spent: nodes ")
    assert words.count("epsilon=3 is too much") == 1
    assert "more time" not in words
    assert caplog.text.count("cannot take part") == 2


@pytest.mark.parametrize(
    ("code", "nodes"),
    [(FAILED, ("planted", "planted")), (REFUSED_RUN, ("planted", (1, 5)))],
    ids=["a reason that time may change", "one node takes part"],
)
def test_otherwise_the_server_is_patient_and_says_a_reason_once(code, nodes, monkeypatch, caplog):
    grid = Refusing(code, *nodes)
    seconds, words = seconds_and_words(grid, monkeypatch)
    assert seconds > 0.9
    assert len(grid.questions) > 4
    assert "more time" in words or "one node" not in words
    assert caplog.text.count("cannot take part: planted") == nodes.count("planted")


def test_a_node_that_refused_the_run_and_was_restarted_is_asked_again(monkeypatch):
    """Control: nothing of a refusal is remembered."""
    grid = Refusing(REFUSED_RUN, "planted", (1, 6))
    honest = grid.client

    def client(message: Message, context: Any) -> Message:
        reply = honest(message, context)
        grid.nodes[0] = (0, 5)
        return reply

    grid._client = grid.client = client
    roster = Roster(1.0)
    assert roster.gather(grid, 2) == [5, 6]
    assert roster.refused == {}


@pytest.mark.parametrize("odd", [True, 0.5, math.nan, "1", b"1", [1], None])
def test_what_is_no_identity_is_refused(odd, caplog):
    grid = Nodes((0, 5), (1, 6), (2, 7))
    record = ConfigRecord({"partition": 2} | ({} if odd is None else {"num-examples": odd}))
    honest = grid.client

    def client(message: Message, context: Any) -> Message:
        reply = honest(message, context)
        if context.node_config["partition-id"] == 2:
            reply.content["identity"] = record
        return reply

    grid.client = client
    assert found(deployed(grid, 3), 3) == [0, 1, None]
    assert "whole numbers partition and num-examples" in caplog.text


def test_the_log_says_whom_the_run_waits_for(monkeypatch, caplog):
    """Three nodes of five: a run waited for two minutes without a word."""
    monkeypatch.setattr(fedlsg.strategies.protocol.nodes, "QUIET_SECONDS", 0.0)
    grid = Nodes((0, 5), (1, 6), (2, 7))
    with caplog.at_level("INFO"), pytest.raises(RuntimeError, match=r"has 5 clients.*only 3 nodes"):
        wait_for_nodes(grid, 5)
    said = [line for line in caplog.messages if "clients are there" in line]
    assert len(said) == 1
    assert said[0].startswith("3 of 5 clients are there: waiting for the others, for another 0 s")


def test_a_simulation_waits_only_while_it_registers_nodes(monkeypatch):
    monkeypatch.setattr(fedlsg.strategies.protocol.nodes, "CONNECT_SECONDS", 600.0)
    monkeypatch.setattr(fedlsg.strategies.protocol.nodes, "REGISTER_SECONDS", 0.3)
    grid = Nodes((0, 5), (1, 6), (2, 7))
    with pytest.raises(RuntimeError, match='"num-supernodes=5"'):
        wait_for_nodes(grid, 5, fixed=True)

    grid.there = []
    real = grid.get_node_ids

    def slowly() -> list[int]:
        """One node more each time, of which each takes a good part of the limit."""
        grid.there.append(len(grid.there))
        time.sleep(0.1)
        return real()

    grid.get_node_ids = slowly
    assert len(wait_for_nodes(grid, 5, fixed=True)) == 5
