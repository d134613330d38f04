"""The README is short and keeps the test command; its figure shows measured numbers; papers.md has no gaps."""

import re

from tests.places import REPOSITORY

README = REPOSITORY / "README.md"
PAPERS = REPOSITORY / "docs" / "papers.md"
ROW = re.compile(r"^\| (?!in the paper)([^|-][^|]*) \| ([^|]*) \|", re.MULTILINE)
SAID = ("missing", "theory", "drawing", "fedlsg ", "python ", "preset", "](results/")


def test_the_readme_is_short_and_keeps_the_test_command():
    text = README.read_text()
    assert len(text.splitlines()) < 120
    command = 'python -m pytest -m "not slow and not gpu" -n 2'
    assert command in text
    assert command in (REPOSITORY / ".ci" / "run").read_text()


def uncovered(text: str) -> list[str]:
    """Rows that neither name a command or a result nor say that there is none."""
    return [item for item, cell in ROW.findall(text) if not any(word in cell for word in SAID)]


def test_every_row_of_the_papers_has_a_command_or_says_missing():
    text = PAPERS.read_text()
    assert uncovered(text) == []
    assert len(ROW.findall(text)) > 75
    assert uncovered(text + "\n| Eq. 9 | soon | |\n") == ["Eq. 9"]
