"""``fedlsg.compare``: real runs, of objects in this process and of names in others."""

import csv
import subprocess
import sys
import warnings
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from torch import nn

import fedlsg
from fedlsg.privacy.data_record import SpentTogetherWarning
from fedlsg.simulations.cli.export import charts_of
from fedlsg.simulations.compare import in_python
from fedlsg.simulations.compare.compare_command import folder_of, report_command
from fedlsg.simulations.compare.grid import cell_worker
from fedlsg.simulations.compare.grid.grid_file import read_toml
from fedlsg.simulations.compare.in_python import _COMPARED, _folder_of_objects
from fedlsg.simulations.compare.results.plots import FRONT
from fedlsg.simulations.report.drawing.chart import REFERENCES
from fedlsg.simulations.report.words import NOT_PRIVATE
from fedlsg.simulations.storage.manifest import MANIFEST_FILE
from tests.simulations.support.runs import SMALL

TINY = {name: value for name, value in SMALL.items() if name not in ("engine", "noise_multiplier")}


def workload() -> fedlsg.Workload:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 3)).astype("float32")
    y = (x.sum(1) > 0).astype("int64")
    return fedlsg.Workload(
        model=lambda: nn.Linear(3, 2),
        train=(x[:40], y[:40]),
        test=(x[40:], y[40:]),
        loss=nn.CrossEntropyLoss(),
    )


@pytest.mark.slow
def test_objects_of_this_process_are_compared_here_and_go_on(tmp_path):
    def call() -> object:
        return fedlsg.compare(
            workload,
            {"dpsgd": {}, "still": {"method": "dpsgd", "learning_rate": 0.0001}},
            epsilons=[4.0, 8.0],
            labels={"still": "no <steps>"},
            out=tmp_path / "grid",
            quiet=True,
            **TINY,
        )

    made = call()
    assert len(made.frame) == 4  # a line for each method and epsilon
    assert set(made.frame.label) == {"dpsgd", "no <steps>"}
    assert made.frame.n.eq(1).all()
    assert len(made.runs) == 4
    html = made._repr_html_()
    assert "no &lt;steps&gt;" in html
    assert "data:image/png;base64," in html
    assert len(made.plot("learning-curves").axes) == 2
    with pytest.raises(ValueError, match="unknown figure 'curves'; known: accuracy-epsilon"):
        made.plot("curves")
    for name in ("table.tex", "report.html", "cells.json"):
        assert (made.folder / name).exists()
    runs = sorted((made.folder / "cells").iterdir())
    before = [(run / "summary.json").stat().st_mtime_ns for run in runs]
    assert all((run / MANIFEST_FILE).exists() for run in runs)
    again = call()
    assert again.frame.equals(made.frame)
    assert [(run / "summary.json").stat().st_mtime_ns for run in runs] == before


def named_lines(folder: Path, tmp_path: Path) -> tuple[set[str], set[str]]:
    """The names of the methods in the table that ``report`` makes, and in exported figures."""
    silent, out = Console(quiet=True), tmp_path / "report"
    report_command([str(folder)], str(out), silent)
    table = csv.DictReader((out / "table.csv").read_text().splitlines())
    drawn = charts_of(folder, silent).values()
    names = {one.name for chart in drawn for one in chart.series} - {"", FRONT, *REFERENCES}
    return {row["label"] for row in table}, {
        name.removesuffix(f", {NOT_PRIVATE}") for name in names
    }


@pytest.mark.slow
def test_a_folder_keeps_the_names_of_its_methods(tmp_path):
    """Every later command on it has them; later calls add to them, and replace one."""
    own, folder = workload(), tmp_path / "grid"
    given = {"out": folder, "quiet": True, "noise_multiplier": 2.0, **TINY}
    methods = {"dpsgd": {}, "still": {"method": "dpsgd", "learning_rate": 0.0001}}
    for labels, names in (
        ({"dpsgd": "DP-SGD"}, {"DP-SGD", "still"}),
        ({"still": "no steps"}, {"DP-SGD", "no steps"}),
        ({"dpsgd": "Abadi et al."}, {"Abadi et al.", "no steps"}),
        ({}, {"Abadi et al.", "no steps"}),
    ):
        made = fedlsg.compare(own, methods, labels=labels, **given)
        assert set(made.frame.label) == names
        assert named_lines(folder, tmp_path) == (names, names)
    assert read_toml(str(folder / "grid.toml"), "grid")["labels"]["still"] == "no steps"
    with pytest.raises(ValueError, match=r"dpsgd=no steps: still is called that in this folder"):
        fedlsg.compare(own, methods, labels={"dpsgd": "no steps"}, **given)


def recipe():
    """Another one of the same name in each call."""

    def mine(*, mechanism, server):
        """DP-SGD under another name."""
        return fedlsg.recipe("dpsgd", mechanism=mechanism, server=server)

    return mine


