"""The grid as it runs: skipped, resumed, refused, failed, out of time, interrupted; then the real
processes.
"""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedlsg.simulations.compare.grid.cell_worker import Job, Outcome, Shared, run_cell
from fedlsg.simulations.compare.grid.cells import Cell
from fedlsg.simulations.compare.grid.runner import Folder, check_same_settings, run_cells
from fedlsg.simulations.compare.results.collect import cell_result
from fedlsg.simulations.storage.run_directory import RunDir
from tests.simulations.support.compare_cases import fake, grid
from tests.simulations.support.runs import SMALL

TINY = {"clients": 2, "rounds": 2, "sample_rate": 0.05, "noise_multiplier": 2.0}
OPTIONS = [word for name, value in TINY.items() for word in ("-c", f"{name}={value}")]


class Heard:
    """The callbacks, written down."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    def started(self, cell: Cell) -> None: ...

    def running(self, cells: Any) -> None: ...

    def ended(self, cell: Cell, outcome: Outcome) -> None:
        self.ends.append(f"{cell.name} {outcome.status}")


def run(
    folder: Folder, cells: list[Cell], outcomes: Any, **options: Any
) -> tuple[list[str], list[str]]:
    """(how cells ended, what the workers were asked)."""
    heard, (new_worker, log) = Heard(), fake(outcomes)
    run_cells(
        cells,
        folder,
        started=heard.started,
        running=heard.running,
        ended=heard.ended,
        new_worker=new_worker,
        **options,
    )
    return heard.ends, log


def finish(job: Job) -> Outcome:
    """A cell that leaves a summary."""
    Path(job.path).mkdir(parents=True, exist_ok=True)
    (Path(job.path) / "config.toml").write_text('workload = "digits"\n')
    RunDir(Path(job.path)).write_summary({})
    return Outcome(status="done")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "grid")


def test_a_failure_is_recorded_and_the_grid_goes_on(folder):
    cells = grid(seeds=2).cells()

    def outcomes(job: Job) -> Outcome:
        return Outcome(status="failed", reason="rank too big") if "lsg" in job.path else finish(job)

    ends, log = run(folder, cells, outcomes)
    assert ends == ["lsg-seed0 failed", "sgd-seed0 done", "lsg-seed1 failed", "sgd-seed1 done"]
    assert log.count("close") == 3  # a fresh process after each failure, and the last one
    left = [cell_result(folder, cell, folder.record()) for cell in cells if cell.label == "lsg"]
    assert [(r.status, r.reason) for r in left] == [("failed", "rank too big")] * 2
    again, _ = run(folder, cells, finish)
    assert again == ["lsg-seed0 done", "lsg-seed1 done"]  # finished cells are not run again


def asked(settings: dict[str, Any], **keys: Any) -> list[Cell]:
    return grid(settings=settings, methods={"lsg": keys}).cells()


@pytest.mark.parametrize("record", [True, False])
def test_other_settings_are_refused_by_name(record, folder):
    (cell,) = asked({"learning_rate": 0.5}, rank=4)
    run(folder, [cell], finish)
    (folder.run(cell).path / "config.toml").write_text(
        'workload = "digits"\nmethod = "lsg"\nlearning-rate = 0.5\nrank = 4\n'
    )
    if not record:
        (folder.path / "cells.json").unlink()
    # moves no result
    check_same_settings(folder, asked({"learning_rate": 0.5, "threads": 2}, rank=4))
    with pytest.raises(
        ValueError,
        match=r"lsg-seed0 was run with learning_rate = 0.5 \(now 0.25\); .*another --out",
    ):
        check_same_settings(folder, asked({"learning_rate": 0.25}, rank=4))
    with pytest.raises(ValueError, match=r"rank = 4 \(now 8\)"):
        check_same_settings(folder, asked({"learning_rate": 0.5}, rank=8))
    if record:  # a setting that is no longer given shows only in the record
        with pytest.raises(ValueError, match=r"learning_rate = 0.5 \(now unset\)"):
            check_same_settings(folder, asked({}, rank=4))


GIVEN = {**SMALL, "workload": "digits", "method": "lsg", "seed": 0, "reproducible": True}


def job(path: Path, **changes: Any) -> Job:
    return Job(path=str(path), log=str(path.parent / "log"), given=GIVEN | changes)


@pytest.mark.slow
def test_cells_of_a_process_share_data_and_nothing_that_a_result_shows(tmp_path):
    shared, found = Shared(), []
    for name, changes in (
        ("one", {}),
        ("again", {}),
        ("other", {"partition": "dirichlet"}),
        ("last", {}),
    ):
        outcome = run_cell(job(tmp_path / name, **changes), ExitStack(), shared)
        assert (outcome.status, outcome.reason) == ("done", "")
        assert outcome.seconds > 0
        found.append((shared.data, (tmp_path / name / "model.safetensors").read_bytes()))
    data, models = zip(*found, strict=True)
    assert all(one is data[0] is not None for one in data)
    assert models[0] == models[1] == models[3] != models[2]
    shared.prepare(GIVEN | {"normalise": "public"})
    assert shared.data is not data[0]  # negative control: other data are loaded


@pytest.mark.slow
def test_compare_end_to_end(fedlsg, tmp_path):
    """Runs, skips what is done, and refuses other settings and cells that cannot run, before it
    starts any.
    """
    command = ["compare", "digits", "--methods", "lsg,sgd", *OPTIONS, "--out", "here"]
    status, out, err = fedlsg(*command)
    assert (status, err) == (0, ""), out
    assert "[2/2] sgd-seed0: done" in out
    here = tmp_path / "here"
    assert {p.name for p in here.iterdir()} >= {
        "grid.toml",
        "cells.json",
        "results.csv",
        "table.csv",
        "table.md",
        "report.html",
        "cells",
        "logs",
        "plots",
    }
    before = {p: p.read_bytes() for p in (here / "cells").rglob("*") if p.is_file()}
    more = ("compare", "--grid", "here/grid.toml", "--methods", "lsg,sgd,rgp", "--out", "here")
    status, out, err = fedlsg(*more, "-c", "rgp.rank=4000")
    assert status == 1
    assert (
        "1 of 1 cells cannot run, so none was started: rgp-seed0: rank=4000 carries no layer" in err
    )
    with (here / "results.csv").open() as file:
        assert [(r["method"], r["status"]) for r in csv.DictReader(file)] == [
            ("lsg", "done"),
            ("sgd", "done"),
        ]
    status, out, err = fedlsg(*command, "-c", "learning_rate=0.25")
    assert status == 1
    assert "learning_rate = unset (now 0.25)" in err
    assert {p: p.read_bytes() for p in (here / "cells").rglob("*") if p.is_file()} == before


WRONG = {
    "no methods": ((), "at least one method"),
    "unknown workload": (("digitz", "--methods", "lsg"), "unknown workload 'digitz'"),
    "unknown method": (("--methods", "lsgg"), "unknown method 'lsgg'"),
    "misspelt setting": (("--methods", "lsg", "-c", "sparcity=1"), "unknown setting 'sparcity'"),
    "stranger's setting": (
        ("--methods", "lsg", "-c", "rgp.rank=1"),
        "unknown method of this grid 'rgp'",
    ),
    "no number": (("--methods", "lsg", "--epsilons", "1,x"), "expected --epsilons as numbers"),
    "no jobs": (("--methods", "lsg", "--jobs", "0"), "--jobs 0 >= 1"),
    "no time": (("--methods", "lsg", "--budget-minutes", "0"), "--budget-minutes 0"),
    "no grid file": (("--grid", "nowhere.toml"), "cannot read the grid file nowhere.toml"),
    "unwritable": (
        ("--methods", "lsg", "--out", "/dev/null/grid"),
        "cannot write to /dev/null/grid",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_grid_is_one_line_and_leaves_nothing(kind, fedlsg, tmp_path):
    arguments, message = WRONG[kind]
    status, out, err = fedlsg("compare", *arguments)
    assert status != 0
    assert message in err
    assert len(err.splitlines()) == 1
    assert out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ended_in_the_middle_no_process_is_left_and_the_cell_is_resumable(number, tmp_path):
    """SIGINT to the parent, as Ctrl-C; and SIGKILL, after which the worker must notice by
    itself.
    """
    command = [
        sys.executable,
        "-m",
        "fedlsg",
        "compare",
        "digits",
        "--methods",
        "sgd",
        "--out",
        str(tmp_path),
    ]
    command += ["-c", "rounds=5000", "-c", "evaluate_every=5000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    cell = RunDir(tmp_path / "cells" / "sgd-seed0")
    wait_until(lambda: cell.rounds.exists() and cell.rounds.read_text().count("\n") > 3)
    holder = int((cell.path / ".lock").read_text())
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert number == signal.SIGKILL or err.strip() == "fedlsg: error: interrupted"
    wait_until(lambda: not alive(holder))
    assert not cell.summary.exists()
    assert 2 <= cell.last_round() < 5000  # the third row may lie there before its checkpoint does
    assert json.loads((tmp_path / "cells.json").read_text())["sgd-seed0"]["status"] == "interrupted"


def wait_until(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
