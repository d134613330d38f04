"""The grid of a deployment: it does not wait for lost nodes, and a bad reply harms no other.

Flower reports a node that has left, but not one that was killed and returned under its own key
within a minute. Flower does not deliver again a message that the killed process had taken, and the
server would wait until its timeout. Such a node has a new time of activation. This grid answers its
open messages with an error, as Flower does for a node that has left.

A node may put anything onto the SuperLink: a text of gigabytes, a tree of objects that it never
uploads, objects other than messages. Flower's grid pulls all replies at once, waits up to two hours
for the objects of each, and raises for an unreadable one: then all are lost, and the run ends. Here
a few threads pull replies one by one, so that a late or incomplete reply delays no other.
"""

import copy
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from logging import WARNING
from math import inf
from typing import Any, Protocol, cast
from uuid import uuid4

from flwr.app import Error, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedlsg.strategies.protocol.expectations import BoundError, reason_of
from fedlsg.strategies.protocol.wire import FAILED, TOO_SLOW, is_reply_to


class WrappedGrid(Grid):
    """A grid that passes every call to ``inner``."""

    def __init__(self, inner: Grid) -> None:
        self.inner = inner

    def set_run(self, run: Any) -> None:
        self.inner.set_run(run)

    @property
    def run(self) -> Any:
        return self.inner.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return self.inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self.inner.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.inner.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.inner.send_and_receive(messages, timeout=timeout)


NODE_GONE = frozenset(
    {
        ErrorCode.MESSAGE_UNAVAILABLE,
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
        ErrorCode.NODE_UNAVAILABLE,
    }
)
"""Flower's error codes for a message, a reply or a node that does not exist any more."""
POLL_SECONDS = 1.0
"""Pause between two looks for replies."""
PATIENCE_SECONDS = 5.0
"""Time of one look at most."""


class DeployedGrid(Protocol):
    """The part of Flower's grid that only a deployment has."""

    def get_nodes(self) -> Iterable[Any]:
        """The connected nodes, each with the time of its last activation."""


class WatchedGrid(WrappedGrid):
    """A Flower grid with ``get_nodes``, in which a restarted node counts as one that has left.

    It sends no training message to a node that still owes a reply to an earlier one.

    inner: the grid; all but ``send_and_receive`` is its own.
    client_timeout: seconds of training of one node at most.
    returned: called with a node whose reply came too late.
    largest: bytes of a reply at most.
    """

    def __init__(
        self,
        inner: Grid,
        client_timeout: float = inf,
        *,
        returned: Callable[[int], None] = lambda node: None,
    ) -> None:
        super().__init__(inner)
        self.client_timeout, self.returned = client_timeout, returned
        self.largest = PULLED_BYTES
        self._pullers = Pullers(inner)
        self._owed: dict[str, Message] = {}
        self._known: dict[int, str] = {}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """The replies until all are there or the time is over.

        A node that restarted, is too slow or still works on an earlier round gives an error.
        """
        before = self._activations()
        self._take_late(before)
        busy = self.busy
        asked = list(messages)
        sent = [
            message
            for message in asked
            if not (is_training(message) and message.metadata.dst_node_id in busy)
        ]
        names = list(self.inner.push_messages(sent)) if sent else []
        replies = [
            too_slow(message, "it still works on an earlier round")
            for message in asked
            if message not in sent
        ]
        waiting = {
            name: message for name, message in zip(names, sent, strict=False) if name is not None
        }
        began = time.monotonic()
        deadline = None if timeout is None else began + timeout
        # Flower takes no message for a node that is not registered any more: the message has no
        # name.
        replies += [
            lost_reply(message) for name, message in zip(names, sent, strict=False) if name is None
        ]
        while waiting and (deadline is None or time.monotonic() < deadline):
            for name, reply in self._pulled(waiting):
                replies.append(reply)
                waiting.pop(name, None)
            now = self._activations()
            for name, message in list(waiting.items()):
                if _restarted(message, before, now):
                    replies.append(lost_reply(waiting.pop(name)))
                elif is_training(message) and self.client_timeout < time.monotonic() - began:
                    self._owed[name] = waiting.pop(name)
                    why = f"no reply within client_timeout, {self.client_timeout:g} s"
                    replies.append(too_slow(message, why))
            if waiting:
                time.sleep(POLL_SECONDS)
        self._owed |= {name: message for name, message in waiting.items() if is_training(message)}
        return replies

    @property
    def busy(self) -> set[int]:
        """Nodes that may still train for a round that is over."""
        return {message.metadata.dst_node_id for message in self._owed.values()}

    def _pulled(self, waiting: Mapping[str, Message]) -> Iterator[tuple[str, Message]]:
        """The replies to open messages that are there, with message ids; late ones are dropped."""
        awaited = self._owed | dict(waiting)
        for name, reply in self._pullers.pull(awaited, self.largest, PATIENCE_SECONDS):
            if name in waiting:
                yield name, reply
                continue
            message = self._owed.pop(name)
            if not reply.has_error():
                self.returned(message.metadata.dst_node_id)
                log(
                    WARNING,
                    "the reply of node %s to a round that is over is not used",
                    message.metadata.dst_node_id,
                )

    def _take_late(self, now: Mapping[int, str]) -> None:
        """Take late replies; their nodes, and those that restarted, owe nothing any more."""
        list(self._pulled({}))  # all of them are late
        for name, message in list(self._owed.items()):
            if _restarted(message, self._known, now):
                del self._owed[name]
        self._known |= now

    def _activations(self) -> Mapping[int, str]:
        """When each connected node was last activated."""
        return {
            node.node_id: node.last_activated_at
            for node in cast(DeployedGrid, self.inner).get_nodes()
        }


