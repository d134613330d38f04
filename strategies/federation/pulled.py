"""The replies of a deployment, pulled one by one, so that what one node has sent is nobody else's trouble.

A node may put anything onto the SuperLink: a text of gigabytes, a tree of objects that it never uploads, objects that
are no message. Flower's grid pulls all replies at once, waits for the objects of each for up to two hours, and raises
where one cannot be read: all of them are lost then, and the run ends. A few threads pull here, so that a reply whose
objects are late, or never come, keeps no other waiting.
"""

import copy
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from math import inf
from typing import Any

from flwr.app import Error, Message
from flwr.serverapp import Grid

from strategies.federation.bounds import BoundError, reason_of
from strategies.federation.wire import FAILED

PULL_SECONDS = 120.0
"""For one reply, once it is announced."""
PULLED_BYTES = 2**30
"""Of one reply, until the run's model is known."""
WORKERS = 4
PULL_PATHS = ("/pull-messages", "/pull-object")


class Limits:
    """What one reply may still bring, and until when: compared with the length that the SuperLink announces.

    Nothing of a longer answer is received. Without effect on a grid that speaks no HTTP.
    """

    def __init__(self, grid: Grid) -> None:
        self.left, self.until = inf, inf
        client = getattr(getattr(grid, "_runtime_client", None), "_client", None)
        if client is not None:  # httpx calls it between the headers and the body
            client.event_hooks["response"].append(self._check)

    @contextmanager
    def of_one(self, largest: int) -> Iterator[None]:
        """Apply to what is pulled inside."""
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
    """Threads that pull replies over HTTP, each with a connection of its own; another grid is asked without threads."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._own = grid, threading.local()
        self._threads = ThreadPoolExecutor(WORKERS) if hasattr(grid, "_runtime_client") else None
        self._running: dict[str, Future[list[Message]]] = {}

    def pull(self, messages: dict[str, Message], largest: int, patience: float) -> Iterable[tuple[str, Message]]:
        """The replies to these messages that are there within a few seconds, each by the name of what it answers.

        What is not complete by then is among those of a later call.
        """
        if self._threads is None:
            found = {name: pull_one(self._grid, name, message) for name, message in messages.items()}
            return [(name, replies[0]) for name, replies in found.items() if replies]
        for name in messages.keys() - self._running.keys():
            self._running[name] = self._threads.submit(self._pull, name, messages[name], largest)
        wait(self._running.values(), timeout=patience)
        done = {name: future for name, future in self._running.items() if future.done()}
        for name in done:
            del self._running[name]
        return [
            (name, replies[0]) for name, future in done.items() if name in messages and (replies := future.result())
        ]

    def _pull(self, name: str, message: Message, largest: int) -> list[Message]:
        if not hasattr(self._own, "grid"):
            self._own.grid = copy.copy(self._grid)
            self._own.grid._client = None  # it connects anew
            self._own.limits = Limits(self._own.grid)
        with self._own.limits.of_one(largest):
            return pull_one(self._own.grid, name, message)


def pull_one(grid: Grid, name: str, message: Message) -> list[Message]:
    """The reply to one message if it is there, an error in its place if it is no reply to it.

    Raises whatever the SuperLink itself raises, when it does not answer.
    """
    try:
        replies = list(grid.pull_messages([name]))
    except Exception as error:
        why = reason_of(error)
        list(grid.get_node_ids())  # raises, too, where it is not the reply that fails
        return [unreadable(message, why)]
    return [reply if _answers(reply, name, message) else unreadable(message, "another message's") for reply in replies]


def _answers(reply: Message, name: str, message: Message) -> bool:
    """Whether it is what it says: a node writes the metadata of its reply itself."""
    sent_by = reply.metadata.src_node_id
    return reply.metadata.reply_to_message_id == name and (reply.has_error() or sent_by == message.metadata.dst_node_id)


def unreadable(message: Message, why: str) -> Message:
    """The error for a reply that is none."""
    return Message(Error(code=FAILED, reason=f"its reply cannot be read: {why}"), reply_to=message)