def test_an_error_has_no_frames_of_fedlsg():
    with pytest.raises(ValueError, match="expected a method label") as caught:
        fedlsg.compare("digits", {"LoRA 50%": {"method": "lora"}})
    files = [Path(frame.path).name for frame in caught.traceback]
    assert files == ["test_in_python.py", "short_traceback.py"]


def test_runs_of_other_objects_are_no_runs_of_these(tmp_path):
    (tmp_path / "grid" / "cells").mkdir(parents=True)
    given = {"epsilons": [4.0], "out": tmp_path / "grid", "quiet": True, **TINY}
    with pytest.raises(ValueError, match="has runs of other objects, or of an earlier process"):
        fedlsg.compare(workload, ["dpsgd"], **given)
    with pytest.raises(ValueError, match="two methods are called"):
        fedlsg.compare(workload, [recipe(), recipe()], **given)


def test_the_usual_folder_of_objects_has_a_number_where_it_is_not_theirs(tmp_path, monkeypatch):
    """What an earlier process left is not touched; the same objects find their folder again."""
    monkeypatch.chdir(tmp_path)
    usual = folder_of("own", None)
    assert usual == tmp_path / "runs" / "compare-own"
    mine, other = workload(), workload()
    folders = list[str]()
    for objects in ([mine], [mine], [other], [mine], [mine, recipe]):
        folders.append(_folder_of_objects("own", None, objects).name)
        (usual.with_name(folders[-1]) / "cells").mkdir(parents=True, exist_ok=True)
    again = ["compare-own", "compare-own", "compare-own-2", "compare-own", "compare-own-3"]
    assert folders == again
    _COMPARED.clear()  # as in a new process
    assert _folder_of_objects("own", None, [mine]).name == "compare-own-4"


@pytest.mark.slow
def test_a_second_process_says_which_folder_it_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "compare-own" / "cells").mkdir(parents=True)
    heard = StringIO()
    monkeypatch.setattr(in_python, "Console", lambda quiet: Console(file=heard, width=200))
    made = fedlsg.compare(workload(), ["dpsgd"], noise_multiplier=2.0, **TINY)
    assert made.folder == tmp_path / "runs" / "compare-own-2"
    assert (
        f"compare-own has runs of other objects, or of an earlier process: these are in {made.folder}"
        in heard.getvalue()
    )


@pytest.mark.slow
@pytest.mark.parametrize("planted", [False, True])
def test_runs_of_a_comparison_are_on_the_record_of_their_rows(tmp_path, planted, monkeypatch):
    """Two runs of one mechanism on the same rows: more than each, and no more than their sum.
    Control: off the record they would have spent nothing.
    """
    if planted:
        whole = cell_worker.run_cell
        unrecorded = lambda job, ray, shared, recorded: whole(job, ray, shared)  # noqa: E731
        monkeypatch.setattr(cell_worker, "run_cell", unrecorded)
    own = workload()
    settings = {name: value for name, value in TINY.items() if name != "reproducible"}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        made = fedlsg.compare(
            own, ["dpsgd"], epsilons=[2.0], seeds=2, out=tmp_path / "grid", quiet=True, **settings
        )
    one = float(made.frame.epsilon_max[0])
    spent = fedlsg.epsilon_of_data(own.train)
    assert (one < spent <= 2 * one) == (not planted)
    assert any(issubclass(w.category, SpentTogetherWarning) for w in heard) == (not planted)
    assert planted or spent > 0
    assert not planted or spent == 0


SCRIPT = """
import fedlsg

made = fedlsg.compare("digits", ["sgd"], seeds=2, out="grid", quiet=True, clients=2, rounds=1, sample_rate=0.05)
print(made.frame.n[0], sum(1 for _ in (made.folder / "cells").iterdir()))
"""


@pytest.mark.slow
def test_a_script_without_a_guard_compares_once(tmp_path):
    """multiprocessing runs the script of the parent again in each new process."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["2", "2"], done.stderr


def test_what_cannot_be_is_refused_before_anything_runs(tmp_path):
    out = tmp_path / "grid"
    for arguments, message in (
        ({"methods": ["lsgg"]}, "unknown method 'lsgg'"),
        ({"methods": []}, "at least one method"),
        ({"methods": ["lsg"], "sparcity": 1}, "unknown setting 'sparcity'"),
        ({"methods": ["lsg"], "labels": {"rgp": "R"}}, "nothing is called that"),
        ({"workload": workload, "methods": ["dpsgd"], "jobs": 2}, "one at a time"),
    ):
        with pytest.raises(ValueError, match=message):
            fedlsg.compare(**({"workload": "digits", "out": out, "quiet": True} | arguments))
    assert not out.exists()
