"""What a run changes in its process: the signals that end it, and where Flower's log goes.

SIGTERM and SIGHUP end a run as Ctrl-C does, and a second one does not interrupt the teardown. The
log goes into run.log, and from a worker to the driver.
"""

import logging
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from fedlsg.owner_only import make_file
from fedlsg.user_code.failure import SignalExit


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SignalExit inside, so that ``finally`` runs; one ignored (nohup) or
    handled stays so.
    """

    def leave(signal_number: int, _: object) -> None:
        raise SignalExit(128 + signal_number)

    fatal = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    with _handlers(dict.fromkeys(fatal, leave)):
        yield


@contextmanager
def ignore_interrupts() -> Iterator[None]:
    """A second Ctrl-C must not interrupt the teardown, which takes a few seconds."""
    with _handlers(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN)):
        yield


def rearm() -> None:
    """Make Python's handler of SIGTERM the process's again, after a library has replaced it in
    C.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


@contextmanager
def _handlers(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    # Python allows handlers in the main thread only
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


LOGGER = "flwr"


class _Plain(logging.Formatter):
    """Time, level and message, without the codes that colour a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return click.unstyle(super().format(record))


class _File(logging.FileHandler):
    """A log that a full disk leaves incomplete: writers of other files raise the error."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


class _Kept(logging.Handler):
    """Keeps (level, text) of each record."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.levelno, record.getMessage()))


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Send Flower's log into a file instead of the terminal."""
    make_file(path)  # clients' tracebacks go there
    file = _File(path)
    file.setFormatter(_Plain("%(asctime)s %(levelname)s %(message)s"))
    try:
        with _handled_by(file):
            yield
    finally:
        with suppress(OSError):
            file.close()


@contextmanager
def kept_log() -> Iterator[list[tuple[int, str]]]:
    """In a worker: keep Flower's log, as (level, text), for the driver's ``write_log``."""
    handler = _Kept()
    with _handled_by(handler):
        yield handler.records


def write_log(records: list[tuple[int, str]]) -> None:
    """In the driver: log what a worker kept."""
    for level, text in records:
        logging.getLogger(LOGGER).log(level, "%s", text)


@contextmanager
def _handled_by(handler: logging.Handler) -> Iterator[None]:
    logger = logging.getLogger(LOGGER)
    before, logger.handlers = logger.handlers, [handler]
    try:
        yield
    finally:
        logger.handlers = before
