"""Ask before what takes long: only a terminal is asked, because a log or a pipe cannot answer."""

import sys
from collections.abc import Callable

from rich.console import Console
from rich.progress import Progress

from simulations.report.words import duration

HOUR = 3600.0
"""Seconds above which a terminal is asked."""


def ask_above_an_hour(
    console: Console, progress: Callable[[], Progress], *, yes: bool, budget_seconds: float | None
) -> Callable[[float], None]:
    """What to call with an estimate of the seconds left: goes on, or raises KeyboardInterrupt if the answer is no.

    Nothing is asked with ``yes``, with a budget of an hour at most, or where nobody can answer. The runs that have
    begun go on during the question, and ``progress`` pauses.
    """

    def ask(seconds: float) -> None:
        short = min(seconds, seconds if budget_seconds is None else budget_seconds) <= HOUR
        if short or yes or not (console.is_terminal and sys.stdin.isatty()):
            return
        shown = progress()
        shown.stop()
        answer = console.input(f"This takes about {duration(seconds)}. Go on? \\[y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            raise KeyboardInterrupt
        shown.start()

    return ask
