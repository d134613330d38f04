"""``fedlsg docs``: the pages of a clone, and the same pages from a wheel; messages point there, and to no file."""

import ast
import re
from pathlib import Path

import build_backend
from simulations.cli import docs
from tests.places import REPOSITORY

PAGES = {file.stem for file in (REPOSITORY / "docs").glob("*.md")} | {"changelog"}


def test_a_wheel_gets_the_same_pages_and_the_tree_keeps_none(monkeypatch, tmp_path):
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "docs" / "_static").mkdir()
    for name in ("own.md", "own.png", "results/one.md", "_static/layout.md"):
        (tmp_path / "docs" / name).write_text("# Title\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n")
    (tmp_path / "simulations").mkdir()
    monkeypatch.chdir(tmp_path)
    with build_backend._documentation():
        folder = tmp_path / build_backend.DOCUMENTATION
        assert {p.relative_to(folder).as_posix() for p in folder.rglob("*.*")} == {
            "own.md", "results/one.md", "changelog.md",
        }  # fmt: skip
        assert folder.relative_to(tmp_path) == docs.INSTALLED.relative_to(REPOSITORY)
    assert list((tmp_path / "simulations").iterdir()) == []


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
