"""The notebooks of docs/notebooks, run from beginning to end; as a program, it stores their
outputs.

    python -m tests.examples.notebooks

The site shows the stored outputs. Noise is secret, so numbers differ from run to run: what makes
outputs current is that they come from this code, whose digest is stored with them, and that a new
run has outputs of the same kinds.
"""

import asyncio
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat

from tests.places import REPOSITORY

FOLDER = REPOSITORY / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SECONDS = 300
"""Most that one cell may take on a busy machine; on an idle one a notebook takes about 10."""
SHOWN = ("image/png", "text/html", "text/plain")
"""Forms of an output, the first of which is kept."""


def read(path: Path) -> Any:
    """A notebook."""
    return nbformat.read(path, as_version=4)


def execute(notebook: Any, folder: Path) -> Any:
    """The notebook with the outputs of all cells, run in ``folder``. Raises CellExecutionError for
    one that fails.
    """
    client = nbclient.NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    asyncio.run(client.async_execute())
    return client.nb


def code_cells(notebook: Any) -> list[Any]:
    """Its cells of code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def digest(notebook: Any) -> str:
    """Of the code of all cells."""
    return hashlib.sha256(
        "\0".join(cell.source for cell in code_cells(notebook)).encode()
    ).hexdigest()


def kinds(notebook: Any) -> list[list[str]]:
    """What each cell puts out: names of streams, and forms."""
    return [[kind(output) for output in cell.outputs] for cell in code_cells(notebook)]


def kind(output: Any) -> str:
    """The name of a stream, the form that is kept, or the type."""
    data = output.get("data", {})
    return str(
        output.get("name") or next((form for form in SHOWN if form in data), output.output_type)
    )


def strip(notebook: Any, folder: Path) -> None:
    """Leave what the site shows: one form of each output, no times, no name of ``folder``; and the
    code's digest.
    """
    for cell in code_cells(notebook):
        cell.metadata.clear()
        cell.execution_count = None
        for output in cell.outputs:
            if "data" in output:
                output["data"] = {kind(output): output["data"][kind(output)]}
                output["metadata"] = {}
                output.pop("execution_count", None)
                if output.output_type == "execute_result":
                    output.output_type = "display_data"
            for place, text in [*output.get("data", {}).items(), ("text", output.get("text"))]:
                if isinstance(text, str) and str(folder) in text:
                    target = output if place == "text" else output["data"]
                    target[place] = text.replace(str(folder), "runs")
    notebook.metadata["fedlsg"] = {"sha256_of_code": digest(notebook)}
    notebook.metadata["language_info"] = {"name": "python"}


def main() -> None:
    """Run all notebooks and store their outputs."""
    os.environ["PYTHONPATH"] = str(REPOSITORY)
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TMPDIR"] = folder
            notebook = execute(read(path), Path(folder))
            strip(notebook, Path(folder))
        nbformat.write(notebook, path)
        print(path.relative_to(REPOSITORY), f"{path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
