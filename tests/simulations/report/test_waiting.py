"""A long phase is named in a log or a pipe, once; a short one is not."""

import io
import time

from rich.console import Console

from simulations.report import progress as waiting
from simulations.report.progress import lasting, working

LONG = 0.3


def test_a_phase_that_lasts_has_one_line(monkeypatch):
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", LONG / 3)
    console = Console(file=io.StringIO(), width=80)
    with working(console, "loading data") as say:
        time.sleep(LONG)
        say("a short phase")
        say("calibrating [noise]")
        time.sleep(LONG)
        say("another short phase")
    time.sleep(LONG)
    assert console.file.getvalue().splitlines() == ["loading data ...", "calibrating [noise] ..."]


def test_a_terminal_has_a_spinner_instead(monkeypatch):
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.0)
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with lasting(console) as say:
        say("round 2")
        time.sleep(LONG / 3)
    assert console.file.getvalue() == ""
    with working(console, "loading data") as say:
        say("calibrating noise")
        time.sleep(LONG)
    assert "calibrating noise" in console.file.getvalue()
    assert "..." not in console.file.getvalue()
