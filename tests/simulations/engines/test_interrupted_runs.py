"""SIGINT, SIGTERM and SIGHUP end whole runs: cells of ``benchmarks.signals``, whose table is
docs/results/faults.md.
"""

import pytest

from benchmarks.signals import GCS, Cell, end, interrupted

LOCAL = [
    ("import", "TERM"),
    ("plan", "HUP"),
    ("before round 1", "INT, INT"),
    ("round", "INT"),
    ("report", "TERM"),
    ("resume", "HUP"),
]
RAY = [
    ("Ray's start", "TERM"),
    ("before round 1", "TERM"),
    ("round", "INT, INT"),
    ("report", "HUP"),
    ("before round 1", GCS),
    ("report", GCS),
]
FLOWER = [("round", "INT"), ("resume", "TERM")]
CELLS = [
    pytest.param("local", *LOCAL[0]),
    *(pytest.param("local", *cell, marks=pytest.mark.slow) for cell in LOCAL[1:]),
    *(pytest.param("ray", *cell, marks=(pytest.mark.slow, pytest.mark.ray)) for cell in RAY),
    *(pytest.param("flower", *cell, marks=(pytest.mark.slow, pytest.mark.ray)) for cell in FLOWER),
]


@pytest.mark.parametrize(("engine", "phase", "name"), CELLS)
def test_a_signal_ends_a_run_with_its_status_and_leaves_nothing(engine, phase, name):
    cell = Cell(engine=engine, phase=phase, signal=name)
    with interrupted() as begun:
        ending = end(cell, begun(engine) if phase == "resume" else None)
    assert ending.faults(cell) == [], ending.printed[-3000:]
