"""Cells made from other rows, or another recipe, than the cells before: refused, and lines of their
own in a report.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedlsg.simulations.compare.compare_command import grid_of, report_command, run_grid
from fedlsg.simulations.compare.grid import same_contents
from fedlsg.simulations.compare.grid.cell_worker import Job, Outcome, Shared, run_cell
from fedlsg.simulations.compare.grid.runner import CELLS, Limits
from fedlsg.simulations.compare.results.collect import read_runs, version_notes
from fedlsg.simulations.compare.results.lines import lines
from tests.simulations.support.compare_cases import FakeWorker

CODE = '''"""Own data, and an own recipe that reads a file."""

import json
from pathlib import Path

from torch import nn

import fedlsg


def workload():
    """Two classes."""
    return fedlsg.Workload(
        model=lambda: nn.Linear(3, 2),
        train="train.csv",
        test="test.csv",
        targets="y",
        loss=nn.CrossEntropyLoss(),
        settings={"clients": 2, "learning_rate": 0.5},
    )


def recipe(*, mechanism, server):
    """A share of the weights."""
    share = json.loads(Path("share.json").read_text())
    mask = fedlsg.recipe("rs", sparsity=share).mask
    return fedlsg.Method(name="own", mask=mask, mechanism=mechanism, server=server)
'''
METHODS = {"dpsgd": "dpsgd", "own": "w.py:recipe"}
CHANGES: dict[str, Any] = {
    "training rows": lambda folder: table(folder / "train.csv", 60, seed=9),
    "test rows": lambda folder: table(folder / "test.csv", 30, seed=9),
    "recipe": lambda folder: (folder / "share.json").write_text("0.75"),
}
"""What changes between two cells, by what the refusal names."""


def table(path: Path, rows: int, seed: int) -> None:
    """A file of ``rows`` rows with two classes."""
    inputs = np.random.default_rng(seed).normal(size=(rows, 3))
    data = np.column_stack([inputs, inputs.sum(1) > 0])
    np.savetxt(path, data, delimiter=",", header="a,b,c,y", comments="", fmt="%g")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.py").write_text(CODE)
    (tmp_path / "share.json").write_text("0.5")
    table(tmp_path / "train.csv", 60, seed=0)
    table(tmp_path / "test.csv", 30, seed=1)
    return tmp_path


def run(folder: Path, method: str, seed: int, out: str = "cmp") -> Outcome:
    """A cell of a comparison, in this process."""
    given = {
        "workload": f"{folder / 'w.py'}:workload",
        "method": METHODS[method].replace("w.py", str(folder / "w.py")),
        "rounds": 1,
        "epsilon": 8.0,
        "seed": seed,
        "engine": "local",
    }
    cell = folder / out / CELLS / f"{method}-seed{seed}"
    job = Job(path=str(cell), log=str(folder / "logs" / f"{cell.name}.log"), given=given)
    with ExitStack() as ray:
        return run_cell(job, ray, Shared())


@pytest.mark.parametrize("what", CHANGES)
def test_a_cell_is_refused_before_it_is_charged(folder, what):
    for method in METHODS:
        assert not run(folder, method, 0).reason
        assert not run(folder, method, 1).reason  # negative control: nothing has changed
    CHANGES[what](folder)
    outcome = run(folder, "own", 2)
    assert outcome.refused
    assert f"another version of the {what}" in outcome.reason
    assert "give another --out, or remove the folders of these runs" in outcome.reason
    assert "own-seed0, own-seed1" in outcome.reason
    assert not (folder / "cmp" / CELLS / "own-seed2").exists(), "nothing was written or charged"
    # rows are those of all methods, a recipe is that of one
    assert ("dpsgd-seed0" in outcome.reason) == (what != "recipe")
    assert run(folder, "dpsgd", 2).refused == (what != "recipe")


def test_without_the_check_a_line_averages_over_both(folder, monkeypatch):
    """Negative control: the numbers of such a line are of neither data set."""
    monkeypatch.setattr(same_contents, "check_same_contents", lambda *_: None)
    run(folder, "dpsgd", 0)
    CHANGES["training rows"](folder)
    assert run(folder, "dpsgd", 1).status == "done"


@pytest.mark.parametrize("what", CHANGES)
def test_a_report_has_a_line_for_each_version(folder, what, capsys):
    for method in METHODS:
        run(folder, method, 0, "one")
    same = read_runs([folder / "one"])
    assert not version_notes(same)  # negative control
    CHANGES[what](folder)
    for method in METHODS:
        run(folder, method, 1, "two")
    runs = read_runs([folder / "one", folder / "two"])
    made = lines(runs)
    of_all = what != "recipe"  # the recipe of dpsgd is the same in both
    assert sorted(made.n) == ([1, 1, 1, 1] if of_all else [1, 1, 2])
    assert made.task.nunique() == (2 if of_all else 1), "other rows are another task"
    versions = [label.partition("=")[2] for label in made.label if "dpsgd" not in label]
    assert sorted(versions) == ["version 1)", "version 2)"]
    (note,) = version_notes(runs)
    assert note.startswith(f"The {what} of")
    report_command(["one", "two"], "report", Console(width=400))
    assert note in capsys.readouterr().out
    digests = {digest for run in runs for digest in _digests(folder, run.name)}
    page = (folder / "report/report.html").read_text()
    assert not any(digest[:8] in page for digest in digests), "digests of rows are secret"


def _digests(folder: Path, cell: str) -> list[str]:
    files = folder.glob(f"*/{CELLS}/{cell}/clients/training-data.json")
    return [part for file in files for part in file.read_text().split('"') if len(part) == 64]


def test_a_refused_cell_ends_the_comparison(folder):
    log: list[str] = []
    refused = Outcome(status="failed", reason="made from other rows", refused=True)
    grid = grid_of({}, "digits", {"methods": "dpsgd", "seeds": 3}, {"rounds": 1})
    with pytest.raises(ValueError, match="made from other rows"):
        run_grid(
            grid,
            "cmp",
            Limits(jobs=1),
            Console(quiet=True),
            new_worker=lambda: FakeWorker(lambda job: refused, log),
        )
    assert [line for line in log if line.startswith("start ")] == ["start dpsgd-seed0"]
