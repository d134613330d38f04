"""A clock that stops a client: one that hangs must not lose the replies of those before it."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from fedlsg.failure import OwnEnd

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
