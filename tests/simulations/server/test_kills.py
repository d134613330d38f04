"""kill -9 at any time of a run on the local engine: resumed, it ends as the unbroken one, or resume
refuses.

Two kinds of kills: between two chosen operations on files of the run directory, which reaches every
moment at which something could be half written; and after a time, as a user or the system would.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.simulations.support.broken_runs import copy_run, same, state_of
from tests.simulations.support.killed_process import said, start
from tests.simulations.support.runs import Run, plan_at, run_local

SETTINGS: dict[str, Any] = {"rounds": 5, "clients": 3, "evaluate_every": 3, "downlink": "sparse"}
posix = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_local(tmp_path_factory.mktemp("unbroken") / "run", **SETTINGS)


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many operations on its directory a whole run takes."""
    _, directory = plan_at(tmp_path_factory.mktemp("counted") / "run", **SETTINGS)
    process = start(directory.path)
    process.join()
    assert process.exitcode == 0
    return int(said(directory.path))


def entries(run: Run) -> dict[int, list[tuple[int, str, int, int]]]:
    return {
        client: [entry.key for entry in run.entries(client)]
        for client in run.directory.charges.clients()
    }


def check(run: Run, unbroken: Run) -> str:
    """What became of a run that was killed: "same", or "refused" with nothing lost."""
    found = state_of(run), state_of(unbroken)
    assert entries(run) == entries(unbroken), "an entry too few, or too many"
    assert same(*found)
    return "same"


def finished(run: Run) -> int:
    """Rows of rounds.csv, the header apart, as they are just now."""
    return (
        max(0, run.directory.rounds.read_bytes().count(b"\n") - 1)
        if run.directory.rounds.exists()
        else 0
    )


def finish(run: Run) -> str:
    """Resume to the end; what a refusal says."""
    process = start(run.path)
    process.join()
    return "" if process.exitcode == 0 else said(run.path)


def killed_in_steps(folder: Path, unbroken: Run, operations: int, draw: np.random.Generator) -> str:
    """Killed, resumed and killed again, then resumed to the end."""
    _, directory = plan_at(folder, **SETTINGS)
    run = Run(directory.path)
    for _ in range(int(draw.integers(1, 4))):
        process = start(run.path, int(draw.integers(1, operations)))
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL), said(run.path)
    refusal = finish(run)
    return f"refused: {refusal}" if refusal else check(run, unbroken)


@pytest.mark.slow
@posix
def test_killed_between_two_operations_on_files(unbroken, operations, tmp_path):
    draw = np.random.default_rng(14)
    assert killed_in_steps(tmp_path / "run", unbroken, operations, draw) == "same"


@posix
@pytest.mark.slow
def test_killed_between_two_operations_on_files_often(unbroken, operations, tmp_path):
    draw = np.random.default_rng(15)
    found = [killed_in_steps(tmp_path / f"{i}", unbroken, operations, draw) for i in range(20)]
    print(found)
    assert found == ["same"] * 20


@posix
@pytest.mark.slow
def test_10_kills_at_random_moments(tmp_path):
    """One run, killed ten times by another process, each time some rounds later and at any point of
    a round.
    """
    settings = SETTINGS | {"rounds": 50}
    unbroken = run_local(tmp_path / "unbroken", **settings)
    _, directory = plan_at(tmp_path / "run", **settings)
    draw, run, rounds = np.random.default_rng(16), Run(directory.path), []
    for _ in range(10):
        process = start(run.path)
        goal = finished(run) + int(draw.integers(1, 6))
        while process.is_alive() and finished(run) < goal:
            time.sleep(0.002)
        time.sleep(float(draw.uniform(0, 0.2)))
        process.kill()
        process.join()
        rounds.append(run.directory.last_round())
    print("checkpoints at the kills:", rounds)
    assert finish(run) == ""
    assert check(run, unbroken) == "same"


def test_an_entry_too_few_is_found(unbroken, tmp_path):
    """Negative control of ``check``."""
    run = copy_run(unbroken.path, tmp_path / "run")
    assert check(run, unbroken) == "same"
    path = run.directory.charges.path
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(AssertionError, match="an entry too few"):
        check(run, unbroken)
