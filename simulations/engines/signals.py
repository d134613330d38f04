"""Signals of a run: SIGTERM and SIGHUP end it as Ctrl-C does, and a second one does not interrupt the teardown."""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fedlsg.user_code.failure import SignalExit


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SignalExit inside, so that ``finally`` runs; one ignored (nohup) or handled stays so."""

    def leave(signal_number: int, _: object) -> None:
        raise SignalExit(128 + signal_number)

    fatal = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    with _handlers(dict.fromkeys(fatal, leave)):
        yield


@contextmanager
def ignore_interrupts() -> Iterator[None]:
    """A second Ctrl-C must not interrupt the teardown, which takes a few seconds."""
    with _handlers(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN)):
        yield


def rearm() -> None:
    """Make Python's handler of SIGTERM the process's again, after a library has replaced it in C."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


@contextmanager
def _handlers(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # Python allows handlers in the main thread only
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
