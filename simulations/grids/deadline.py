"""How long a simulated client may take, and the clock that stops one that hangs: others' replies must not be lost.

The limit follows from the settings of its run and the messages that it answers. Under a trusted server
(``trust=server``) there is none: who slows the machine down would decide whether others reply in time, and epsilon
counts on each client being in the sum, or not, by its own data alone.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from flwr.app import Message, MessageType

from fedlsg.participation import ClientLimit
from fedlsg.user_code.failure import OwnEnd
from simulations.grids.piles import Task
from simulations.settings.run import Settings
from strategies.federation.secure_sum.wire import MASKED, stage_of
from strategies.federation.wire import TOO_SLOW, failure


def limit_by(s: Settings) -> ClientLimit:
    """Given by a setting, or learnt."""
    return ClientLimit(s.client_timeout, learns=s.trust != "server")


def limit_of(limit: ClientLimit, task: Task) -> float:
    """Seconds that the client may take for a task; infinite for a query, which may load data."""
    if task.message.metadata.message_type != MessageType.TRAIN:
        return math.inf
    return limit.seconds(task.message.metadata.dst_node_id, work=task.work, kind=kind_of(task.message))


def learn(limit: ClientLimit, task: Task, reply: Message | None, seconds: float) -> None:
    """A client took so long; a failure says nothing of the time that the work takes."""
    trains = task.message.metadata.message_type == MessageType.TRAIN
    if trains and reply is not None and not reply.has_error():
        limit.took(task.message.metadata.dst_node_id, seconds, work=task.work, kind=kind_of(task.message))


def too_slow(message: Message, seconds: float) -> Message:
    """The reply for a client that was stopped."""
    return failure(f"stopped: it took longer than client_timeout, which is {seconds:.3g} s here", TOO_SLOW, message)


def kind_of(message: Message) -> str:
    """Training, with or without a secure sum, or a stage of one that trains nothing."""
    stage = stage_of(message.content)
    return "" if stage in (None, MASKED) else str(stage)


T = TypeVar("T")


class OutOfTimeError(OwnEnd):
    """A client is stopped. Not an ``Exception``: handlers of those would reply, and the next client would begin."""


@contextmanager
def ending(until: float | None) -> Iterator[None]:
    """Raise OutOfTimeError inside when the clock (seconds since the epoch) shows ``until``, None for never.

    It uses a signal: without effect inside a library that never returns to Python, outside the main thread, and on
    Windows.
    """
    main = threading.current_thread() is threading.main_thread()
    if until is None or not (main and hasattr(signal, "setitimer")):
        yield
        return

    def cut_off(*_: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, cut_off)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(until - time.time(), 1e-3))
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def call_until(until: float, call: Callable[[], T]) -> tuple[T | None, bool]:
    """What a call returns, and whether it was stopped: then it returned nothing. ``until``: see ``ending``; inf: never.

    Nothing of what the stopped call worked on may be used again: it ended anywhere.
    """
    try:
        with ending(None if until == math.inf else until):
            return call(), False
    except OutOfTimeError:
        return None, True
