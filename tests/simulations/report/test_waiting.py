"""A long phase is named in a log or a pipe, once; a short one is not."""

import io
import time

from rich.console import Console

from simulations.report import waiting
from simulations.report.waiting import working

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
