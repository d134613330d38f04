"""Progress: a live display that fits the terminal, and plain lines with an estimate where there is none."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from simulations.compare.cells.progress import START_SECONDS, GridDisplay
from simulations.compare.cells.runner import Folder
from simulations.compare.cells.worker import Outcome
from simulations.report.progress import (
    LINES,
    WIDTH,
    Facts,
    Meter,
    RoundDisplay,
    bar,
    clock,
    count_bar,
    is_live,
    showing,
)
from simulations.rundir.tables import Row
from tests.simulations.support.compare_cases import grid

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


def test_a_rejected_client_is_named_at_once():
    console = log()
    with showing(console, 100, 0) as display:
        display.on_round(row(1, rejected="3", reasons="3: [1001] ValueError [bold]", seconds=0.0))
    assert lines_of(console) == ["round 1: client 3: [1001] ValueError [bold]"]


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


def test_facts_break_between_facts_only():
    console = Console(width=16, file=io.StringIO(), record=True)
    console.print(Facts(facts=("a one", "b two", "three three", "a fact that is too long")))
    assert console.export_text().splitlines() == ["a one  b two", "three three", "a fact that is …"]


def test_time_left_is_the_mean_of_this_process(monkeypatch):
    """Rounds 4 and 5 of 10 took two seconds each; five are left."""
    now = iter([0.0, 100.0, 102.0])
    monkeypatch.setattr("simulations.report.progress.monotonic", lambda: next(now))
    display = RoundDisplay(log(), 10, 3)
    task = display.progress.tasks[0]
    assert task.fields["left"] == "left --:--"
    display.on_round(row(4))
    display.on_round(row(5))
    assert task.fields["left"] == "left 00:10"


def test_a_clock():
    assert [clock(seconds) for seconds in (0.9, 59, 61, 3599, 3600, 90_061)] == [
        "00:00", "00:59", "01:01", "59:59", "1:00:00", "25:01:01",
    ]  # fmt: skip


@pytest.mark.parametrize(("step", "announced"), [(1.0, True), (0.01, False)])
def test_a_long_command_announces_an_estimate_in_a_log(step, announced, monkeypatch):
    """Planted: a clock that is so fast that nothing is worth an announcement."""
    monkeypatch.setattr("simulations.report.progress.monotonic", Clock(step))
    console = log()
    with count_bar(console, "step", 1000) as advance:
        for _ in range(100):
            advance("loss 0.5")
    lines = lines_of(console)
    if not announced:
        assert lines == []
        return
    assert lines[0] == "estimate: about 16.6 minutes left"
    assert lines[-1] == "step 100/1000  loss 0.5  left 15:00"


def test_a_share_has_lines_with_what_is_next(second):
    console = log()
    with bar(console, "attacking") as tick:
        for part in range(101):
            tick(part / 100, f"update {part} of 100")
    lines = lines_of(console)
    assert lines[0] == "estimate: about 3.3 minutes left"
    assert lines[-1].startswith("attacking 100 %  update 100 of 100")
    assert len(lines) == LINES + 1


def test_pauses_bound_the_lines_of_a_fast_command():
    console = log()
    with bar(console, "attacking") as tick:
        for part in range(101):
            tick(part / 100, "")
    assert lines_of(console) == []


def test_a_dumb_terminal_gets_plain_lines(monkeypatch, second):
    monkeypatch.setenv("TERM", "dumb")
    console = terminal(80)
    assert console.is_terminal
    assert not is_live(console)
    meter = Meter(console, 4, what="round", of=lambda done: f"{done:.0f}/4", pause=0.0)
    with meter.progress:
        meter.show(4)
    assert lines_of(console) == ["round 4/4"]


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


@pytest.mark.parametrize("start", [10.0, 500.0])
def test_a_grid_estimates_from_its_running_cells(start, monkeypatch, tmp_path):
    """Two cells, the first at 30 of 100 rounds of 0.3 s: 1.7 cells of 30 s and a start are left, said once in a log.

    That the first process took long to start says nothing about the other cells.
    """
    now = [0.0]
    monkeypatch.setattr("simulations.compare.cells.progress.time.monotonic", lambda: now[0])
    cells = grid().cells()
    console, rows = log(), [row(n + 1, seconds=0.3) for n in range(30)]
    told: list[float] = []
    display = GridDisplay(console, Folder(tmp_path), cells=2, done=0, on_estimate=told.append)
    result = SimpleNamespace(rows=[], settings={"rounds": 100}, accuracy=0.5)
    monkeypatch.setattr(display, "_look", lambda cell: result)
    display.started(cells[0])
    for result.rows, now[0] in ((rows[:0], 1.0), (rows[:2], 2.0), (rows, start), (rows, start + 1)):
        display.running(cells[:1])
    assert told == [pytest.approx(1.7 * (30 + START_SECONDS))]
    assert lines_of(console) == ["estimate: about 54.4 s left"]
    display.ended(cells[0], Outcome(status="failed", reason="no"), 11.0)
    assert display.progress.tasks[0].fields["left"] == "left --:--"
