"""``fedlsg docs``: the pages of a clone, and the same pages from a wheel; messages point there, and to no file."""

import ast
import re
from pathlib import Path

from simulations.cli import docs
from tests.places import REPOSITORY

PAGES = {file.stem for file in (REPOSITORY / "docs").glob("*.md")} | {"changelog"}


def test_no_message_points_to_a_file_of_the_clone():
    """Strings of the program, without docstrings and comments: a user of pip has no docs/ folder."""
    code = [file for name in ("fedlsg", "strategies", "simulations") for file in (REPOSITORY / name).rglob("*.py")]
    pointing = {file.name: found for file in code if (found := messages(file.read_text()))}
    assert pointing == {"app.py": ["docs/presets.md", "docs/settings.md"]}  # the pages that a developer makes


def messages(code: str) -> list[str]:
    nodes = list(ast.walk(ast.parse(code)))
    described = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = (node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in described)
    return [name for text in texts if isinstance(text, str) for name in re.findall(r"docs/[\w-]+\.md", text)]


def test_every_page_that_a_message_names_exists():
    files = [file for file in (REPOSITORY / "simulations").rglob("*.py") if file != Path(docs.__file__)]
    named = {name for file in files for name in re.findall(r"fedlsg docs ([a-z][\w-]*)", file.read_text())}
    assert {"attacks", "layers", "methods"} <= named
    assert named - {"lists"} <= PAGES
