"""Which bytes on a SuperNode's socket belong to which of our messages (Flower 1.41, Fleet API over
HTTP).

    down   pull-messages (an answer that holds one), pull-object for each object of its tree,
           confirm-message-received
    up     push-messages, push-object for each object of its tree

Objects are named by their hash; the payload is one of them, verbatim (arrays past 5 MB come in
several).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
)

from benchmarks.flower.socket_proxy import Exchange


@dataclass
class Message:
    """Bytes and requests of one of our messages.

    socket: bytes in its own direction, HTTP heads included. back: bytes the other way (the requests
    of a pull, the
    answers to a push). bodies: of ``socket``, without HTTP heads. requests: exchanges.
    """

    socket: int = 0
    back: int = 0
    bodies: int = 0
    requests: int = 0
    contents: list[bytes] = field(default_factory=list, repr=False)

    def sizes(self) -> dict[str, int]:
        """The four numbers."""
        return {
            "socket": self.socket,
            "back": self.back,
            "bodies": self.bodies,
            "requests": self.requests,
        }

    def add(self, exchange: Exchange, *, up: bool) -> None:
        """One exchange of a message that goes up or down."""
        self.socket += exchange.up if up else exchange.down
        self.back += exchange.down if up else exchange.up
        self.bodies += len(exchange.request if up else exchange.response)
        self.requests += 1


@dataclass
class Moved:
    """messages: by (round, direction); round "" is the query. besides: (exchanges, bytes up, bytes
    down) by path.
    """

    messages: dict[tuple[str, str], Message] = field(default_factory=dict)
    besides: dict[str, tuple[int, int, int]] = field(default_factory=dict)


def count_moved(exchanges: Iterable[Exchange]) -> Moved:
    """The exchanges of one node, each assigned to its message, or to ``besides``."""
    found, rest = Moved(), []
    owners: dict[tuple[str, str], list[tuple[str, str]]] = {}
    exchanges = list(exchanges)
    for exchange in exchanges:
        for kind, tree, key in _announcements(exchange):
            found.messages.setdefault(key, Message()).add(exchange, up=kind == "push")
            for name in _objects(tree):
                owners.setdefault((kind, name), []).append(key)
    for exchange in exchanges:
        if any(_announcements(exchange)):
            continue
        kind, name, content = _object(exchange)
        waiting = owners.get((kind, name), [])
        if not waiting:
            rest.append(exchange)
            continue
        key = waiting.pop(0) if len(waiting) > 1 and content else waiting[0]
        found.messages[key].add(exchange, up=kind == "push")
        if content:
            found.messages[key].contents.append(content)
    for exchange in rest:
        count, up, down = found.besides.get(exchange.path, (0, 0, 0))
        found.besides[exchange.path] = (count + 1, up + exchange.up, down + exchange.down)
    return found


def _announcements(exchange: Exchange) -> Iterator[tuple[str, Any, tuple[str, str]]]:
    """(push or pull, object tree, (round, direction)) of the messages that an exchange
    announces.
    """
    if exchange.path.endswith("/push-messages"):
        sent = PushMessagesRequest.FromString(exchange.request)
        pairs = zip(sent.messages_list, sent.message_object_trees, strict=True)
        kind = "push"
        direction = "up"
    elif exchange.path.endswith("/pull-messages"):
        got = PullMessagesResponse.FromString(exchange.response)
        pairs = zip(got.messages_list, got.message_object_trees, strict=True)
        kind = "pull"
        direction = "down"
    else:
        return
    for message, tree in pairs:
        yield kind, tree, (message.metadata.group_id, direction)


def _objects(tree: Any) -> Iterator[str]:
    yield tree.object_id
    for child in tree.children:
        yield from _objects(child)


def _object(exchange: Exchange) -> tuple[str, str, bytes]:
    """(push or pull, object, its content) of an exchange about one object; of a confirmation there
    is no content.
    """
    if exchange.path.endswith("/push-object"):
        sent = PushObjectRequest.FromString(exchange.request)
        return "push", sent.object_id, sent.object_content
    if exchange.path.endswith("/pull-object"):
        # an object that is not there yet is asked for again
        got = PullObjectResponse.FromString(exchange.response)
        return "pull", PullObjectRequest.FromString(exchange.request).object_id, got.object_content
    if exchange.path.endswith("/confirm-message-received"):
        return (
            "pull",
            ConfirmMessageReceivedRequest.FromString(exchange.request).message_object_id,
            b"",
        )
    return "", "", b""
