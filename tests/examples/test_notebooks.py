"""The notebooks of the docs run from beginning to end, each in a kernel and a folder of its own."""

import copy

import pytest

pytest.importorskip(
    "nbclient", reason="nbclient and ipykernel (requirements-dev.txt) are not installed"
)


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


@BY_NAME
def test_the_stored_outputs_are_those_of_this_code(path):
    """Else: python -m tests.examples.notebooks"""
    notebook = read(path)
    assert notebook.metadata["fedlsg"]["sha256_of_code"] == digest(notebook)
    code_cells(notebook)[0].source += "\n"
    assert notebook.metadata["fedlsg"]["sha256_of_code"] != digest(notebook)
    assert path.stat().st_size < MOST_BYTES
    assert "/tmp/" not in path.read_text()
