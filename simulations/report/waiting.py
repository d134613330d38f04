"""What a command is doing while nothing else is printed: a spinner on a terminal; elsewhere a line where it lasts."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

from rich.console import Console

from simulations.report.progress import is_live
from simulations.report.terminal import print_line
from simulations.workloads import Progress, silent

PATIENCE_SECONDS = 10.0
"""A phase that is over sooner is not mentioned in a log or a pipe."""


class Phases:
    """Called with what begins now; it is printed once, if the phase still lasts after ``PATIENCE_SECONDS``."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._timer: Timer | None = None

    def __call__(self, what: str) -> None:
        self.end()
        self._timer = Timer(PATIENCE_SECONDS, print_line, [f"{what} ...", self._console, "dim"])
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Nothing is waited for."""
        if self._timer is not None:
            self._timer.cancel()


@contextmanager
def lasting(console: Console) -> Iterator[Progress]:
    """The yielded function says what begins now, in a log or a pipe. On a terminal something else shows it."""
    if is_live(console):
        yield silent
        return
    phases = Phases(console)
    try:
        yield phases
    finally:
        phases.end()


@contextmanager
def working(console: Console, what: str) -> Iterator[Progress]:
    """Show ``what`` is done, and later what the yielded function is called with."""
    if is_live(console):
        with console.status(what) as status:
            yield status.update
        return
    with lasting(console) as say:
        say(what)
        yield say
