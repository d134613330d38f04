"""Notebooks as pages: their text, code and stored outputs. Nothing is executed while the site is
built.
"""

import json
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx

MOST_LINES = 60
"""Longest output that is shown."""


class NotebookParser(MystParser):
    """Reads a notebook as the Markdown that it amounts to."""

    supported = ("ipynb",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Parse the text of a .ipynb file."""
        super().parse(as_markdown(json.loads(inputstring)), document)


def as_markdown(notebook: dict[str, Any]) -> str:
    """All cells of a notebook as Markdown."""
    return "\n\n".join(part for cell in notebook["cells"] for part in parts(cell) if part) + "\n"


def parts(cell: dict[str, Any]) -> list[str]:
    """A cell and its outputs."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    if cell["cell_type"] != "code" or not source.strip():
        return []
    return [fenced("python", source), *(shown(output) for output in cell.get("outputs", ()))]


def shown(output: dict[str, Any]) -> str:
    """An output: a picture, a table in HTML, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        return html(
            f'<img alt="Figure made by the cell above" src="data:image/png;base64,{"".join(data["image/png"])}">'
        )
    if "image/svg+xml" in data:
        return html("".join(data["image/svg+xml"]))
    if "text/html" in data:
        return html("".join(data["text/html"]))
    lines = "".join(output.get("text", data.get("text/plain", ""))).rstrip().splitlines()
    return fenced("text", "\n".join(lines[:MOST_LINES])) if lines else ""


def html(text: str) -> str:
    """Raw HTML, for MyST, without line breaks in base64 data."""
    return fenced("{raw} html", f'<div class="output">{text}</div>')


def fenced(kind: str, text: str) -> str:
    """A fenced block."""
    return f"``````{kind}\n{text}\n``````"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
