"""The grid of a deployment waits for no node that has lost what it was sent."""

from collections.abc import Iterable
from contextlib import nullcontext
from types import SimpleNamespace

import httpx
import pytest
from flwr.app import Error, Message, RecordDict

from fedlsg.simulations.client.virtual import FIRST_NODE, VirtualGrid, give_id
from fedlsg.strategies.protocol import watched_grid
from fedlsg.strategies.protocol.expectations import BoundError
from fedlsg.strategies.protocol.watched_grid import NODE_GONE, Limits, WatchedGrid


class SuperLink(VirtualGrid):
    """Nodes that answer at the ``after``-th pull; what ``happens`` at a pull is done before it."""

    def __init__(self, after: list[int | None]) -> None:
        super().__init__(len(after))
        self.after, self.pulls, self.activated = after, 0, ["10:00"] * len(after)
        self.waiting: dict[str, Message] = {}
        self.happens: dict[int, object] = {}
        self.unregistered: set[int] = set()
        self.asked: set[str] = set()

    def deliver(self, messages, timeout):
        return []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names: list[str] = []
        for message in messages:
            give_id(message)
            gone = message.metadata.dst_node_id - FIRST_NODE in self.unregistered
            names.append(None if gone else message.metadata.message_id)
            if not gone:
                self.waiting[message.metadata.message_id] = message
        return names

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        names = list(names)
        if self.asked.intersection(names) or not self.asked:  # the replies are pulled one by one
            self.pulls, self.asked = self.pulls + 1, set()
            self.happens.pop(self.pulls, lambda: None)()
        self.asked.update(names)
        due = []
        for name in names:
            message = self.waiting[name]
            after = self.after[message.metadata.dst_node_id - FIRST_NODE]
            if after is not None and self.pulls >= after:
                due.append(Message(RecordDict(), reply_to=message))
        return due

    def get_nodes(self) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(node_id=FIRST_NODE + number, last_activated_at=when)
            for number, when in enumerate(self.activated)
            if when
        ]


@pytest.fixture(autouse=True)
def quick(monkeypatch, _identified):
    monkeypatch.setattr(watched_grid, "POLL_SECONDS", 0.0)


@pytest.fixture
def _identified():
    from fedlsg.simulations.engines.local import task_identity

    with task_identity():
        yield


def ask(link: SuperLink, *, timeout: float | None = 5.0) -> dict[int, Error | None]:
    """Who answered: None for a reply, else the error."""
    sent = [
        Message(RecordDict(), FIRST_NODE + number, "train") for number in range(link.num_partitions)
    ]
    replies = list(WatchedGrid(link).send_and_receive(sent, timeout=timeout))
    asked = {
        message.metadata.message_id: message.metadata.dst_node_id - FIRST_NODE for message in sent
    }
    found = {
        asked[r.metadata.reply_to_message_id]: r.error if r.has_error() else None for r in replies
    }
    assert len(found) == len(replies)
    return found


def test_a_node_that_started_anew_is_taken_for_one_that_is_gone():
    link = SuperLink([4, None])
    link.happens[2] = lambda: link.activated.__setitem__(1, "10:05")
    found = ask(link, timeout=None)
    assert found[0] is None
    assert found[1].code in NODE_GONE


def send(grid: WatchedGrid, link: SuperLink, *nodes: int, kind: str = "train") -> dict[int, str]:
    """What became of a message to each node: "reply", or the reason of the error."""
    sent = [Message(RecordDict(), FIRST_NODE + number, kind) for number in nodes]
    replies = list(grid.send_and_receive(sent, timeout=2.0))
    asked = {
        message.metadata.message_id: message.metadata.dst_node_id - FIRST_NODE for message in sent
    }
    return {
        asked[r.metadata.reply_to_message_id]: r.error.reason if r.has_error() else "reply"
        for r in replies
    }


def test_nobody_waits_longer_than_the_limit_for_a_node():
    link = SuperLink([1, None])
    found = send(WatchedGrid(link, 0.1), link, 0, 1)
    assert found[0] == "reply"
    assert "client_timeout" in found[1]
    assert WatchedGrid(link).client_timeout == float("inf"), "it has no limit of its own"


def test_a_node_that_owes_a_reply_gets_no_message_until_it_came_and_that_one_is_not_used():
    link, back = SuperLink([1, None]), list[int]()
    grid = WatchedGrid(link, 0.1, returned=back.append)
    send(grid, link, 0, 1)
    late = [name for name, m in link.waiting.items() if m.metadata.dst_node_id == FIRST_NODE + 1]
    assert send(grid, link, 0, 1) == {0: "reply", 1: "it still works on an earlier round"}
    assert len([m for m in link.waiting.values() if m.metadata.dst_node_id == FIRST_NODE + 1]) == 1
    link.after[1] = 0
    assert back == []
    assert send(grid, link, 0, 1) == {0: "reply", 1: "reply"}
    assert back == [FIRST_NODE + 1]
    newest = [name for name, m in link.waiting.items() if m.metadata.dst_node_id == FIRST_NODE + 1][
        -1
    ]
    assert newest not in late, "its reply to the earlier round was thrown away"


def test_a_node_that_restarted_owes_nothing():
    link = SuperLink([1, None])
    grid = WatchedGrid(link, 0.1)
    send(grid, link, 0, 1)
    link.activated[1], link.after[1] = "10:05", None
    link.waiting.clear()  # Flower delivers it to nobody
    link.pull_messages = lambda names: [  # type: ignore[method-assign]
        Message(RecordDict(), reply_to=link.waiting[name]) for name in names if name in link.waiting
    ]
    assert send(grid, link, 1) == {1: "reply"}


class Hostile(SuperLink):
    """One whose second node's replies cannot be read, or are another's."""

    def __init__(self, how: str) -> None:
        super().__init__([2, 2])
        self.how = how

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        replies = super().pull_messages(names)
        for reply in replies:
            if reply.metadata.src_node_id != FIRST_NODE + 1:
                continue
            if self.how == "unreadable":
                raise RecursionError("x" * 10**6)
            other = next(n for n, m in self.waiting.items() if m.metadata.dst_node_id == FIRST_NODE)
            name, value = {
                "sender": ("src_node_id", FIRST_NODE),
                "message": ("reply_to_message_id", other),
            }[self.how]
            reply.metadata.__dict__[f"_{name}"] = value
        return replies


@pytest.mark.parametrize("how", ["unreadable", "sender", "message"])
def test_a_reply_that_is_none_is_its_own_nodes_error(how):
    found = ask(Hostile(how))
    assert found[0] is None
    assert found[1] is not None
    assert found[1].reason.startswith("its reply cannot be read: ")
    assert len(found[1].reason) < 400


@pytest.mark.parametrize(("size", "fits"), [(10**4, True), (10**7, False)])
def test_a_reply_that_is_too_large_is_not_received(size, fits):
    """Over HTTP: the length in the header is compared, before the body comes."""
    came: list[int] = []

    class Body(httpx.SyncByteStream):
        def __iter__(self):
            came.append(size)
            yield bytes(size)

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-length": str(size)}, stream=Body())

    client = httpx.Client(transport=httpx.MockTransport(answer))
    limits = Limits(SimpleNamespace(_runtime_client=SimpleNamespace(_client=client)))  # type: ignore[arg-type]
    with (
        limits.of_one(10**6),
        nullcontext() if fits else pytest.raises(BoundError, match="larger than any reply"),
    ):
        client.post("http://superlink/v1/runtime/pull-object")
    assert came == [size] * fits
    client.post("http://superlink/v1/runtime/pull-object")
    assert came[fits:] == [size], "what is no reply has no limit"
