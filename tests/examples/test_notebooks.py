"""The notebooks of the docs run from beginning to end, each in a kernel and a folder of its own."""

import copy

import pytest

pytest.importorskip("nbclient", reason="nbclient and ipykernel (requirements-dev.txt) are not installed")

import nbformat
from nbclient.exceptions import CellExecutionError

from tests.examples.notebooks import NOTEBOOKS, code_cells, digest, execute, kinds, read, strip
from tests.places import REPOSITORY

MOST_BYTES = 300_000
BY_NAME = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.mark.slow
@BY_NAME
def test_a_notebook_runs_and_its_stored_outputs_are_of_the_same_kinds(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    stored = read(path)
    again = execute(copy.deepcopy(stored), tmp_path)
    strip(again, tmp_path)
    assert kinds(again) == kinds(stored)
    assert sum(cell.count("image/png") for cell in kinds(again)) >= 1
    assert not any("stderr" in cell for cell in kinds(again))


def test_a_cell_that_fails_is_found(tmp_path):
    broken = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute(broken, tmp_path)


@BY_NAME
def test_the_stored_outputs_are_those_of_this_code(path):
    """Else: python -m tests.examples.notebooks"""
    notebook = read(path)
    assert notebook.metadata["fedlsg"]["sha256_of_code"] == digest(notebook)
    code_cells(notebook)[0].source += "\n"
    assert notebook.metadata["fedlsg"]["sha256_of_code"] != digest(notebook)
    assert path.stat().st_size < MOST_BYTES
    assert "/tmp/" not in path.read_text()


CELLS = (
    "import fedlsg\nsettings = dict(workload='digits', engine='local', clients=2, rounds=3, noise_multiplier=2.0)\n"
    "run = fedlsg.simulate(**settings)",
    "run = fedlsg.simulate(**settings)\nfigure = run.plot()\nfigure",
    "figure",
    "run",
)


@pytest.mark.slow
def test_two_runs_in_one_kernel_show_a_line_of_progress_and_a_plot_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    shown = [cell.outputs for cell in execute(nbformat.v4.new_notebook(cells=cells), tmp_path).cells]
    html = [[str(output.get("data", {}).get("text/html", "")) for output in outputs] for outputs in shown]
    assert [sum("<progress" in text for text in texts) for texts in html] == [1, 1, 0, 0]
    assert [sum("image/png" in output.get("data", {}) for output in outputs) for outputs in shown] == [0, 1, 1, 0]
    assert "epsilon" in html[3][-1]
