"""Progress: a live display that fits the terminal, and plain lines with an estimate where there is none."""

import io
from typing import Any

import pytest
from rich.console import Console

from simulations.report.progress import (
    LINES,
    showing,
)
from simulations.rundir.tables import Row

ESCAPE = "\x1b"


def row(round: int, **changes: Any) -> Row:
    values = dict.fromkeys(Row.__dataclass_fields__, 0) | {
        "only": None,
        "simulated": None,
        "round": round, "accuracy": 0.5, "loss": 1.0, "epsilon_max": 1.234, "epsilon_median": 1.2,
        "uplink_bytes": 1000, "downlink_bytes": 2000, "seconds": 2.0,
        "asked": "0 1", "answered": "0 1", "rejected": "", "reasons": "",
    }  # fmt: skip
    return Row(**(values | changes))


class Clock:
    """A clock that goes on by ``step`` seconds whenever it is read."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 100.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Each look at the clock is a second later."""
    clock = Clock(1.0)
    monkeypatch.setattr("simulations.report.progress.monotonic", clock)
    return clock


def log() -> Console:
    return Console(width=80, file=io.StringIO())


def lines_of(console: Console) -> list[str]:
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert ESCAPE not in text
    return text.splitlines()


def terminal(width: int, **options: Any) -> Console:
    return Console(force_terminal=True, width=width, file=io.StringIO(), legacy_windows=False, **options)


def test_plain_lines_where_there_is_no_terminal(second):
    console = log()
    with showing(console, 40, 0) as display:
        for round in range(1, 41):
            display.on_round(row(round, accuracy=None if round < 40 else 0.75, loss=None))
    first, *lines = lines_of(console)
    assert first.startswith("estimate: about ")
    assert len(lines) == LINES
    assert lines[0] == "round    2/40  accuracy --  epsilon 1.24  up 2.00 kB  down 4.00 kB  left 00:57"
    assert lines[-1] == "round   40/40  accuracy 75.00 %  epsilon 1.24  up 40.00 kB  down 80.00 kB"
