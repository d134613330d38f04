"""Progress: a live display that fits the terminal, and plain lines with an estimate where there is none."""

import io
from typing import Any

import pytest
from rich.console import Console

from simulations.report.progress import (
    LINES,
    WIDTH,
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


@pytest.mark.parametrize("width", [30, 60, 80, 120])
def test_a_live_display_has_a_bar_and_every_fact(width):
    console = terminal(width, color_system=None)
    with showing(console, 100, 59) as display:
        display.on_round(row(60, epsilon_max=12.34, uplink_bytes=12_500_000, downlink_bytes=45_000_000))
        task = display.progress.tasks[0]
        assert (task.completed, task.total) == (60, 100)
        text = "".join(s.text for s in console.render(display.progress.get_renderable()))
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0].startswith("round ")
    assert "━━━" in lines[0]
    assert lines[0].endswith(" 60/100 left 01:20")
    assert max(map(len, lines)) <= min(width, WIDTH)
    assert "  ".join(lines[1:]) == "accuracy 50.00 %  epsilon 12.34  up 12.50 MB  down 45.00 MB"
    assert len(lines) == {30: 4, 60: 2, 80: 2, 120: 2}[width]


def test_no_color_is_respected(monkeypatch):
    """Planted: without NO_COLOR there are colours."""
    for name, coloured in (("NO_COLOR", False), ("UNSET", True)):
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv(name, "1")
        console = terminal(80)
        with showing(console, 10, 0) as display:
            display.on_round(row(1, rejected="3", reasons="no", seconds=0.0))
        assert ("\x1b[33m" in console.file.getvalue()) is coloured  # type: ignore[attr-defined]
