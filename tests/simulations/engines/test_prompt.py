"""What the server pushes wakes Flower's own thread; the thread's code is Flower's, as installed."""

import queue
import threading
import time
from types import SimpleNamespace

import pytest
from flwr.server.superlink.fleet.vce import vce_api

from simulations.grids import prompt

SLOW = 0.1
"""Flower's pause between two looks, in seconds."""


class Inbox:
    """Flower's store of messages, as far as the thread and the grid use it."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self.looks = 0

    def get_message_ins(self, node_id: int, limit: int) -> list[str]:
        self.looks += 1
        taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
        return taken


@pytest.fixture
def woken(monkeypatch):
    """Flower's thread function, changed."""
    monkeypatch.setattr(vce_api, "add_messages_to_queue", vce_api.add_messages_to_queue)
    prompt.hand_on_at_once()
    return vce_api.add_messages_to_queue


def delays(looking, grid, inbox, times: int) -> list[float]:
    """Seconds from each push to the message's arrival in the queue of the workers."""
    stop, arrived, found = threading.Event(), queue.Queue(), []
    thread = threading.Thread(target=looking, args=(inbox, arrived, {1: 0}, stop))
    thread.start()
    try:
        for i in range(times):
            time.sleep(0.2 * SLOW)  # so that a push comes in the middle of a pause
            pushed = time.monotonic()
            grid.push_messages([str(i)])
            assert arrived.get(timeout=10 * SLOW) == str(i)
            found.append(time.monotonic() - pushed)
    finally:
        stop.set()
        thread.join(10)
    assert not thread.is_alive(), "it still stops when Flower says so"
    return found


def test_a_push_wakes_the_thread_that_hands_messages_on(woken):
    inbox = Inbox()
    grid = SimpleNamespace(push_messages=lambda messages: inbox.waiting.extend(messages), pull_interval=SLOW)
    prompt.reply_at_once(grid)
    assert min(delays(woken, grid, inbox, 5)) < 0.2 * SLOW
    assert inbox.looks < 60, "it waits in between"
    assert grid.pull_interval < SLOW


def test_flowers_own_thread_is_slower(monkeypatch):
    """Negative control: without the change a message waits for the next look."""
    inbox = Inbox()
    grid = SimpleNamespace(push_messages=lambda messages: inbox.waiting.extend(messages))
    assert max(delays(vce_api.add_messages_to_queue, grid, inbox, 5)) > 0.5 * SLOW


def test_it_is_changed_once(woken):
    prompt.hand_on_at_once()
    assert vce_api.add_messages_to_queue is woken


def test_without_flowers_simulation_nothing_happens(monkeypatch):
    monkeypatch.delitem(prompt.sys.modules, "flwr.server.superlink.fleet.vce.vce_api")
    prompt.hand_on_at_once()
    assert not hasattr(vce_api.add_messages_to_queue, "woken")
