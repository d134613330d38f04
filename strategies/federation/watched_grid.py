"""The grid of a deployment, which does not wait for a node that cannot reply any more.

Flower reports a node that has left, but not one that was killed and returned under its own key within a minute. Flower
never delivers again a message that the killed process had taken, and the server would wait until its timeout. Such a
node has a new time of activation. This grid answers its open messages with an error, as Flower does for a node that
has left.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from strategies.federation.pulled import PULLED_BYTES, Pullers
from strategies.federation.wrapped_grid import WrappedGrid

NODE_GONE = frozenset({
    ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE,
})  # fmt: skip
"""Flower's error codes for a message, a reply or a node that does not exist any more."""
POLL_SECONDS, PATIENCE_SECONDS = 1.0, 5.0


class Deployed(Protocol):
    """Only the grid of a deployment has this: when each connected node was last activated."""

    def get_nodes(self) -> Iterable[Any]: ...


class WatchedGrid(WrappedGrid):
    """``inner``, a Flower grid with ``get_nodes``; a node that restarted counts as one that has left.

    All but ``send_and_receive`` is the inner grid's. ``largest``: bytes of a reply.
    """

    def __init__(self, inner: Grid) -> None:
        super().__init__(inner)
        self.largest = PULLED_BYTES
        self._pullers = Pullers(inner)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """The replies until all are there or the time is over; an error for each node that restarted meanwhile."""
        sent = list(messages)
        before = self._activations()
        names = list(self.inner.push_messages(sent)) if sent else []
        open_ = {name: message for name, message in zip(names, sent, strict=False) if name is not None}
        deadline = None if timeout is None else time.monotonic() + timeout
        # Flower takes no message for a node that is not registered any more: the message has no name.
        replies = [lost_reply(message) for name, message in zip(names, sent, strict=False) if name is None]
        while open_ and (deadline is None or time.monotonic() < deadline):
            for name, reply in self._pullers.pull(open_, self.largest, PATIENCE_SECONDS):
                replies.append(reply)
                del open_[name]
            now = self._activations()
            for name, message in list(open_.items()):
                node = message.metadata.dst_node_id
                if node in now and now[node] != before.get(node, now[node]):
                    replies.append(lost_reply(open_.pop(name)))
            if open_:
                time.sleep(POLL_SECONDS)
        return replies

    def _activations(self) -> Mapping[int, str]:
        """When each connected node was last activated."""
        return {node.node_id: node.last_activated_at for node in cast(Deployed, self.inner).get_nodes()}


def lost_reply(message: Message) -> Message:
    """The error reply for a message that its node lost."""
    reason = "the node restarted and has lost the message"
    return Message(Error(code=ErrorCode.NODE_UNAVAILABLE, reason=reason), reply_to=message)
