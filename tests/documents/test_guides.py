"""The guide of a package, a line ``module   what it is`` for each, names what is in its folder."""

import ast
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tests.places import REPOSITORY

PACKAGES = ("fedlsg", "strategies", "simulations")
ENTRY = re.compile(r"\s*(\w+) {2,}(\S.*)")


def guides(text: str) -> Iterator[list[tuple[str, str]]]:
    """The (first word, what follows) of each table in a docstring; a table of numbers is none."""
    lines = [line for line in text.splitlines() if ENTRY.fullmatch(line) or not line.strip()]
    for is_blank, table in groupby(lines, key=lambda line: not line.strip()):
        entries = [match.groups() for match in map(ENTRY.fullmatch, table) if match]
        if not is_blank and not any(word.isdigit() for word, _ in entries):
            yield [(str(word), str(what)) for word, what in entries]


def wrong_entries(folder: Path) -> list[str]:
    """Words of a package's guide that are no module or package of it, or share their line."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    there = {path.stem for path in folder.glob("*.py")}
    there |= {path.parent.name for path in folder.glob("*/__init__.py")}
    return [
        f"{folder.name}: {word}"
        for guide in guides(text)
        for word, what in guide
        if word not in there or "  " in what
    ]


def packages() -> list[Path]:
    return [file.parent for name in PACKAGES for file in (REPOSITORY / name).glob("**/__init__.py")]


def test_guides_name_what_is_in_their_folders():
    with_guides = [folder for folder in packages() if "   " in (folder / "__init__.py").read_text()]
    assert len(with_guides) > 10
    assert [entry for folder in packages() for entry in wrong_entries(folder)] == []


def test_a_module_that_was_renamed_and_two_columns_are_found(tmp_path):
    (tmp_path / "hooks.py").touch()
    (tmp_path / "blocks.py").touch()
    entries = "hooks   one pass\nplan    layers\n        of a model\nblocks  a    hooks  b\n"
    (tmp_path / "__init__.py").write_text(f'"""A package.\n\n{entries}"""\n')
    name = tmp_path.name
    assert wrong_entries(tmp_path) == [f"{name}: plan", f"{name}: blocks"]


def test_a_table_of_numbers_is_no_guide():
    assert list(guides("stage  from    to\n0      client  server\n")) == []
