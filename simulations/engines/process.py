"""Where Flower's log goes: into run.log, and from a worker to the driver."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from fedlsg.owner_only import make_file

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
