"""Shorten the waits of Flower's simulation: it looks for messages and replies ten times a second, too slow for small
rounds.

Here, each push of the server wakes the thread that hands messages to Ray, and the server looks for replies more often.
Both threads are in one process. Flower has no setting for either; without this module a run is only slower.
"""

import sys
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from flwr.app import Message

if TYPE_CHECKING:  # Ray's actors import this module, and do not need it
    from flwr.superlink.grid.inmemory_grid import InMemoryGrid

REPLIES_SECONDS = 0.01

_PUSHED = threading.Event()


class Woken:
    """Flower's stopping event, whose ``wait`` ends early when messages were pushed."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop, self.is_set = stop, stop.is_set

    def wait(self, seconds: float) -> bool:
        """Wait for a push, ``seconds`` at most; returns whether to stop."""
        _PUSHED.wait(seconds)
        _PUSHED.clear()  # before the caller looks: a later push wakes it again
        return self.stop.is_set()


def hand_on_at_once() -> None:
    """In Flower's simulation process, before it hands on messages: let a push wake it. Elsewhere no effect."""
    vce = sys.modules.get("flwr.server.superlink.fleet.vce.vce_api")
    looking: Callable[..., None] | None = getattr(vce, "add_messages_to_queue", None)
    if looking is None or hasattr(looking, "woken"):
        return

    def woken(state: Any, queue: Any, nodes_mapping: Any, f_stop: threading.Event) -> None:
        looking(state, queue, nodes_mapping, Woken(f_stop))

    woken.woken = True  # type: ignore[attr-defined]
    vce.add_messages_to_queue = woken  # type: ignore[union-attr]


def reply_at_once(grid: "InMemoryGrid") -> None:
    """Have a simulation's grid wake the thread that hands its messages on, and look for replies often."""
    push = grid.push_messages

    def push_and_wake(messages: Iterable[Message]) -> Iterable[str]:
        ids = push(messages)
        _PUSHED.set()
        return ids

    grid.push_messages = push_and_wake  # type: ignore[method-assign]
    grid.pull_interval = REPLIES_SECONDS
