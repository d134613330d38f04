"""Flower's log: sent into run.log, and from a worker to the driver."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from fedlsg.owner_only import make_file

LOGGER = "flwr"
"""The name of Flower's logger, which fedlsg uses, too."""


class _Plain(logging.Formatter):
    """Time, level and message, without the codes that colour a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return click.unstyle(super().format(record))


class _File(logging.FileHandler):
    """A log that ignores a full disk: writers of other files raise the error."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


class _ListHandler(logging.Handler):
    """Appends (level, text) of each log record to ``records``."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.levelno, record.getMessage()))


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Send Flower's log into a file in the block, instead of the terminal."""
    make_file(path)  # for its owner only: it gets clients' tracebacks
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
    """Collect the log of the block, as (level, text), for ``write_log``; used in workers."""
    handler = _ListHandler()
    with _handled_by(handler):
        yield handler.records


def write_log(records: list[tuple[int, str]]) -> None:
    """Log the records of a worker; used in the driver."""
    for level, text in records:
        logging.getLogger(LOGGER).log(level, "%s", text)


@contextmanager
def _handled_by(handler: logging.Handler) -> Iterator[None]:
    """Replace the handlers of Flower's logger in the block."""
    logger = logging.getLogger(LOGGER)
    before, logger.handlers = logger.handlers, [handler]
    try:
        yield
    finally:
        logger.handlers = before
