"""Cells that other code of a user's own made: refused where a grid goes on, and lines of their own
in a report.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedlsg.simulations.compare.compare_command import grid_of, report_command, run_grid
from fedlsg.simulations.compare.grid.cell_worker import Job, Outcome
from fedlsg.simulations.compare.grid.grid_file import split_settings
from fedlsg.simulations.compare.grid.runner import CELLS, Limits
from fedlsg.simulations.compare.results import comparison_files
from fedlsg.simulations.compare.results.collect import code_notes, read_runs
from fedlsg.simulations.compare.results.comparison_table import (
    comparison_table,
    setting_names,
    table_csv,
)
from fedlsg.simulations.compare.results.lines import full_labels, lines
from fedlsg.simulations.compare.search import make_job, search_command, search_files, trials
from fedlsg.simulations.planning.trust import keep_code
from fedlsg.simulations.storage.run_directory import RunDir
from tests.simulations.support.compare_cases import FakeWorker

RECIPE = '''"""A recipe."""

from typing import Annotated

import fedlsg
from helper import PARTS


def recipe(
    *,
    parts: Annotated[int, fedlsg.Setting("Parts of each weight.", at_least=1)] = 4,
    mechanism,
    server,
):
    """Every weight."""
    return fedlsg.Method(name="mine", mechanism=mechanism, server=server)
'''
WORKLOAD = '''"""A workload."""

import torch

import fedlsg


def workload():
    """Two classes."""
    rows = torch.randn(40, 3), torch.arange(40) % 2
    loss = torch.nn.CrossEntropyLoss()
    return fedlsg.Workload(train=rows, test=rows, model=lambda: torch.nn.Linear(3, 2), loss=loss)
'''


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user's code; comparisons draw no page, which takes seconds."""
    monkeypatch.setattr(comparison_files, "write_page", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(RECIPE)
    (tmp_path / "helper.py").write_text("PARTS = 4\n")
    return tmp_path


def finished(job: Job, score: float = 0.5) -> Outcome:
    """A cell that leaves what a finished run leaves: its settings, the record of its code, its
    summary.
    """
    run = RunDir(Path(job.path))
    run.path.mkdir(parents=True, exist_ok=True)
    keep_code(run.path, job.given, {})
    given = "".join(f"{name} = {value!r}\n" for name, value in job.given.items())
    run.config.write_text(given.replace("'", '"'))
    run.write_summary({"accuracy": score, "loss": 1.0, "epsilon_max": 8.0, "private": True})
    return Outcome(status="done")


def compare(
    methods: str, seeds: int, outcomes: Callable[[Job], Outcome] = finished, **given: Any
) -> list[str]:
    """The cells that ran; the comparison is in the folder ``cmp``."""
    log: list[str] = []
    grid = grid_of({}, given.pop("workload", "digits"), {"methods": methods, "seeds": seeds}, given)
    run_grid(
        grid,
        "cmp",
        Limits(),
        Console(quiet=True),
        new_worker=lambda: FakeWorker(outcomes, log),
    )
    return [line.removeprefix("start ") for line in log if line.startswith("start ")]


def test_a_comparison_does_not_go_on_with_other_code(code):
    assert compare("mine.py:recipe,dpsgd", 1) == ["mine-recipe-seed0", "dpsgd-seed0"]
    # negative control: the same code goes on
    assert compare("mine.py:recipe,dpsgd", 2) == ["mine-recipe-seed1", "dpsgd-seed1"]
    before = (code / "cmp/results.csv").read_bytes()
    (code / "mine.py").write_text(RECIPE + "# another version\n")
    for seeds in (2, 3):  # also where no cell is left to run
        with pytest.raises(ValueError, match="holds cells that other code made") as refused:
            compare("mine.py:recipe,dpsgd", seeds)
    words = str(refused.value)
    assert "the code of the run's own method differs from that which this run began with" in words
    assert "restore the file mine.py, or give another --out, or remove the folders" in words
    assert words.endswith(f"{CELLS}: mine-recipe-seed0, mine-recipe-seed1")
    assert (code / "cmp/results.csv").read_bytes() == before
    assert compare("dpsgd", 3) == ["dpsgd-seed2"]  # cells without code of the user's own go on
    for cell in (code / "cmp" / CELLS).glob("mine-recipe-*"):
        cell.rename(code / cell.name)  # the way out
    assert len(compare("mine.py:recipe,dpsgd", 2)) == 2


def test_a_file_that_a_recipe_imports_counts(code):
    compare("mine.py:recipe", 1)
    (code / "helper.py").write_text("PARTS = 8\n")
    with pytest.raises(ValueError, match=r"restore the file helper\.py"):
        compare("mine.py:recipe", 1)


def test_so_does_an_own_workload(code):
    (code / "data.py").write_text(WORKLOAD)
    compare("dpsgd,sgd", 4, workload="data.py:workload")
    (code / "data.py").write_text(WORKLOAD.replace("Two classes.", "Two others."))
    with pytest.raises(ValueError, match=r"own workload differs .* sgd-seed2, 2 more"):
        compare("dpsgd,sgd", 4, workload="data.py:workload")


def test_a_search_does_not_go_on_with_other_code(code, monkeypatch):
    log: list[str] = []
    monkeypatch.setattr(trials, "Worker", lambda: FakeWorker(finished, log))
    monkeypatch.setattr(search_files, "write", search_files.write_tables)

    def search() -> int:
        axes = {"methods": "mine.py:recipe"}
        grid = grid_of({}, "digits", axes, {"rounds": 1, "clients": 2, "noise_multiplier": 2.0})
        job = make_job(grid, ["learning_rate=0.5,1"], on="synthetic", out="search")
        return search_command(job, Console(quiet=True), Limits())[0]

    trial = code / "search" / CELLS / "mine-recipe-trial000"
    assert search() == 0
    assert (trial / "code.json").exists()
    assert search() == 0  # negative control: the same code goes on
    (code / "mine.py").write_text(RECIPE + "# another version\n")
    with pytest.raises(ValueError, match=r"restore the file mine\.py"):
        search()


def test_a_report_averages_no_runs_of_different_code(code, capsys):
    compare("mine.py:recipe,dpsgd", 2)
    one_version = read_runs([code / "cmp"])
    assert list(lines(one_version).n) == [2, 2]
    assert not code_notes(one_version)  # negative control
    (code / "mine.py").write_text(RECIPE + "# another version\n")
    run = code / "cmp" / CELLS / "mine-recipe-seed1"
    keep_code(run, {"method": str(code / "mine.py:recipe")}, {})
    runs = read_runs([code / "cmp"])
    table = lines(runs)
    assert sorted(table.n) == [1, 1, 2]
    codes = {run.code for run in runs if run.code}
    assert {*table.label} == {"dpsgd", *(f"mine-recipe (code={code})" for code in codes)}
    (note,) = code_notes(runs)
    assert note.startswith("Runs of mine-recipe on digits were made by 2 versions of your own code")
    report_command(["cmp"], "report", Console(width=200))
    assert note in capsys.readouterr().out
    assert note in (code / "report/report.html").read_text()
    assert note in (code / "report/table.md").read_text()


def test_settings_of_a_recipe_of_the_user_s_own_have_a_column(code):
    """``FILE.py:recipe`` is called by its file alone, too."""
    compare("mine.py:recipe,dpsgd", 1, **{"mine.parts": 8, "mine.clip_norm": 0.5})
    table = lines(read_runs([code / "cmp"]))
    assert setting_names(table) == ["parts"]  # control: those that every method has are not
    shown = comparison_table(table)
    place = shown.columns.index("parts")
    assert sorted(row.cells[place] for row in shown.rows) == ["--", "8"]
    assert "parts" in table_csv(table).partition("\n")[0].split(",")


def test_the_file_of_a_recipe_is_a_label():
    known = ["mine-recipe", "lsg"]
    assert full_labels({"mine": "Mine", "lsg": "LSG"}, known) == {
        "mine-recipe": "Mine",
        "lsg": "LSG",
    }
    # control: a method of that name, or none
    assert full_labels({"mine": "Mine"}, [*known, "mine"]) == {"mine": "Mine"}
    assert full_labels({"min": "Mine"}, known) == {"min": "Mine"}
    assert split_settings({"mine.rank": 4}, known)[1] == {"mine-recipe": {"rank": 4}, "lsg": {}}
