"""The notebooks of the docs run from beginning to end, each in a kernel and a folder of its own."""

import asyncio
from pathlib import Path

import pytest

from tests.places import REPOSITORY
from tests.test_documents import problems

nbclient = pytest.importorskip("nbclient")  # of requirements-dev.txt, with ipykernel
nbformat = pytest.importorskip("nbformat")

FOLDER = REPOSITORY / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SECONDS = 300
"""Most that one cell may take on a busy machine; on an idle one a notebook takes about 10."""


def execute(notebook, folder: Path) -> None:
    """Run all cells in ``folder``. Raises CellExecutionError for a cell that fails."""
    client = nbclient.NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    asyncio.run(client.async_execute())


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_draws(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
    execute(notebook, tmp_path)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 1
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []


def test_a_cell_that_fails_is_found(tmp_path):
    broken = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="ZeroDivisionError"):
        execute(broken, tmp_path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs_and_its_links_lead_somewhere(path):
    cells = nbformat.read(path, as_version=4).cells
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert problems(text, FOLDER) == []


def test_there_are_three_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["first-federation", "own-model-and-method", "sparsity"]
