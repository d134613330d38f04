"""``fedlsg.compare``: real runs, of objects in this process and of names in others."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
from torch import nn

import fedlsg
from fedlsg.privacy.data_record import SpentTogetherWarning
from fedlsg.simulations.compare.grid import cell_worker
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


def recipe():
    """Another one of the same name in each call."""

    def mine(*, mechanism, server):
        """DP-SGD under another name."""
        return fedlsg.recipe("dpsgd", mechanism=mechanism, server=server)

    return mine


def test_runs_of_other_objects_are_no_runs_of_these(tmp_path):
    (tmp_path / "grid" / "cells").mkdir(parents=True)
    given = {"epsilons": [4.0], "out": tmp_path / "grid", "quiet": True, **TINY}
    with pytest.raises(ValueError, match="has runs of other objects, or of an earlier process"):
        fedlsg.compare(workload, ["dpsgd"], **given)
    with pytest.raises(ValueError, match="two methods are called"):
        fedlsg.compare(workload, [recipe(), recipe()], **given)


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
