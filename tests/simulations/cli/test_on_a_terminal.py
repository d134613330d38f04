"""``fedlsg`` on a real pseudo-terminal: 80 columns, then 60, then Ctrl-C."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.simulations.support.terminal import Terminal

LONG = [
    "run",
    "--engine",
    "local",
    "--clients",
    "2",
    "--rounds",
    "100000",
    "--noise-multiplier",
    "2",
    "-c",
    "sample_rate=0.05",
    "-c",
    "evaluate_every=1000",
    "--out",
    "here",
]
ESCAPE = b"\x1b"
ENDED_BY_CTRL_C = (130, -signal.SIGINT)
"""Python ends itself by the signal if it passed code that was compiled from a string; a shell says
130 for both.
"""
SHOW_CURSOR = b"\x1b[?25h"


@contextmanager
def on_terminal(arguments: list[str], cwd: Path, **options: Any) -> Iterator[Terminal]:
    terminal = Terminal(arguments, cwd, **options)
    try:
        yield terminal
    finally:
        terminal.close()


def bar_of(lines: list[str]) -> str | None:
    """The line of the bar, once the time left is known."""
    return next(
        (line for line in lines if re.search(r"^round +━.* +\d+/100000 left \d+:\d\d", line)), None
    )


@pytest.mark.slow
def test_a_run_on_a_terminal(tmp_path):
    """The bar, the facts, a narrower window, and Ctrl-C: one line says how to continue, and the
    cursor is back.
    """
    with on_terminal(LONG, tmp_path) as terminal:
        lines = terminal.until(lambda lines: bar_of(lines) in lines[:-1])
        assert len(bar_of(lines)) <= 80
        facts = lines[lines.index(bar_of(lines)) + 1]
        assert re.match(
            r"accuracy \S+( %)?  epsilon \d+\.\d{3}  up \S+ \S+  down \S+ \S+$", facts
        ), facts
        terminal.resize(60)
        terminal.until(lambda lines: len(bar_of(lines) or " " * 80) <= 60)
        terminal.interrupt()
        assert terminal.status() in ENDED_BY_CTRL_C
        assert "fedlsg: error: interrupted" in terminal.lines
        assert "continue with: fedlsg resume" in " ".join(terminal.lines)
        assert terminal.raw.rindex(SHOW_CURSOR) > terminal.raw.rindex(b"\x1b[?25l")
    assert ESCAPE not in (tmp_path / "here" / "run.log").read_bytes()