def is_training(message: Message) -> bool:
    return message.metadata.message_type == MessageType.TRAIN


def _restarted(message: Message, before: Mapping[int, str], now: Mapping[int, str]) -> bool:
    node = message.metadata.dst_node_id
    return node in now and now[node] != before.get(node, now[node])


def too_slow(message: Message, why: str) -> Message:
    """The error reply for a node that is not waited for (any longer)."""
    if not message.metadata.message_id:  # it was not sent
        message.metadata.__dict__["_message_id"] = str(uuid4())
    return Message(Error(code=TOO_SLOW, reason=why), reply_to=message)


def lost_reply(message: Message) -> Message:
    """The error reply for a message that its node lost."""
    reason = "the node restarted and has lost the message"
    return Message(Error(code=ErrorCode.NODE_UNAVAILABLE, reason=reason), reply_to=message)


PULL_SECONDS = 120.0
"""Time for the parts of one announced reply."""
PULLED_BYTES = 2**30
"""Bytes of one reply at most, until the run's model is known."""
PULL_THREADS = 4
PULL_PATHS = ("/pull-messages", "/pull-object")
"""Ends of the URLs whose answers are limited."""


class Limits:
    """Limits of bytes and time for one reply, compared with the length that the SuperLink names.

    Nothing of a longer answer is received. Without effect on a grid without HTTP.

    left: bytes that the reply may still have.
    until: end of its time, by ``time.monotonic``.
    """

    def __init__(self, grid: Grid) -> None:
        self.left, self.until = inf, inf
        client = getattr(getattr(grid, "_runtime_client", None), "_client", None)
        if client is not None:  # httpx calls it between the headers and the body
            client.event_hooks["response"].append(self._check)

    @contextmanager
    def of_one(self, largest: int) -> Iterator[None]:
        """Inside, the limits apply to what is pulled."""
        self.left, self.until = largest, time.monotonic() + PULL_SECONDS
        try:
            yield
        finally:
            self.left = self.until = inf

    def _check(self, response: Any) -> None:
        if self.left == inf or not response.request.url.path.endswith(PULL_PATHS):
            return
        self.left -= int(response.headers.get("content-length", 0))
        if self.left < 0:
            raise BoundError("it is larger than any reply of this run")
        if time.monotonic() > self.until:
            raise BoundError(f"its parts were not on the SuperLink within {PULL_SECONDS:g} seconds")


class Pullers:
    """Threads that pull replies over HTTP, each with a connection of its own.

    A grid without HTTP is asked without threads.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid, self._own = grid, threading.local()
        self._threads = (
            ThreadPoolExecutor(PULL_THREADS) if hasattr(grid, "_runtime_client") else None
        )
        self._running: dict[str, Future[list[Message]]] = {}

    def pull(
        self, messages: dict[str, Message], largest: int, patience: float
    ) -> Iterable[tuple[str, Message]]:
        """The complete replies to these messages after ``patience`` seconds, with message ids.

        Other replies are among those of a later call.
        """
        if self._threads is None:
            pulled = {
                name: pull_one(self._grid, name, message) for name, message in messages.items()
            }
            return [(name, replies[0]) for name, replies in pulled.items() if replies]
        for name in messages.keys() - self._running.keys():
            self._running[name] = self._threads.submit(self._pull, name, messages[name], largest)
        wait(self._running.values(), timeout=patience)
        done = {name: future for name, future in self._running.items() if future.done()}
        for name in done:
            del self._running[name]
        return [
            (name, replies[0])
            for name, future in done.items()
            if name in messages and (replies := future.result())
        ]

    def _pull(self, name: str, message: Message, largest: int) -> list[Message]:
        if not hasattr(self._own, "grid"):
            self._own.grid = copy.copy(self._grid)
            self._own.grid._client = None  # it connects anew
            self._own.limits = Limits(self._own.grid)
        with self._own.limits.of_one(largest):
            return pull_one(self._own.grid, name, message)


def pull_one(grid: Grid, name: str, message: Message) -> list[Message]:
    """The reply to one message in a list, empty if it is not there.

    An unreadable or foreign reply becomes an error. Raises the errors of a SuperLink that does not
    answer at all.
    """
    try:
        replies = list(grid.pull_messages([name]))
    except Exception as error:
        why = reason_of(error)
        list(grid.get_node_ids())  # raises if the SuperLink fails, and not the reply
        return [unreadable(message, why)]
    return [
        reply if is_reply_to(reply, name, message) else unreadable(message, "another message's")
        for reply in replies
    ]


def unreadable(message: Message, why: str) -> Message:
    """The error for a message that is not a reply."""
    return Message(Error(code=FAILED, reason=f"its reply cannot be read: {why}"), reply_to=message)
