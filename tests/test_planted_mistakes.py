"""The planted mistakes of docs/code.md are tests that exist, and none of them waits for the slow
tests.
"""

import ast
import re
from pathlib import Path

from tests.places import REPOSITORY

PAGE = REPOSITORY / "docs" / "code.md"


def listed() -> set[str]:
    return set(re.findall(r"`(test_\w+)`", PAGE.read_text().partition("### Planted mistakes")[2]))


def marks(file: Path) -> dict[str, str]:
    """What decorates each test of a file, and the marks of all of them."""
    body = ast.parse(file.read_text()).body
    everywhere = [
        ast.unparse(n.value)
        for n in body
        if isinstance(n, ast.Assign) and "pytestmark" in ast.unparse(n)
    ]
    tests = [n for n in body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")]
    return {n.name: " ".join([*everywhere, *map(ast.unparse, n.decorator_list)]) for n in tests}


def test_planted_mistakes_are_never_slow():
    found = {
        name: said
        for file in REPOSITORY.glob("tests/**/test_*.py")
        for name, said in marks(file).items()
    }
    assert len(listed()) > 30
    assert listed() - found.keys() == set()
    assert [name for name in sorted(listed()) if "mark.slow" in found[name]] == []


def test_a_slow_one_is_seen(tmp_path):
    (tmp_path / "test_a.py").write_text("@pytest.mark.slow\ndef test_a(): ...\ndef test_b(): ...\n")
    assert marks(tmp_path / "test_a.py") == {"test_a": "pytest.mark.slow", "test_b": ""}
